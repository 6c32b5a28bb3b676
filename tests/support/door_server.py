"""The bundled scheduler's door behind a real socket: what its daemon will add, and ways to misbehave."""

import contextlib
import hmac
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from gpuguard.model.door import BODY_LIMIT
from tests.support.bundled_scheduler import Scheduler


class DoorServer:
    """One scheduler at an address. `token` is what opens the door; '' asks for none.

    `trouble` is called with each request's method before it is looked at, and may sleep, raise or return a whole
    answer of its own as bytes; `lost` does so after it was done, and what it returns goes out instead.
    """

    def __init__(self, scheduler: Scheduler, token: str = "") -> None:
        self.scheduler, self.token = scheduler, token
        self.trouble: Callable[[str], bytes | None] = lambda method: None
        self.lost: Callable[[str], bytes | None] = lambda method: None
        self.address = ""
        self.connections = 0
        self.one_at_a_time = threading.Lock()


class _OverUnix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _OverTcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextlib.contextmanager
def door_at(place: Path | None, scheduler: Scheduler, token: str = "") -> Iterator[DoorServer]:
    """A door on a Unix socket at `place`, or on a port of loopback; closed with everything when the block ends."""
    door = DoorServer(scheduler, token)
    links: set[socket.socket] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = place is None

        def setup(self) -> None:
            super().setup()
            door.connections += 1
            links.add(self.connection)

        def finish(self) -> None:
            links.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def handle(self) -> None:
            with contextlib.suppress(OSError):  # the client, or the end of the test, hung up
                super().handle()

        def _serve(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_LIMIT + 1))
            word = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if (raw := door.trouble(self.command)) is not None:
                return self._raw(raw)
            if not hmac.compare_digest(word, door.token):
                return self._reply(401, b'{"error": "who are you?"}')
            with door.one_at_a_time:
                status, said = door.scheduler.ask(self.command, self.path, body)
            if (raw := door.lost(self.command)) is not None:
                return self._raw(raw)
            return self._reply(status, said)

        do_GET = do_PUT = _serve

        def _raw(self, text: bytes) -> None:
            self.wfile.write(text)
            self.close_connection = True

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "somebody"

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the test that failed does."""

    server: socketserver.BaseServer
    if place is None:
        server = tcp = _OverTcp(("127.0.0.1", 0), Handler)
        door.address = f"http://127.0.0.1:{tcp.server_address[1]}"
    else:
        server = _OverUnix(str(place), Handler)
        door.address = f"unix:{place}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="door")
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
        for link in list(links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
