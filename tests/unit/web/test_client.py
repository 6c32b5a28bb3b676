"""One deadline for all of a question, whatever the server does with it."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gpuguard.errors import ConfigInvalid
from gpuguard.web.client import Client, NoAnswer, on_loopback, parse_address

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[socket.socket], None]


class Server:
    """Plain sockets: each connection is handed to the next talk, the last one again and again."""

    def __init__(self, *talks: Talk) -> None:
        self._talks = list(talks)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.over = threading.Event()
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            talk = self._talks[min(self.connections, len(self._talks) - 1)]
            self.connections += 1
            threading.Thread(target=self._talk, args=(talk, sock), daemon=True).start()

    def _talk(self, talk: Talk, sock: socket.socket) -> None:
        with sock:
            try:
                talk(sock)
            except OSError:
                return  # the client has had enough

    def close(self) -> None:
        self.over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*talks: Talk) -> Server:
        made.append(Server(*talks))
        return made[-1]

    yield start
    for server in made:
        server.close()


def asked(sock: socket.socket) -> bytes:
    """One whole question without a body; b'' when the client hung up."""
    text = b""
    while b"\r\n\r\n" not in text:
        more = sock.recv(4096)
        if not more:
            return b""
        text += more
    return text


def keeps(sock: socket.socket) -> None:
    while asked(sock):
        sock.sendall(OK)


def once(sock: socket.socket) -> None:
    asked(sock)
    sock.sendall(OK)


def says(text: bytes) -> Talk:
    def talk(sock: socket.socket) -> None:
        asked(sock)
        sock.sendall(text)

    return talk


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_a_connection_is_kept(serve: Callable[..., Server]) -> None:
    server = serve(keeps)
    client = Client(server.address)
    for _ in range(3):
        answer = client.ask("GET", "/x", until=soon())
        assert (answer.status, answer.body) == (200, b"ok")
    assert server.connections == 1
    client.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_one_that_was_closed_meanwhile_is_made_anew(serve: Callable[..., Server], method: str) -> None:
    closed = threading.Event()

    def then_closes(sock: socket.socket) -> None:
        once(sock)
        sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    server = serve(then_closes, keeps)
    client = Client(server.address)
    client.ask("GET", "/", until=soon())
    closed.wait()
    assert client.ask(method, "/", until=soon(), body=b"x" if method == "POST" else None).status == 200
    assert server.connections == 2
    client.close()


@pytest.mark.parametrize(("method", "again"), [("GET", True), ("PATCH", False)])
def test_only_a_reading_is_asked_twice_by_itself(serve: Callable[..., Server], method: str, again: bool) -> None:
    """The server reads the second question and hangs up: a write may have been done."""

    def half(sock: socket.socket) -> None:
        once(sock)
        asked(sock)

    server = serve(half, keeps)
    client = Client(server.address)
    client.ask("GET", "/", until=soon())
    if again:
        assert client.ask(method, "/", until=soon()).status == 200
    else:
        with pytest.raises(NoAnswer) as failed:
            client.ask(method, "/", until=soon())
        assert failed.value.sent
    client.close()


DRIPS = [
    pytest.param(b"", b"HTTP/1.1 200 OK", id="the status"),
    pytest.param(b"HTTP/1.1 200 OK\r\n", b"X-Long: header-that-never-ends-", id="a header"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", b"x", id="the body"),
    pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", id="chunks"),
]


@pytest.mark.parametrize(("first", "drop"), DRIPS)
def test_a_server_that_drips_ends_with_the_deadline(serve: Callable[..., Server], first: bytes, drop: bytes) -> None:
    def drips(sock: socket.socket) -> None:
        asked(sock)
        sock.sendall(first)
        number = 0
        while not server.over.wait(0.005):
            sock.sendall(drop[number % len(drop) : number % len(drop) + 1])
            number += 1

    server = serve(drips)
    began = time.monotonic()
    with pytest.raises(NoAnswer, match="timed out"):
        Client(server.address).ask("GET", "/", until=soon(0.1))
    assert time.monotonic() - began < 1.0


def test_silence_ends_with_the_deadline_too(serve: Callable[..., Server]) -> None:
    server = serve(lambda _: server.over.wait() and None)
    with pytest.raises(NoAnswer, match="timed out"):
        Client(server.address).ask("GET", "/", until=soon(0.05))
    with pytest.raises(NoAnswer, match="timed out"):
        Client(server.address.replace("http:", "https:")).ask("GET", "/", until=soon(0.05))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "closed|without"),
        (b"garbage\r\n\r\n", "BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "broke off after 5 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nsho", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + b"x" * 200, "longer than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200, "longer than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(200)) + b"\r\n", "headers"),
    ],
)
def test_what_is_no_whole_answer_is_none(serve: Callable[..., Server], text: bytes, words: str) -> None:
    with pytest.raises(NoAnswer, match=words):
        Client(serve(says(text)).address, limit=100).ask("GET", "/", until=soon())


def test_a_redirect_is_an_answer_and_is_not_followed(serve: Callable[..., Server]) -> None:
    target = serve(keeps)
    text = f"HTTP/1.1 307 x\r\nLocation: {target.address}/\r\nContent-Length: 0\r\n\r\n".encode()
    answer = Client(serve(says(text)).address).ask("GET", "/", until=soon())
    assert (answer.status, answer.location) == (307, f"{target.address}/")
    assert target.connections == 0


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        (b"Retry-After: 17", 17.0), (b"Retry-After: Thu, 01 Jan 2026 00:01:00 GMT", 60.0), (b"Retry-After: soon", None),
        (b"X: y", None), (b"Retry-After: 99999999999999", None),
    ],
)  # fmt: skip
def test_dates_and_pauses_are_read(serve: Callable[..., Server], header: bytes, pause: float | None) -> None:
    text = b"HTTP/1.1 503 x\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: 0\r\n" + header + b"\r\n\r\n"
    answer = Client(serve(says(text)).address).ask("GET", "/", until=soon())
    assert (answer.utc, answer.retry_after) == (1767225600.0, pause)


def test_nobody_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoAnswer, match="refused") as failed:
        Client(f"http://127.0.0.1:{port}").ask("GET", "/", until=soon())
    assert not failed.value.sent


def test_a_name_is_looked_up_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hangs.wait() and [])
    client = Client("http://slow.example")
    for _ in range(2):
        with pytest.raises(NoAnswer, match=r"slow\.example is still being looked up"):
            client.ask("GET", "/", until=soon(0.02))
    hangs.set()


def test_a_question_waits_for_the_one_before_and_no_longer(serve: Callable[..., Server]) -> None:
    begun = threading.Event()

    def waits(sock: socket.socket) -> None:
        asked(sock)
        begun.set()
        server.over.wait()

    server = serve(waits)
    client = Client(server.address)
    told: list[str] = []

    def asks() -> None:
        try:
            client.ask("GET", "/", until=soon(30.0))
        except NoAnswer as error:
            told.append(str(error))

    first = threading.Thread(target=asks)
    first.start()
    begun.wait()
    with pytest.raises(NoAnswer, match="another question"):
        client.ask("GET", "/", until=soon(0.02))
    client.close()  # and the one that waits is told so, at once
    first.join()
    assert len(told) == 1


def test_lines_come_as_they_are_said(serve: Callable[..., Server]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines = Client(serve(says(head + b"5\r\none\nt\r\n3\r\nwo\n\r\n0\r\n\r\n")).address).lines("/", until=soon())
    assert list(lines) == [b"one", b"two"]
    with pytest.raises(NoAnswer, match="IncompleteRead"):
        list(Client(serve(says(head + b"5\r\none\nt\r\n3\r\nw")).address).lines("/", until=soon()))
    with pytest.raises(NoAnswer, match="a line is longer"):
        list(Client(serve(says(head + b"9\r\n123456789\r\n")).address).lines("/", until=soon(), limit=5))
    refused = Client(serve(says(b"HTTP/1.1 410 Gone\r\nContent-Length: 3\r\n\r\nold")).address).lines("/", until=soon())
    assert (refused.answer.status, refused.answer.body, list(refused)) == (410, b"old", [])


def test_whoever_waits_for_a_line_can_be_told_to_stop(serve: Callable[..., Server]) -> None:
    def waits(sock: socket.socket) -> None:
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")(sock)
        server.over.wait()

    server = serve(waits)
    lines = Client(server.address).lines("/", until=soon(30.0))
    seen = []
    for line in lines:
        seen.append(line)
        threading.Thread(target=lines.close).start()
    assert seen == [b"one"]
    Client(server.address).lines("/", until=soon()).close()


@pytest.mark.parametrize(
    "address", ["", "x", "ftp://x", "https://", "https://x:99999", "https://u:p@x", "https://x/?q", "https://x#f"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_address(address)


def test_addresses() -> None:
    assert parse_address("https://[::1]:6443/base/") == (True, "::1", 6443, "/base")
    assert parse_address("http://Example.COM") == (False, "example.com", 80, "")
    assert [on_loopback(f"http://{host}") for host in ("127.0.0.1", "[::1]", "localhost", "10.0.0.1", "x.y")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_certificate_that_nobody_vouches_for_is_not_taken(serve: Callable[..., Server]) -> None:
    """Nothing but a handshake is begun; a plain server is none, and what is said to it holds no question."""
    heard: list[bytes] = []
    server = serve(lambda sock: heard.append(sock.recv(4096)) or sock.sendall(OK))
    with pytest.raises(NoAnswer) as failed:
        Client(server.address.replace("http:", "https:"), tls=ssl.create_default_context).ask(
            "GET", "/", until=soon(), headers={"Authorization": "Bearer secret"}
        )
    assert not failed.value.sent
    assert b"secret" not in heard[0]
