"""The journal as second witness and as stand-in, with a journalctl of our own."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, LogLine
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.runtime.clock import ManualClock, SystemClock
from gpuguard.sources.journal import QUESTIONS_WAITING, Journal, Settings, build, event_id, read_entry, same_line

XID = "NVRM: Xid (PCI:0000:7a:00): 79, pid=4312, name=trainer, GPU has fallen off the bus."


@pytest.fixture
def entries(checkout: Path) -> list[bytes]:
    return (checkout / "fixtures/sources/journal/entries.jsonl").read_bytes().splitlines()


def program(folder: Path, body: str) -> Path:
    path = folder / "journalctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/called"\n{body}\n')
    path.chmod(0o755)
    return path


def question(raw: str = XID, *, estimated: bool = False) -> Question:
    now = SystemClock().now()
    at = Instant(boot=now.boot, mono=now.mono, utc=1_700_000_020.0, estimated=estimated)
    return Question(subject=SubjectId("gpu:0000:7a:00.0"), code="xid79", source="kmsg", raw=raw, at=at)


class Running:
    """The source in its thread."""

    def __init__(self, journalctl: Path, cursor: Cursor | None = None, **settings: object) -> None:
        short = {"deadline": 2.0, "again_after": 0.01, "sign_of_life": 0.02, **settings}
        self.source = Journal(Settings(journalctl=str(journalctl), **short), Path("/"), SystemClock())  # type: ignore[arg-type]
        self.batches: list[Batch] = []
        self.failure: Exception | None = None
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(cursor,))
        self._thread.start()

    def _run(self, cursor: Cursor | None) -> None:
        try:
            self.source.run(self._emit, cursor)
        except (ReadFailed, Absent) as error:
            self.failure = error
        with self._more:
            self._more.notify_all()

    def _emit(self, batch: Batch) -> None:
        with self._more:
            self.batches.append(batch)
            self._more.notify_all()

    @property
    def events(self) -> list[AnyEvent]:
        return [event for batch in self.batches for event in batch.events]

    def until(self, holds: Callable[[], bool]) -> None:
        with self._more:
            assert self._more.wait_for(holds, 10), self.batches

    def stop(self) -> None:
        self.source.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_kernel_messages_are_read_and_nothing_else(entries: list[bytes]) -> None:
    read = [read_entry(line) for line in entries]
    assert [entry is not None for entry in read] == [True, True, False, False, True]
    assert read[1] is not None
    assert (read[1].text, read[1].utc, read[1].mono) == (XID, 1_700_000_020.0, 20.0)
    assert read[4] is not None
    assert read[4].text.startswith("NVRM: Xid (PCI:0000:7d:00): 43, pid=9, name=\\xff")


def test_what_a_process_wrote_is_read_in_drills_only(entries: list[bytes]) -> None:
    assert read_entry(entries[2], trust_user_records=True) is not None
    assert read_entry(entries[3], trust_user_records=True) is None


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"\xff\x00", b'{"_TRANSPORT":"kernel"}', b'{"_TRANSPORT":"kernel","MESSAGE":null}',
     b'{"_TRANSPORT":"kernel","MESSAGE":[300]}', b'{"_TRANSPORT":"kernel","MESSAGE":["a"]}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_entry_is_none(line: bytes) -> None:
    assert read_entry(line) is None


def test_id_is_the_same_each_time(entries: list[bytes]) -> None:
    entry = read_entry(entries[1])
    assert entry is not None
    assert event_id(BootId("b0070000-1"), entry) == "journal:b0070000:7d1f0c22-42"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (XID, XID, True),
        (XID, XID + " ", True),
        ("a\nb c", "a b\tc", True),
        (XID + "\nNVRM: more", XID, True),
        (XID, XID.replace("4312", "4313"), False),
        (XID, "NVRM: Xid", False),
        ("", "", False),
    ],
)
def test_same_line(one: str, other: str, same: bool) -> None:
    assert same_line(one, other) is same
    assert same_line(other, one) is same


def test_witness_finds_the_line(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(entries) + b"\n")
    running = Running(program(tmp_path, f'cat "{tmp_path}/log"'))
    running.source.ask(question())
    running.until(lambda: len(running.events) == 1)
    running.stop()
    (event,) = running.events
    assert isinstance(event, LogLine)
    assert (event.source, event.raw, event.parsed.xid, event.at.utc) == ("journal", XID, 79, 1_700_000_020.0)
    called = (tmp_path / "called").read_text()
    assert "--since=@1699999960 --until=@1700000081" in called
    assert "_TRANSPORT=kernel" in called


def test_computed_time_is_looked_for_further_around(tmp_path: Path) -> None:
    running = Running(program(tmp_path, ":"), deadline=0.05)
    running.source.ask(question(estimated=True))
    running.until(lambda: (tmp_path / "called").exists() and len(running.batches) > 2)
    running.stop()
    assert "--since=@1699999120" in (tmp_path / "called").read_text()


def test_line_that_comes_late_is_found(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "log").write_bytes(entries[1] + b"\n")
    body = f'[ $(wc -l < "{tmp_path}/called") -lt 3 ] || cat "{tmp_path}/log"'
    running = Running(program(tmp_path, body), deadline=8.0)
    running.source.ask(question())
    running.until(lambda: len(running.events) == 1)
    running.stop()


def test_line_that_is_not_there_gives_no_event(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(entries) + b"\n")
    running = Running(program(tmp_path, f'cat "{tmp_path}/log"'), deadline=0.1)
    running.source.ask(question(XID.replace("4312", "1")))
    running.source.ask(question())
    running.until(lambda: len(running.events) == 1)
    running.stop()
    assert len(running.events) == 1


def test_query_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    body = f'sleep 600 & echo $! > "{tmp_path}/pid.new"; mv "{tmp_path}/pid.new" "{tmp_path}/pid"; wait'
    running = Running(program(tmp_path, body), deadline=1.5)
    before = len(running.batches)
    running.source.ask(question())
    running.until((tmp_path / "pid").exists)
    running.until(lambda: len(running.batches) > before + 1)
    running.stop()
    pid = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{pid}/status")
    # Killed: gone, or waiting for whoever inherited it to notice.
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_no_child_runs_while_nobody_asks(tmp_path: Path) -> None:
    running = Running(program(tmp_path, ":"), sign_of_life=0.01)
    running.until(lambda: len(running.batches) > 3)
    running.stop()
    assert not (tmp_path / "called").exists()


def test_stand_in_follows_from_where_the_other_was_last_heard(tmp_path: Path, entries: list[bytes]) -> None:
    (tmp_path / "log").write_bytes(b"\n".join(entries) + b"\n")
    running = Running(program(tmp_path, f'cat "{tmp_path}/log"; exec sleep 600'))
    running.source.stand_in(True, Instant(boot=BootId("b"), mono=1.0, utc=1_700_000_005.0))
    running.until(lambda: len(running.events) == 2)
    running.source.stand_in(False, None)
    running.source.ask(question("never"))
    running.stop()
    assert [event.parsed.xid for event in running.events if isinstance(event, LogLine)] == [79, 43]
    assert "--follow --since=@1700000005 --no-tail" in (tmp_path / "called").read_text()
    cursors = [batch.cursor for batch in running.batches if batch.cursor is not None]
    assert ";i=45;" in cursors[-1].position


def test_follower_goes_on_at_its_cursor(tmp_path: Path) -> None:
    cursor = Cursor(source="journal", boot=SystemClock().now().boot, position="s=1;i=2")
    running = Running(program(tmp_path, "exec sleep 600"), cursor, mode="follow")
    running.until((tmp_path / "called").exists)
    running.stop()
    assert "--after-cursor=s=1;i=2" in (tmp_path / "called").read_text()


def test_follower_that_ends_is_a_failure_with_its_words(tmp_path: Path) -> None:
    running = Running(program(tmp_path, "echo 'no permission' >&2; exit 1"), mode="follow")
    running.until(lambda: running.failure is not None)
    running.stop()
    assert isinstance(running.failure, ReadFailed)
    assert "no permission" in str(running.failure)


def test_machine_without_journal_is_absent(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="not installed"):
        build(Settings(journalctl="/nonexistent"), Path("/"), ManualClock()).run(lambda batch: None, None)
    with pytest.raises(Absent, match="recorded machine"):
        build(Settings(journalctl="sh"), tmp_path, ManualClock()).run(lambda batch: None, None)


def test_too_many_questions_are_counted_and_block_nobody() -> None:
    source = build(Settings(), Path("/"), ManualClock())
    for _ in range(QUESTIONS_WAITING + 3):
        source.ask(question())
    assert source.unasked == 3
