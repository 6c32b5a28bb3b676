"""Syslog files that grow, shrink, are rotated, and hold what no log should."""

import threading
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.events import Batch, Cursor, LinesLost, LogLine
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.logfile import LINE_MAX, Follower, Place, Settings, build, read_position, write_position


def line(pid: int) -> bytes:
    return (
        f"Nov 14 22:13:{pid % 60:02d} node7 kernel: [ 1234.5{pid:05d}] "
        f"NVRM: Xid (PCI:0000:7a:00): 43, pid={pid}, name=trainer, Ch 0000001e\n"
    ).encode()


def pids(follower: Follower) -> list[int | None]:
    return [found.parsed.pid for _, found in follower.read()]


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(line(1))
    return path


def test_reading_begins_at_the_end_without_a_cursor(log: Path) -> None:
    follower = Follower(log, None)
    assert pids(follower) == []
    append(log, line(2))
    assert pids(follower) == [2]
    follower.close()


def test_reading_goes_on_at_its_place(log: Path) -> None:
    follower = Follower(log, None)
    assert pids(follower) == []
    place = follower.place()
    follower.close()
    append(log, line(2) + line(3))
    again = Follower(log, place)
    assert pids(again) == [2, 3]
    assert again.losses == []
    again.close()


def test_partial_last_line_waits(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    append(log, line(2)[:60])
    assert pids(follower) == []
    place = follower.place()
    assert place is not None
    assert place.offset == len(line(1))
    append(log, line(2)[60:])
    assert pids(follower) == [2]
    follower.close()


def test_rotated_file_is_read_to_its_end_first(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    append(log, line(2))
    log.rename(log.with_suffix(".log.1"))
    append(log.with_suffix(".log.1"), line(3))
    log.write_bytes(line(4))
    assert pids(follower) == [2, 3, 4]
    assert follower.losses == []
    follower.close()


def test_file_between_two_names_is_waited_for(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    log.rename(log.with_suffix(".log.1"))
    assert pids(follower) == []
    append(log.with_suffix(".log.1"), line(2))
    assert pids(follower) == [2]
    log.write_bytes(line(3))
    assert pids(follower) == [3]
    follower.close()


def test_shrunk_file_is_read_from_its_start_and_counted(log: Path) -> None:
    append(log, line(9))
    follower = Follower(log, None)
    pids(follower)
    log.write_bytes(line(2))
    assert pids(follower) == [2]
    assert follower.losses == [f"{log} shrank"]
    follower.close()


def test_rotation_while_not_reading_finds_the_old_file(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    place = follower.place()
    follower.close()
    append(log, line(2))
    log.rename(log.with_suffix(".log.1"))
    log.write_bytes(line(3))
    again = Follower(log, place)
    assert pids(again) == [2, 3]
    assert again.losses == []
    again.close()


def test_old_file_that_is_gone_is_a_loss(log: Path) -> None:
    again = Follower(log, Place(inode=1, offset=5))
    assert pids(again) == [1]
    assert "rotated away" in again.losses[0]
    again.close()


def test_file_that_comes_later_is_read_from_its_start_only_with_a_place(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "later", None)
    assert pids(follower) == []
    assert follower.place() is None
    follower.close()


def test_line_of_megabytes_and_junk_are_survived(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    append(log, b"\x00\xff" * 1_500_000 + b"\n" + line(2))
    assert pids(follower) == [2]
    place = follower.place()
    assert place is not None
    assert place.offset == log.stat().st_size
    append(log, b"y" * (3 * LINE_MAX))
    assert pids(follower) == []
    append(log, b"\n" + line(3))
    assert pids(follower) == [3]
    assert follower.losses == []
    follower.close()


def test_unreadable_file_names_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ReadFailed, match="adm"):
        Follower(tmp_path / "x" / "y", None).read()


def test_ids_name_inode_and_offset(log: Path) -> None:
    follower = Follower(log, None)
    pids(follower)
    append(log, line(2))
    assert [event_id for event_id, _ in follower.read()] == [f"logfile:{log.stat().st_ino}:{len(line(1))}"]
    follower.close()


def test_position_is_read_as_written() -> None:
    places = {"/var/log/kern.log": Place(inode=7, offset=9), "/none": None}
    assert read_position(write_position(places)) == {"/var/log/kern.log": Place(inode=7, offset=9)}


@pytest.mark.parametrize("text", ["", "7", "[1]", '{"a": 1}', '{"a": [1]}', '{"a": ["x", 2]}'])
def test_position_of_another_is_refused(text: str) -> None:
    with pytest.raises(ReadFailed):
        read_position(text)


def run_until(root: Path, cursor: Cursor | None, write: bytes, count: int, clock: ManualClock) -> list[Batch]:
    source = build(Settings(paths=("/kern.log",), every=0.001), root, clock)  # type: ignore[arg-type]
    batches: list[Batch] = []
    more = threading.Condition()

    def emit(batch: Batch) -> None:
        with more:
            batches.append(batch)
            more.notify_all()

    thread = threading.Thread(target=source.run, args=(emit, cursor))
    thread.start()
    with more:
        assert more.wait_for(lambda: any(not b.events and b.cursor is None for b in batches), 10)
    append(root / "kern.log", write)
    with more:
        assert more.wait_for(lambda: sum(len(b.events) for b in batches) >= count, 10), batches
    source.stop()
    thread.join(10)
    assert not thread.is_alive()
    return batches


def test_source_goes_on_at_its_cursor(log: Path) -> None:
    clock = ManualClock()
    first = run_until(log.parent, None, line(2), 1, clock)
    cursor = next(batch.cursor for batch in reversed(first) if batch.cursor is not None)
    append(log, line(3))
    second = run_until(log.parent, cursor, line(4), 2, clock)
    events = [event for batch in second for event in batch.events]
    assert [e.parsed.pid for e in events if isinstance(e, LogLine)] == [3, 4]
    assert [e.backlog for e in events if isinstance(e, LogLine)] == [True, False]
    assert {e.file for e in events if isinstance(e, LogLine)} == {"/kern.log"}
    assert not any(isinstance(e, LinesLost) for e in events)


def test_source_without_paths_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="paths is empty"):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
