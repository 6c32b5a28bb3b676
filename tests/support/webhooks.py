"""A webhook's receiver, in a thread of the test, that answers as it is told to and keeps what it was sent."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, dict[str, str]]


@dataclass
class Receiver:
    """Where it listens, what it answers next (the last one for ever), and what came: path, headers, body."""

    base: str = ""
    replies: list[Reply] = field(default_factory=list)
    came: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def receiver(replies: Sequence[Reply] = ((200, {}),)) -> Iterator[Receiver]:
    """It answers until the block ends."""
    kept = Receiver(replies=list(replies))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.came.append((self.path, dict(self.headers), body))
            status, headers = kept.replies.pop(0) if len(kept.replies) > 1 else kept.replies[0]
            self.send_response(status)
            for name, value in {"Content-Length": "2", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            """What came is kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="receiver")
    thread.start()
    kept.base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
