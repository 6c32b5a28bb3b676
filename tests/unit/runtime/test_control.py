"""A person's word to a running daemon."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.errors import ReadFailed
from gpuguard.model.events import Acknowledged, Batch, OperatorAsked
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.control import NAME, REQUEST_LIMIT, Answer, ControlServer, Word, as_event, tell


@pytest.fixture
def folder() -> Iterator[str]:
    # The path of a socket may have 107 bytes; pytest's own folders can be longer.
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as name:
        yield name


class Served:
    """A server whose loop answers at once; keeps what it was told."""

    def __init__(self, folder: str) -> None:
        self.batches: list[Batch] = []
        self.written = True
        self.server = ControlServer(folder, ManualClock(), self._put)
        self.server.start()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *end: object) -> None:
        self.server.stop()

    def _put(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.server.taken(batch, written=self.written)


def raw(folder: str, data: bytes) -> Answer:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(10)
        link.connect(os.path.join(folder, NAME))
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while part := link.recv(4096):
            answer += part
    return msgspec.json.decode(answer, type=Answer)


def test_a_word_becomes_an_event_and_is_answered_when_it_is_decided(folder: str) -> None:
    with Served(folder) as served:
        answer = tell(folder, Word(verb="ack", by="kim", reason="board replaced", code="xid64"))
    (event,) = served.batches[0].events
    assert isinstance(event, Acknowledged)
    assert (event.code, event.by, event.reason, event.subject) == ("xid64", "kim", "board replaced", None)
    assert answer.ok
    assert answer.id == event.id


def test_a_disk_that_refuses_is_told(folder: str) -> None:
    with Served(folder) as served:
        served.written = False
        answer = tell(folder, Word(verb="ack", by="kim", reason="board replaced", code="xid64"))
    assert not answer.ok
    assert "free space" in answer.message


@pytest.mark.parametrize("verb", ["drain", "release", "adopt"])
def test_wishes_become_events(verb: str) -> None:
    event = as_event(Word(verb=verb, by="kim", reason="r", token="7f3a"), ManualClock(), "1")
    assert isinstance(event, OperatorAsked)
    assert (event.wish, event.token) == (verb, "7f3a")


@pytest.mark.parametrize(
    "data", [b"\n", b"{}\n", b"\xff\xfe\x00\n", b'{"verb": "reboot", "by": "x", "reason": "y"}\n', b"[" * 5000 + b"\n"]
)
def test_what_is_not_understood_is_answered_and_changes_nothing(folder: str, data: bytes) -> None:
    with Served(folder) as served:
        answer = raw(folder, data)
    assert not answer.ok
    assert "not understood" in answer.message
    assert served.batches == []


def test_a_word_without_end_is_cut_off(folder: str) -> None:
    with Served(folder) as served:
        assert not raw(folder, b"x" * (REQUEST_LIMIT + 1)).ok
    assert served.batches == []


def test_the_socket_of_a_killed_agent_is_replaced_and_goes_at_the_end(folder: str) -> None:
    Path(folder, NAME).touch()
    with Served(folder):
        assert tell(folder, Word(verb="drain", by="kim", reason="r")).ok
    assert not Path(folder, NAME).exists()


def test_no_daemon_is_an_error_with_a_next_step(folder: str) -> None:
    with pytest.raises(ReadFailed, match="gpuguard status"):
        tell(folder, Word(verb="drain", by="kim", reason="r"))


def test_a_path_that_is_too_long_is_an_error_that_says_so(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with pytest.raises(ReadFailed, match="107 bytes"):
        ControlServer(str(deep), ManualClock(), lambda batch: None)
