"""Serves /metrics on a socket of its own thread: a scraper that hangs holds up nobody else for long.

Every page is made when it is asked for; between scrapes this costs nothing. Connections are served one after the
other, each with a deadline, so that neither a slow nor a silent peer can pile up threads.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

from gpuguard.errors import ConfigInvalid, ReadFailed
from gpuguard.model.units import Seconds

# A scrape takes some milliseconds; whoever needs longer to ask or to take the answer is cut off.
PEER_DEADLINE = Seconds(5.0)

Page = Callable[[], tuple[str, bytes]]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `--listen`; an IPv6 host stands in brackets.

    Raises  ConfigInvalid
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ConfigInvalid([f"listen: {text!r} is not HOST:PORT; for example 127.0.0.1:9818"])
    return host.strip("[]") or "127.0.0.1", int(port)


class MetricsServer:
    """Answers GET for each of its pages, on `address`; port 0 takes a free one.

    Raises  ReadFailed when the address cannot be used
    """

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Page]) -> None:
        handler = _handler(pages)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        class Server(HTTPServer):
            address_family = family

        try:
            self._server = Server(address, handler)
        except OSError as error:
            raise ReadFailed(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}; free the port or set --listen"
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
        self._server.socket.close()

    def _serve(self) -> None:
        # serve_forever would wake up twice a second; this waits in accept.
        self._server.socket.settimeout(None)
        while not self._stopping:
            self._server.handle_request()


def _handler(pages: Mapping[str, Page]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PEER_DEADLINE

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404, explain=f"pages: {', '.join(sorted(pages))}")
                return
            kind, body = page()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not news."""

    return Handler


def exposition(families: Callable[[], Iterator[object]]) -> Page:
    """A page in Prometheus text format, made of the families at the time of asking."""

    def page() -> tuple[str, bytes]:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        class Now(Collector):
            def collect(self):  # type: ignore[no-untyped-def]
                return families()

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Now())
        return CONTENT_TYPE_LATEST, generate_latest(registry)

    return page
