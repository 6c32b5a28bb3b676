"""The socket: who may listen where, who sent what, and what becomes of files that come along."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.progress import wire
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.heartbeats import LONGEST, SHORTEST, Settings, build, pace
from gpuguard.sources.heartbeats.door import BARRED, OUT_AT_ONCE, SHUT_OUT, Door, Received, access_but_for
from tests.support.beats import Voice, message, page, state

ACL = "system.posix_acl_access"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.sock"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[], tuple[Door, Voice]]]:
    with ExitStack() as stack:

        def open_() -> tuple[Door, Voice]:
            return stack.enter_context(closing(Door(path))), stack.enter_context(closing(Voice(path)))

        yield open_


def got(door: Door, now: float = 0.0) -> Received:
    one = door.receive(now)
    assert one is not None
    return one


def test_everybody_may_write_whatever_the_umask_is(path: Path) -> None:
    before = os.umask(0o077)
    try:
        with closing(Door(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            assert [entry.name for entry in path.parent.iterdir()] == ["progress.sock"]
    finally:
        os.umask(before)
    assert not path.exists()


def test_the_kernel_says_who_it_was(opened: Callable[[], tuple[Door, Voice]]) -> None:
    door, voice = opened()
    assert door.receive(0.0) is None
    voice.say(message(0, pid=1))
    voice.say(b"x" * 4000)
    assert got(door) == Received(message(0, pid=1), os.getpid(), os.getuid())
    long = got(door)
    assert (long.cut, len(long.data)) == (True, wire.MESSAGE_LIMIT + 1)
    voice.say(b"x" * wire.MESSAGE_LIMIT)
    assert not got(door).cut


def test_one_page_is_taken_and_closed_on_exec(opened: Callable[[], tuple[Door, Voice]]) -> None:
    door, voice = opened()
    first, second = page(state(1, at=1.0)), page()
    before = len(os.listdir("/proc/self/fd"))
    voice.say(b"{}", first, second)
    one = got(door)
    assert one.page is not None
    assert not os.get_inheritable(one.page)
    assert os.fstat(one.page).st_ino == os.fstat(first).st_ino
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for fd in (first, second, one.page):
        os.close(fd)


def test_who_sent_what_is_no_page_is_barred_for_a_while(opened: Callable[[], tuple[Door, Voice]]) -> None:
    door, voice = opened()
    read, write = os.pipe()
    good = page()
    voice.say(b"stray", write)
    one = got(door)
    assert (one.page, one.stray, one.data) == (None, True, b"stray")
    for closer in door._closers.values():
        closer.join()
    os.close(write)
    assert os.read(read, 1) == b""  # nobody holds the other end any more
    voice.say(b"barred", good)
    one = got(door, BARRED - 1.0)
    assert (one.page, one.stray, one.data) == (None, False, b"barred")
    voice.say(b"again", good)
    one = got(door, BARRED)
    assert one.page is not None
    for fd in (read, good, one.page):
        os.close(fd)


def test_who_is_shut_out_finds_the_list_of_access(opened: Callable[[], tuple[Door, Voice]], path: Path) -> None:
    """Who was connected must find the socket anew; the list names the user, until the time is over."""
    door, voice = opened()
    assert not door.shut_out(os.getuid(), 0.0)
    assert not door.shut_out(0, 0.0)
    before = os.getxattr(path, ACL) if ACL in os.listxattr(path) else b""
    assert door.shut_out(4321, 0.0)
    assert door.stands()
    with pytest.raises(ConnectionRefusedError):
        voice.say(b"{}")
    assert os.getxattr(path, ACL) == access_but_for([4321])
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with closing(Voice(path)) as again:
        assert again.say(b"{}")
    assert got(door).data == b"{}"
    door.let_in(SHUT_OUT - 1.0)
    assert os.getxattr(path, ACL) == access_but_for([4321])
    door.let_in(SHUT_OUT)
    after = os.getxattr(path, ACL) if ACL in os.listxattr(path) else b""
    assert after in (before, access_but_for([]))


def test_so_many_are_shut_out_at_one_time(opened: Callable[[], tuple[Door, Voice]]) -> None:
    door, _ = opened()
    assert [door.shut_out(5000 + number, 0.0) for number in range(OUT_AT_ONCE + 1)] == [True] * OUT_AT_ONCE + [False]


def test_a_dead_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    with closing(Door(path)) as door, closing(Voice(path)) as voice:
        assert voice.say(b"{}")
        assert got(door).data == b"{}"


def test_a_socket_that_somebody_listens_at_is_left_alone(path: Path) -> None:
    with closing(Door(path)) as first, closing(Voice(path)) as voice:
        with pytest.raises(ReadFailed, match=r"another process listens .* set \[sources.heartbeats\] socket"):
            Door(path)
        assert voice.say(b"{}")
        assert got(first).data == b"{}"
        assert first.stands()


def test_what_is_no_socket_is_not_removed(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ReadFailed, match="is no socket; remove it"):
        Door(path)
    assert path.read_text() == "precious"


def test_where_nobody_can_listen(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="does not exist; make it"):
        Door(tmp_path / "nowhere" / "progress.sock")
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    with pytest.raises(ReadFailed, match="less than 100 letters"):
        Door(deep / "progress.sock")


def test_a_socket_that_was_removed_or_replaced_is_noticed_and_not_removed_again(path: Path) -> None:
    door = Door(path)
    assert door.stands()
    path.unlink()
    assert not door.stands()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        assert not door.stands()
        door.close()
        assert path.exists()


def test_a_recorded_machine_listens_nowhere(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no job runs on the recorded machine"):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)


@pytest.mark.parametrize(
    ("came", "queue", "rest"), [(0, 10, LONGEST), (64, 512, LONGEST), (1280, 512, 0.2), (640, 10, SHORTEST)]
)
def test_the_more_come_the_sooner_it_reads(came: float, queue: int, rest: float) -> None:
    assert pace(came, queue) == pytest.approx(rest)


@pytest.mark.parametrize(("key", "value"), [("every", 0.01), ("linger", -1.0), ("ranks", 0), ("ranks_per_user", 0)])
def test_settings_out_of_range(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}: must be"):
        Settings(**{key: value})  # type: ignore[arg-type]
