"""The service manager hears us, or it is counted that it did not."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.runtime.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def notifier(manager: socket.socket) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname()})


def test_each_word_is_a_datagram(manager: socket.socket) -> None:
    said = notifier(manager)
    assert said.enabled
    assert said.ready("watching 8 GPUs")
    assert said.alive()
    assert said.status("one\nWATCHDOG=trigger\tline")
    assert said.stopping()
    heard = [manager.recv(4096) for _ in range(4)]
    assert heard == [
        b"READY=1\nSTATUS=watching 8 GPUs",
        b"WATCHDOG=1",
        b"STATUS=one WATCHDOG=trigger line",
        b"STOPPING=1",
    ]
    said.close()
    said.close()


def test_an_abstract_socket_is_written_with_an_at() -> None:
    name = f"gpuguard-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        said = Notifier({"NOTIFY_SOCKET": f"@{name}"})
        assert said.ready()
        assert listening.recv(4096) == b"READY=1"
        said.close()


def test_hostile_text_is_carried_as_far_as_it_goes(manager: socket.socket) -> None:
    said = notifier(manager)
    assert said.status("comm=\udcff" + "x" * 10_000)
    assert manager.recv(65536) == b"STATUS=comm=\\udcff" + b"x" * 494
    said.close()


@pytest.mark.parametrize("name", ["", "@", "vsock:2:1234", "relative"])
def test_nobody_listens(name: str) -> None:
    said = Notifier({"NOTIFY_SOCKET": name} if name else {})
    assert not said.enabled
    assert not said.ready()
    assert said.unheard == 0


def test_a_manager_that_went_away_is_counted(manager: socket.socket, tmp_path: Path) -> None:
    said = notifier(manager)
    assert said.alive()
    (tmp_path / "notify").unlink()
    assert not said.alive()
    assert not said.alive()
    assert said.unheard == 2
    said.close()


def test_a_manager_that_does_not_read_holds_nobody_up(manager: socket.socket) -> None:
    said = notifier(manager)
    while said.alive("x" * 500):
        assert said.unheard == 0
    assert said.unheard == 1
    said.close()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watch_is_kept_at_half_its_time(environment: dict[str, str], seconds: float | None) -> None:
    assert Notifier(environment).watchdog_every == seconds
