"""The source as supervision sees it: batches, cursors, failures, signs of life."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import Batch, Cursor, LinesLost, LogLine
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.kmsg import FUTILE_READS, Kmsg, Settings, build

BOOT = "b0070000-0000-4000-8000-000000000001"


def xid(sequence: int, pid: int = 1) -> bytes:
    return f"4,{sequence},{sequence},-;NVRM: Xid (PCI:0000:7a:00): 79, pid={pid}, name=a, gone\n".encode()


def noise(sequence: int) -> bytes:
    return f"6,{sequence},{sequence},-;usb 1-2: reset\n".encode()


class FakeRing:
    """Gives a script: bytes are a record, an errno is that error, None is 'none now'; stops the source at its end."""

    def __init__(self, script: list[bytes | int | None], clock: ManualClock) -> None:
        self.script = script
        self.clock = clock
        self.waits: list[float] = []
        self.closed = False
        self.at_end: Callable[[], None] = lambda: None

    def read(self) -> bytes | None:
        if not self.script:
            self.at_end()
            return None
        step = self.script.pop(0)
        if isinstance(step, int):
            raise OSError(step, os.strerror(step))
        return step

    def wait(self, timeout: float) -> None:
        self.waits.append(timeout)
        self.clock.advance(timeout)

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        self.closed = True


class Played:
    """One run over a script."""

    def __init__(
        self,
        script: list[bytes | int | None],
        cursor: Cursor | None = None,
        *,
        settings: Settings | None = None,
        root: Path = Path("/nonexistent"),
    ) -> None:
        self.ring = FakeRing(script, clock := ManualClock())
        self.source = Kmsg(settings or Settings(), root, clock, open_ring=lambda stop: self.ring)
        self.ring.at_end = self.source.stop
        self.batches: list[Batch] = []
        self.failure: Exception | None = None
        try:
            self.source.run(self.batches.append, cursor)
        except (ReadFailed, Absent) as error:
            self.failure = error

    @property
    def lines(self) -> list[LogLine]:
        return [event for batch in self.batches for event in batch.events if isinstance(event, LogLine)]

    @property
    def position(self) -> str | None:
        return next((b.cursor.position for b in reversed(self.batches) if b.cursor is not None), None)


def test_backlog_then_empty_batch_then_live() -> None:
    played = Played([noise(1), xid(2), None, xid(3), None])
    assert [[event.id for event in batch.events] for batch in played.batches] == [
        ["kmsg:b0070000:2"],
        [],
        ["kmsg:b0070000:3"],
    ]
    assert [line.backlog for line in played.lines] == [True, False]
    assert played.position == "3"
    assert played.ring.closed


def test_overrun_and_gap_are_one_loss() -> None:
    played = Played([noise(1), errno.EPIPE, errno.EPIPE, xid(9), None])
    (lost,) = [e for b in played.batches for e in b.events if isinstance(e, LinesLost)]
    assert lost.count == 7
    assert played.source.tally.overruns == 2
    assert played.failure is None


def test_record_beyond_the_buffer_is_survived_and_counted() -> None:
    played = Played([noise(1), errno.EINVAL, xid(3), None])
    assert [line.id for line in played.lines] == ["kmsg:b0070000:3"]
    assert played.source.tally.too_large == 1
    assert [e.count for b in played.batches for e in b.events if isinstance(e, LinesLost)] == [1]


def test_interrupted_read_is_made_again() -> None:
    assert len(Played([errno.EINTR, xid(1), None]).lines) == 1


def test_broken_device_ends_the_run_with_what_was_read_handed_over() -> None:
    played = Played([xid(1), noise(2), errno.EIO])
    assert isinstance(played.failure, ReadFailed)
    assert "Input/output error" in str(played.failure)
    assert [line.id for line in played.lines] == ["kmsg:b0070000:1"]
    assert played.position == "2"
    assert played.ring.closed


def test_endless_overruns_are_a_failure_and_no_spin() -> None:
    played = Played([errno.EPIPE] * (FUTILE_READS + 5))
    assert isinstance(played.failure, ReadFailed)
    assert "one after another" in str(played.failure)


def test_restart_at_the_cursor_reports_nothing_twice() -> None:
    script: list[bytes | int | None] = [noise(1), xid(2), xid(3, pid=2), None]
    first = Played(list(script))
    assert first.position is not None
    cursor = Cursor(source="kmsg", boot=BootId(BOOT), position=first.position)
    again = Played([*script[:-1], xid(4, pid=3), None], cursor)
    assert [line.id for line in again.lines] == ["kmsg:b0070000:4"]


def test_cursor_of_another_source_is_not_ours() -> None:
    played = Played([xid(1), None], Cursor(source="journal", boot=BootId(BOOT), position="s=1;i=9"))
    assert len(played.lines) == 1


def test_silence_gives_signs_of_life_and_nothing_else() -> None:
    played = Played([None, None, None, None])
    assert all(not batch.events and batch.cursor is None for batch in played.batches)
    assert len(played.batches) >= 3
    assert max(played.ring.waits) <= 60.0


def test_noise_alone_costs_no_commit_until_there_is_much_of_it() -> None:
    settings = Settings(records_per_cursor=100)
    played = Played([noise(n) for n in range(1, 251)], settings=settings)
    assert [b.cursor.position for b in played.batches if b.cursor is not None] == ["100", "200", "250"]


def test_batches_are_bounded() -> None:
    played = Played([xid(n, pid=n) for n in range(1, 101)] + [None], settings=Settings(events_per_batch=10))
    assert max(len(batch.events) for batch in played.batches) <= 10
    assert len(played.lines) == 100


def test_rest_of_a_split_line_is_waited_for() -> None:
    script: list[bytes | int | None] = [
        None,
        b"4,1,1,c;NVRM: Xid (PCI:0000:7a:00): 7",
        None,
        b"4,2,2,+;9, pid=5, name=a, gone",
        None,
        None,
    ]
    (line,) = Played(script).lines
    assert (line.id, line.parsed.xid) == ("kmsg:b0070000:1", 79)


def test_rest_that_never_comes_does_not_hold_the_report_back() -> None:
    script: list[bytes | int | None] = [
        None,
        b"4,1,1,c;NVRM: Xid (PCI:0000:7a:00): 79, pid=5, name=a, gone",
        None,
        None,
        None,
    ]
    played = Played(script)
    (line,) = played.lines
    assert line.parsed.xid == 79
    assert played.position == "1"


def test_recorded_machine_is_read_and_followed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("feedc0de-0000-4000-8000-000000000009\n")
    path = tmp_path / "dev/kmsg"
    path.write_bytes(xid(1) + xid(2, pid=2))
    source = build(Settings(poll_file=0.001), tmp_path, ManualClock())  # type: ignore[arg-type]
    batches: list[Batch] = []
    arrived = threading.Event()

    def emit(batch: Batch) -> None:
        batches.append(batch)
        arrived.set()

    thread = threading.Thread(target=source.run, args=(emit, None))
    thread.start()
    while not any(not batch.events for batch in batches):
        assert arrived.wait(10)
        arrived.clear()
    with path.open("ab") as file:
        file.write(xid(3, pid=3))
    while sum(len(batch.events) for batch in batches) < 3:
        assert arrived.wait(10)
        arrived.clear()
    source.stop()
    thread.join(10)
    assert not thread.is_alive()
    lines = [event for batch in batches for event in batch.events if isinstance(event, LogLine)]
    assert [line.id for line in lines] == ["kmsg:feedc0de:1", "kmsg:feedc0de:2", "kmsg:feedc0de:3"]
    assert [line.backlog for line in lines] == [True, True, False]
    # The recorded machine booted elsewhere: its newest record was written just now by our clock.
    assert lines[1].at.mono == ManualClock().now().mono
    assert {line.at.boot for line in lines} == {"feedc0de-0000-4000-8000-000000000009"}


def test_machine_without_ring_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)


def test_asking_is_harmless() -> None:
    source = Kmsg(Settings(), Path("/nonexistent"), ManualClock())
    at = ManualClock().now()
    source.ask(Question(subject=SubjectId("gpu:0000:7a:00.0"), code="xid79", source="journal", raw="x", at=at))
    assert source.tally.records == 0


@pytest.mark.parametrize("bad", [{"events_per_batch": 0}, {"records_per_cursor": 0}, {"sign_of_life": 0.0}])
def test_settings_that_would_spin_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Settings(**bad)  # type: ignore[arg-type]
