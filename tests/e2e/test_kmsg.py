"""The real /dev/kmsg: read whole, followed live, exactly once over restarts, losses counted right."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.model.events import Batch, Cursor, LinesLost, LogLine
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.supervise import Supervisor
from gpuguard.sources.kmsg import Kmsg, Settings, build
from tests.support.kmsg import SecondReader, require_kmsg, say, unlimited_writes

pytestmark = pytest.mark.kmsg

ROOT = Path("/")


@pytest.fixture
def ring() -> Iterator[SecondReader]:
    require_kmsg()
    with unlimited_writes():
        reader = SecondReader()
        yield reader
        reader.close()


def name() -> str:
    """A process name that no other test writes."""
    return uuid.uuid4().hex[:12]


def xid(process: str, pid: int) -> str:
    return f"NVRM: Xid (PCI:0000:9d:00): 43, pid={pid}, name={process}, Ch 0000001e"


class Running:
    """The source in its thread, until told to stop."""

    def __init__(self, cursor: Cursor | None = None, *, trust: bool = True) -> None:
        self.source: Kmsg = build(Settings(trust_user_records=trust), ROOT, SystemClock())
        self.batches: list[Batch] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self.source.run, args=(self._emit, cursor))
        self._thread.start()
        with self._more:
            assert self._more.wait_for(lambda: any(not b.events and b.cursor is None for b in self.batches), 10)

    def _emit(self, batch: Batch) -> None:
        with self._more:
            self.batches.append(batch)
            self._more.notify_all()

    def seen(self, process: str) -> list[LogLine]:
        events = [event for batch in self.batches for event in batch.events]
        return [event for event in events if isinstance(event, LogLine) and event.parsed.process == process]

    def wait_for(self, process: str, count: int) -> list[LogLine]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.seen(process)) >= count, 10)
            return self.seen(process)

    def stop(self) -> Cursor:
        self.source.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()
        return next(b.cursor for b in reversed(self.batches) if b.cursor is not None)


def test_backlog_is_read_and_live_lines_follow(ring: SecondReader) -> None:
    process = name()
    say(xid(process, 1))
    running = Running()
    say(xid(process, 2))
    old, new = running.wait_for(process, 2)
    running.stop()
    assert (old.backlog, old.at.estimated, new.backlog, new.at.estimated) == (True, True, False, False)
    numbers = {text: number for number, text in ring.read()}
    boot = SystemClock().now().boot[:8]
    assert [old.id, new.id] == [f"kmsg:{boot}:{numbers[xid(process, pid)]}" for pid in (1, 2)]


def test_stop_and_start_at_the_cursor_is_exactly_once(ring: SecondReader) -> None:
    process = name()
    first = Running()
    say(xid(process, 1))
    first.wait_for(process, 1)
    cursor = first.stop()
    say(xid(process, 2), xid(process, 3))
    second = Running(cursor)
    say(xid(process, 4))
    assert [line.parsed.pid for line in second.wait_for(process, 3)] == [2, 3, 4]
    second.stop()


def test_what_user_space_writes_is_not_believed_by_default(ring: SecondReader) -> None:
    process = name()
    running = Running(trust=False)
    say(xid(process, 1))
    trusting = Running()
    trusting.wait_for(process, 1)
    trusting.stop()
    running.stop()
    assert running.seen(process) == []
    assert running.source.tally.distrusted > 0


def test_what_was_overwritten_is_counted(ring: SecondReader) -> None:
    process = name()
    running = Running()
    say(xid(process, 1))
    running.wait_for(process, 1)
    cursor = running.stop()
    # More than any ring of this kernel holds: each record takes at least 32 bytes, and the ring at most 32 MiB.
    size = ring_bytes()
    for _ in range(size // 900 + 200):
        say("x" * 900)
    again = Running(cursor)
    lost = [e for batch in again.batches for e in batch.events if isinstance(e, LinesLost)]
    again.stop()
    # The oldest record that the kernel still has follows the last one that was lost.
    assert len(lost) == 1
    first_missing = int(cursor.position) + 1
    assert lost[0].id.endswith(f"{first_missing}-{first_missing + lost[0].count - 1}")
    assert lost[0].count > 0


def ring_bytes() -> int:
    """Bytes of text that the ring has room for, by writing of the kernel: klogctl(10)."""
    import ctypes

    size = int(ctypes.CDLL(None, use_errno=True).klogctl(10, None, 0))
    return size if size > 0 else 1 << 20


def test_supervised_source_comes_to_watch(ring: SecondReader) -> None:
    process = name()
    mailbox = Mailbox()
    supervisor = Supervisor(SystemClock(), mailbox.put)
    supervisor.add(build(Settings(trust_user_records=True), ROOT, SystemClock()))
    supervisor.start()
    assert supervisor.caught_up(10)
    say(xid(process, 1))
    found = False
    while not found:
        batch = mailbox.get(10)
        assert batch is not None
        found = any(isinstance(event, LogLine) and event.parsed.process == process for event in batch.events)
    assert [(view.name, view.level) for view in supervisor.views()] == [("kmsg", "watching")]
    assert supervisor.stop() == ()


CHILD = """
import sys, msgspec
from pathlib import Path
from gpuguard.model.events import Cursor
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.kmsg import Settings, build
cursor = msgspec.json.decode(sys.argv[1], type=Cursor | None)
def emit(batch):
    sys.stdout.buffer.write(msgspec.json.encode(batch) + b"\\n")
    sys.stdout.buffer.flush()
build(Settings(trust_user_records=True), Path("/"), SystemClock()).run(emit, cursor)
"""


def test_killed_at_any_moment_each_line_comes_exactly_once(ring: SecondReader) -> None:
    """What a killed reader handed over whole counts as kept; the next one starts at its newest cursor."""
    process = name()
    cursor: Cursor | None = None
    seen: list[int | None] = []
    pid = 0
    for round_number in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, msgspec.json.encode(cursor).decode()], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        line = child.stdout.readline()
        for _ in range(20):
            pid += 1
            say(xid(process, pid))
            if pid % 20 == 3 * round_number + 1:
                os.kill(child.pid, signal.SIGKILL)
        rest = line + child.stdout.read()
        child.wait()
        child.stdout.close()
        for text in rest.split(b"\n")[:-1]:
            batch = msgspec.json.decode(text, type=Batch)
            cursor = batch.cursor or cursor
            seen += [e.parsed.pid for e in batch.events if isinstance(e, LogLine) and e.parsed.process == process]
    last = Running(cursor)
    seen += [line.parsed.pid for line in last.seen(process)]
    last.stop()
    assert seen == list(range(1, pid + 1))


def test_reader_without_the_right_names_the_next_step(ring: SecondReader) -> None:
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from gpuguard.errors import ReadFailed\n"
        "from gpuguard.runtime.clock import SystemClock\n"
        "from gpuguard.sources.kmsg import Settings, build\n"
        "source = build(Settings(), Path('/'), SystemClock())\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: source.run(print, None)\n"
        "except ReadFailed as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "CAP_SYSLOG" in done.stdout
