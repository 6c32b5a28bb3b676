"""One HTTP server, asked one question at a time, each with one deadline for all of it.

The standard library's timeouts are per read: a server that sends a byte a second holds its caller for hours. Here every
read and write is given what is left of the question's own time. An answer has a limit of size. Redirects are never
followed: whoever is sent elsewhere would take its credentials along. Proxies in the environment are not used.

A kept connection that the server closed meanwhile is noticed before it is used again. A question that only reads is
asked a second time where a kept connection broke before any answer; one that writes is not, as it may have been done.

Source  RFC 9110, RFC 9112 section 9.6; Python 3.11, http/client.py
"""

import email.utils
import http.client
import io
import ipaddress
import select
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from gpuguard.errors import ConfigInvalid, ReadFailed

# A node's record has 5 to 30 kB; a list of some thousand names has a few MB.
ANSWER_LIMIT: Final = 16 << 20
LINE_LIMIT: Final = 2 << 20
# Less than this is no time to open a connection in.
LEAST: Final = 0.001
UNIX: Final = "unix:"
READING: Final = frozenset({"GET", "HEAD"})


class NoAnswer(ReadFailed):
    """No whole answer came in time, or none that is HTTP. `sent` tells whether the server may have acted on it."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server said, whatever its status.

    Units   utc: the server's own clock, seconds since 1970; retry_after: seconds; None where it did not tell
    """

    status: int
    body: bytes = b""
    content_type: str = ""
    utc: float | None = None
    retry_after: float | None = None
    location: str = ""


