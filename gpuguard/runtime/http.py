"""Serves /metrics: a peer that drips, hangs or never asks holds up no other.

Every page is made when it is asked for; between scrapes this costs nothing. Each connection has a thread of its own
and one deadline for all of it. There are at most PEERS of them: who comes then takes the place of the oldest, since a
scrape takes milliseconds and whoever has been here longest is not one.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer

from prometheus_client.core import Metric

from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.model.units import Seconds
from gpuguard.runtime.exposition import CONTENT_TYPE, exposition

# From the connection to the last byte of the answer.
PEER_DEADLINE = Seconds(5.0)
PEERS = 16
CANNOT_ACCEPT = Seconds(0.2)  # otherwise who waits at the door would keep a processor busy

# Who listens there is heard by this node alone.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Verdicts and measurements as JSON, for `gpuguard gpus`.
SNAPSHOT = "/snapshot"

Page = Callable[[], tuple[str, bytes]]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `listen`; an IPv6 host stands in brackets.

    Raises  ConfigInvalid
    """
    host, separator, port = text.rpartition(":")
    if not separator or not text.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ConfigInvalid([f"listen: {text!r} is not HOST:PORT; for example 127.0.0.1:9818"])
    return host.strip("[]") or "127.0.0.1", int(port)


class MetricsServer:
    """Answers GET for each of its pages, on `address`; port 0 takes a free one.

    Raises  ReadFailed when the address cannot be used
    """

    def __init__(
        self, address: tuple[str, int], pages: Mapping[str, Page], *, deadline: Seconds = PEER_DEADLINE
    ) -> None:
        try:
            self._server = _Server(address, _handler(pages, deadline), deadline)
        except OSError as error:
            why = error.strerror or error
            raise ReadFailed(
                f"cannot listen on {address[0]}:{address[1]}: {why}; free the port or set --listen"
            ) from error
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._stopping = False

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Requests are answered from now on."""
        self._thread.start()

    def stop(self) -> None:
        """No request is answered any more."""
        self._stopping = True
        _shut(self._server.socket)  # wakes the thread that waits for a peer
        self._server.cut_off(most=0)
        if self._thread.is_alive():
            self._thread.join(1.0)
        self._server.socket.close()

    def _serve(self) -> None:
        # serve_forever would wake up twice a second; this waits for a peer, or for the deadline of one that is here.
        while not self._stopping:
            self._server.timeout = self._server.next_deadline()
            self._server.handle_request()
            self._server.cut_off(most=PEERS)


class _Server(HTTPServer):
    """Each connection in its own thread. `peers` are those being served, oldest first, with their deadlines."""

    # Who is not accepted yet waits with the kernel.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], deadline: Seconds) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.peers: dict[socket.socket, float] = {}
        self._mutex = threading.Lock()
        self._places = threading.Semaphore(PEERS)
        self._deadline = deadline
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bound to the address, without asking the resolver for its name as HTTPServer does."""
        TCPServer.server_bind(self)

    def next_deadline(self) -> float | None:
        """How long until somebody is overdue, in seconds; None when nobody is here."""
        with self._mutex:
            oldest = next(iter(self.peers.values()), None)
        return None if oldest is None else max(0.0, oldest - time.monotonic())

    def cut_off(self, *, most: int) -> None:
        """Nobody who is overdue is served any longer, and of the others only the youngest `most`.

        Their threads notice at once.
        """
        now = time.monotonic()
        with self._mutex:
            too_many = len(self.peers) - most
            for place, (peer, deadline) in enumerate(list(self.peers.items())):
                if place < too_many or deadline <= now:
                    del self.peers[peer]
                    _shut(peer)

    def get_request(self) -> tuple[socket.socket, object]:
        """The next peer; one who cannot be let in now, for want of file descriptors, is not asked for at once again.

        Raises  OSError
        """
        try:
            return super().get_request()
        except OSError:
            time.sleep(CANNOT_ACCEPT)
            raise

    # The names and the shape of the arguments are socketserver's.
    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        """The peer is being answered by a thread of its own."""
        self.cut_off(most=PEERS - 1)
        self._places.acquire()  # until the thread of one that was cut off has noticed
        with self._mutex:
            self.peers[request] = time.monotonic() + self._deadline
        try:
            threading.Thread(target=self._answer, args=(request, client_address), name="scrape", daemon=True).start()
        except RuntimeError:  # no room for another thread: this one gets no answer
            self._leave(request)

    def _answer(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # it went away, or was cut off
        finally:
            self._leave(request)

    def _leave(self, request: socket.socket) -> None:
        with self._mutex:
            self.peers.pop(request, None)
        self.shutdown_request(request)
        self._places.release()


def _shut(peer: socket.socket) -> None:
    """Whoever waits on the socket is woken; it stays to be closed by its owner."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _handler(pages: Mapping[str, Page], deadline: Seconds) -> type[BaseHTTPRequestHandler]:
    making = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = deadline

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404, explain=f"pages: {', '.join(sorted(pages))}")
                return
            with making:  # sixteen who ask at once must not take sixteen times the memory
                kind, body = page()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    return Handler


def metrics_page(families: Callable[[], Iterable[Metric]]) -> Page:
    """A page in Prometheus' text format, made of the families at the time of asking."""

    def page() -> tuple[str, bytes]:
        return CONTENT_TYPE, exposition(families())

    return page


def printed(text: Callable[[], str]) -> Page:
    """A page in Prometheus text format that is text already."""
    return lambda: ("text/plain; version=0.0.4; charset=utf-8", text().encode())