class Client:
    """Talks to one server, over one connection that is kept while the server keeps it. Questions queue up.

    `address` is http(s)://host[:port][/base], or unix:/path of a socket on this machine. `tls` makes the context for
    each new connection, so that renewed certificates count; by itself the system's own authorities are trusted.
    `server_name` is who the server must prove to be, where that is not the host.
    Raises  ConfigInvalid for an address that is none
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        server_name: str = "",
        limit: int = ANSWER_LIMIT,
    ) -> None:
        self.address = address
        self._secure, self._host, self._port, self._base = parse_address(address)
        self._tls, self._server_name, self._limit = tls, server_name or self._host, limit
        self._names = _Socket(address) if on_a_socket(address) else _Names(self._host, self._port)
        self._asking = threading.Lock()
        self._link: _Link | None = None

    def ask(
        self,
        method: str,
        path: str,
        *,
        until: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The server's answer to one question, read whole.

        Units   until: seconds of time.monotonic(); holds for all of it: name, connection, TLS, sending, reading
        Raises  NoAnswer
        """
        if not self._asking.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NoAnswer(f"{self.address}: another question was not answered yet", sent=False)
        try:
            return self._ask(method, path, until, body, headers or {})
        finally:
            self._asking.release()

    def lines(
        self, path: str, *, until: float, headers: Mapping[str, str] | None = None, limit: int = LINE_LIMIT
    ) -> "Lines":
        """An answer that is read line by line as it comes, over a connection of its own, until `until` at the latest.

        Raises  NoAnswer
        """
        link = self._connect(until)
        try:
            connection = _connection(link)
            connection.request("GET", self._base + path, headers=_complete(headers or {}, self._host_header()))
            response = connection.getresponse()
            if response.status != 200:
                body = response.read(self._limit)
                link.end()
                return Lines(_answer(response, body), None, None, limit, self.address)
        except (OSError, http.client.HTTPException, ValueError) as error:
            link.end()
            raise NoAnswer(f"{self.address}: {_said(error)}", sent=True) from error
        return Lines(_answer(response, b""), response, link, limit, self.address)

    def close(self) -> None:
        """The kept connection is given up; a question that waits for its answer on it ends now. From any thread."""
        if (link := self._link) is not None:
            link.hang_up()
        if self._asking.acquire(blocking=False):
            try:
                self._forget()
            finally:
                self._asking.release()

    def _ask(self, method: str, path: str, until: float, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        kept = self._kept(until)
        link = kept or self._fresh(until)
        try:
            return self._exchange(link, method, path, body, headers)
        except NoAnswer:
            self._forget()
            if kept is None or method not in READING or link.heard or until - time.monotonic() < LEAST:
                raise
        try:
            return self._exchange(self._fresh(until), method, path, body, headers)
        except NoAnswer:
            self._forget()
            raise

    def _exchange(
        self, link: "_Link", method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = _connection(link)
        try:
            connection.request(method, self._base + path, body=body, headers=_complete(headers, self._host_header()))
            response = connection.getresponse()
            text = response.read(self._limit + 1)
            if len(text) > self._limit:
                raise NoAnswer(f"{self.address}: the answer is longer than {self._limit} bytes", sent=True)
            # The standard library takes a body that ends before its stated length as it came, when asked for a part.
            if response.length:
                raise NoAnswer(f"{self.address}: the answer broke off after {len(text)} bytes", sent=True)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{self.address}: {_said(error)}", sent=True) from error
        if response.will_close:
            self._forget()
        return _answer(response, text)

    def _kept(self, until: float) -> "_Link | None":
        """The connection of last time, unless the server has closed it or said something unasked."""
        link = self._link
        if link is None:
            return None
        if link.spoken_to():
            self._forget()
            return None
        link.until, link.heard = until, False
        return link

    def _fresh(self, until: float) -> "_Link":
        self._link = self._connect(until)
        return self._link

    def _forget(self) -> None:
        if self._link is not None:
            self._link.end()
            self._link = None

    def _connect(self, until: float) -> "_Link":
        """A connection, with TLS where the address says so.

        Raises  NoAnswer
        """
        error: Exception = TimeoutError("timed out")
        try:
            places = self._names.find(until)
            for number, (family, kind, protocol, place) in enumerate(places):
                # One address that swallows everything leaves time for the next.
                left = (until - time.monotonic()) / (len(places) - number)
                if left < LEAST:
                    break
                sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
                try:
                    sock.settimeout(left)
                    sock.connect(place)
                    if family != socket.AF_UNIX:
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if self._secure:
                        sock.settimeout(max(LEAST, until - time.monotonic()))
                        sock = self._tls().wrap_socket(sock, server_hostname=self._server_name)
                except (OSError, ValueError) as failed:
                    sock.close()
                    error = failed
                    continue
                except BaseException:
                    sock.close()
                    raise
                return _Link(sock, until)
        except (OSError, UnicodeError) as failed:  # no such name; a certificate of ours that cannot be read
            error = failed
        raise NoAnswer(f"{self.address}: {_said(error)}", sent=False) from error

    def _host_header(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._port == (443 if self._secure else 80) else f"{host}:{self._port}"


class Lines:
    """An answer as its lines come. `answer` has its status; for any other than 200 also its body, and no lines."""

    def __init__(
        self, answer: Answer, response: http.client.HTTPResponse | None, link: "_Link | None", limit: int, address: str
    ) -> None:
        self.answer = answer
        self._response, self._link, self._limit, self._address = response, link, limit, address
        self._reading = False

    def __iter__(self) -> Iterator[bytes]:
        """Each line without its end, until the server ends the answer or `close` is called.

        Raises  NoAnswer when it breaks off, takes longer than it may, or a line has no end
        """
        if self._response is None or self._link is None:
            return
        self._reading = True
        try:
            while line := self._response.readline(self._limit + 1):
                if len(line) > self._limit:
                    raise NoAnswer(f"{self._address}: a line is longer than {self._limit} bytes", sent=True)
                yield line.rstrip(b"\r\n")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not self._link.hung_up:
                raise NoAnswer(f"{self._address}: {_said(error)}", sent=True) from error
        finally:
            self._link.end()

    def close(self) -> None:
        """Whoever waits for the next line is told that there is none. From any thread."""
        if self._link is not None:
            self._link.hang_up()
            if not self._reading:
                self._link.end()


class _Link:
    """A connected socket in the shape that http.client wants, whose every read and write ends by `until`."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self.until = until
        self.heard = False  # whether any byte of the present answer has come
        self.hung_up = False

    def sendall(self, text: bytes) -> None:
        view = memoryview(text)
        while view:
            self._set_time()
            view = view[self._sock.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self))

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        self._set_time()
        number = self._sock.recv_into(buffer)
        self.heard = self.heard or number > 0
        return number

    def spoken_to(self) -> bool:
        """Whether something stands to be read; on a connection at rest that is its end, or nonsense."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def hang_up(self) -> None:
        """Whoever reads finds the end; the descriptor stays until `end`, so that no other takes its number."""
        self.hung_up = True
        try:
            # Not SSLSocket's own, which takes the cipher off: a reader would take the rest for plain text.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # it was over already

    def close(self) -> None:
        """Nothing: http.client calls it when the server will keep no connection, before the body has been read."""

    def end(self) -> None:
        """The connection is no more."""
        self._sock.close()

    def __del__(self) -> None:
        self._sock.close()  # a client that nobody needs any more takes its kept connection along

    def _set_time(self) -> None:
        left = self.until - time.monotonic()
        if left < LEAST:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)


class _Reads(io.RawIOBase):
    """The reading end of a link, for the standard library's buffers."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed has a private name for it
        return self._link.recv_into(buffer)


class _Socket:
    """Where an address on this machine leads: to itself."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix(UNIX)

    def find(self, until: float) -> list[tuple[int, int, int, tuple[object, ...] | str]]:
        """The one place, as `_Names.find` gives them."""
        return [(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._path)]


class _Names:
    """Where a host's name leads. The resolver takes no deadline, so it runs aside, and at most once at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._literal = _is_number(host)
        self._asked: threading.Thread | None = None
        self._found: list[tuple[int, int, int, tuple[object, ...] | str]] = []
        self._error: OSError | UnicodeError | None = None

    def find(self, until: float) -> list[tuple[int, int, int, tuple[object, ...] | str]]:
        """Family, type, protocol and place of each address.

        Raises  OSError, UnicodeError, TimeoutError
        """
        if self._literal:
            self._look()
        else:
            if self._asked is None or not self._asked.is_alive():
                self._asked = threading.Thread(target=self._look, name="resolver", daemon=True)
                self._asked.start()
            self._asked.join(max(0.0, until - time.monotonic()))
            if self._asked.is_alive():
                raise TimeoutError(f"the name {self._host} is still being looked up")
        if self._error is not None:
            raise self._error
        return self._found

    def _look(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._found, self._error = [(f, t, p, place) for f, t, p, _, place in found], None
        except (OSError, UnicodeError) as error:
            self._error = error


def parse_address(address: str) -> tuple[bool, str, int, str]:
    """Whether TLS is spoken, host, port and the path before every path.

    Shape   http(s)://host[:port][/base], or unix:/path, which counts as plain and of this machine
    Raises  ConfigInvalid
    """
    if on_a_socket(address):
        return False, "localhost", 80, ""
    try:
        parts = urllib.parse.urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise ConfigInvalid((f"{address[:200]!r} is no address: {error}",)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigInvalid((f"{address[:200]!r} is no address; write it as https://host:port",))
    if parts.username is not None:
        raise ConfigInvalid(("an address must not hold a user or password: it is shown in logs",))
    secure = parts.scheme == "https"
    return secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/")


def on_a_socket(address: str) -> bool:
    """Whether it names a Unix socket, by its absolute path."""
    return address.startswith(f"{UNIX}/")


def on_loopback(address: str) -> bool:
    """Whether what is sent there stays on this machine."""
    host = parse_address(address)[1]
    return host == "localhost" or (_is_number(host) and ipaddress.ip_address(host.split("%")[0]).is_loopback)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.split("%", maxsplit=1)[0])
    except ValueError:
        return False
    return True


def _connection(link: _Link) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("-")
    connection.auto_open = 0
    connection.sock = link  # it asks for sendall, makefile and close alone
    return connection


def _complete(headers: Mapping[str, str], host: str) -> dict[str, str]:
    return {"Host": host, "User-Agent": "gpuguard", "Accept-Encoding": "identity", **headers}


def _answer(response: http.client.HTTPResponse, body: bytes) -> Answer:
    return Answer(
        status=response.status,
        body=body,
        content_type=response.headers.get("Content-Type", ""),
        utc=_moment(response.headers.get("Date")),
        retry_after=_pause(response.headers.get("Retry-After"), response.headers.get("Date")),
        location=response.headers.get("Location", "")[:200],
    )


def _moment(text: str | None) -> float | None:
    """Seconds since 1970 of a header with a date; None for none."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, TypeError, OverflowError):
        return None


def _pause(text: str | None, now: str | None) -> float | None:
    """Seconds until one may ask again, which is told as such or as a date."""
    if text is None:
        return None
    if text.strip().isdecimal() and len(text) < 10:
        return float(text)
    then, here = _moment(text), _moment(now)
    return max(0.0, then - here) if then is not None and here is not None else None


def _said(error: Exception) -> str:
    """What a person can do something with, as one printable line: some of it is the server's own text."""
    words = " ".join(_told(error).split())
    return "".join(c if c.isprintable() else "?" for c in words)[:200]


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
