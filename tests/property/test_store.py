"""Replay from disk equals live; a crash between any two writes neither loses a change nor keeps half of one."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuguard.model.events import Cursor, LogLine, Parsed
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.story import OWED_STATES, Change, OwedAction, StoryEntry
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.sqlite import SqliteStore, open_store
from tests.support.stored import BOOT, change, entry, owed

# Any text that UTF-8 can carry, NUL and control characters too.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.floats(0, 1e9, allow_nan=False)
INSTANTS = st.builds(Instant, boot=st.just(BOOT), mono=TIMES, utc=st.none() | TIMES, estimated=st.booleans())
SUBJECTS = st.sampled_from([SubjectId("node"), SubjectId("gpu:0000:3b:00.0"), SubjectId("nvswitch:0000:05:00.0")])
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e6, 1e6) | TEXT
KEYS = st.sampled_from(["drain", "subject/a", "subject/b", "memory/fault_codes/a", "incident/1"])
EVENT_IDS = st.integers(0, 9).map(lambda number: EventId(f"kmsg:5a1e:{number}"))

STORIES = st.builds(
    StoryEntry,
    at=INSTANTS,
    kind=st.sampled_from(["verdict", "note"]),
    subject=SUBJECTS,
    text=TEXT,
    event_id=st.none() | EVENT_IDS,
    cause=st.none() | TEXT,
    detail=st.dictionaries(TEXT, SCALARS, max_size=3),
)
LINES = st.builds(
    LogLine,
    id=EVENT_IDS,
    at=INSTANTS,
    source=st.just("kmsg"),
    parsed=st.builds(Parsed, kind=st.just("xid"), xid=st.integers(1, 200), process=st.none() | TEXT),
    raw=TEXT,
)
ACTIONS = st.builds(
    OwedAction,
    action=st.integers(0, 4).map(lambda number: owed(number).action),
    state=st.sampled_from(OWED_STATES),
    tries=st.integers(0, 9),
    not_before=st.none() | INSTANTS,
    message=TEXT,
)
CHANGES = st.builds(
    Change,
    cursors=st.lists(
        st.builds(Cursor, source=st.sampled_from(["kmsg", "journal"]), boot=st.just(BOOT), position=TEXT), max_size=2
    ).map(tuple),
    puts=st.dictionaries(KEYS, st.binary(max_size=50), max_size=3),
    deletes=st.lists(KEYS, max_size=2).map(tuple),
    story=st.lists(STORIES, max_size=2).map(tuple),
    events=st.lists(LINES, max_size=2).map(tuple),
    actions=st.lists(ACTIONS, max_size=2).map(tuple),
)


class Live:
    """What a store must answer, kept in plain Python."""

    def __init__(self) -> None:
        self.state: dict[str, bytes] = {}
        self.cursors: dict[str, Cursor] = {}
        self.story: list[StoryEntry] = []
        self.events: dict[EventId, LogLine] = {}
        self.actions: dict[str, OwedAction] = {}

    def apply(self, made: Change) -> None:
        for key in made.deletes:
            self.state.pop(key, None)
        self.state |= made.puts
        self.cursors |= {cursor.source: cursor for cursor in made.cursors}
        self.story += made.story
        for event in made.events:
            self.events.setdefault(event.id, event)
        self.actions |= {action.action.key: action for action in made.actions}

    def holds(self, store: SqliteStore) -> None:
        assert store.load_state() == self.state
        assert store.cursors() == self.cursors
        assert list(store.story(limit=100_000)) == self.story
        assert list(store.actions()) == list(self.actions.values())
        assert list(store.owed_actions()) == [owing for owing in self.actions.values() if owing.state == "owed"]
        for number in range(10):
            event_id = EventId(f"kmsg:5a1e:{number}")
            assert store.event(event_id) == self.events.get(event_id)
            assert store.has_event(event_id) == (event_id in self.events)


class Memory(RuleBasedStateMachine):
    """A store that is committed to, closed, killed and opened again, beside what it must answer."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuguard-store-"))
        self.generation = 0
        self.live = Live()
        self.store = SqliteStore(self.folder / "0" / "gpuguard.db", clock=ManualClock())

    @rule(made=CHANGES)
    def commit(self, made: Change) -> None:
        self.store.commit(made)
        self.live.apply(made)

    @rule()
    def end_well_and_start_again(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.store.path, clock=ManualClock())

    @rule()
    def die_and_start_again(self) -> None:
        self.generation += 1
        path = copied(self.store.path, self.folder / str(self.generation))
        self.store.close()
        opened = open_store(path, clock=ManualClock())
        assert opened.replaced is None
        self.store = opened.store

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def reload_equals_live(self) -> None:
        self.live.holds(self.store)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)


Memory.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_reload_equals_live = Memory.TestCase


def copied(path: Path, into: Path) -> Path:
    """The files as they lie on disk now, as after a power cut."""
    into.mkdir()
    for suffix in ("", "-wal"):
        if (part := path.with_name(path.name + suffix)).exists():
            shutil.copy(part, into / part.name)
    return into / path.name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_a_log_torn_at_any_byte_holds_whole_changes_only(seed: int, cuts: list[float]) -> None:
    """A power cut tears the log anywhere: what is left is every change up to some point, and no half of the next."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = SqliteStore(folder / "live" / "gpuguard.db", clock=ManualClock())
        log = store.path.with_name("gpuguard.db-wal")
        dice, written = Random(seed), [0]
        ends = [log.stat().st_size]
        for _ in range(12):
            written.append(written[-1] + dice.randint(1, 3))
            store.commit(joined(range(written[-2] + 1, written[-1] + 1)))
            ends.append(log.stat().st_size)
        assert ends == sorted(set(ends)), "the log was folded meanwhile: the cut would not be one in time"
        for number, share in enumerate(cuts):
            cut = int(ends[0] + share * (ends[-1] - ends[0]))
            path = copied(store.path, folder / str(number))
            os.truncate(path.with_name("gpuguard.db-wal"), cut)
            opened = open_store(path, clock=ManualClock())
            assert opened.replaced is None
            whole = max(count for count, end in zip(written, ends, strict=True) if end <= cut)
            assert last_number(opened.store) == whole
            opened.store.close()
        store.close()


def joined(numbers: range) -> Change:
    """One change with all the parts of several."""
    parts = [change(number) for number in numbers]
    return Change(
        cursors=parts[-1].cursors,
        puts=parts[-1].puts,
        story=tuple(e for part in parts for e in part.story),
        events=tuple(e for part in parts for e in part.events),
        actions=tuple(a for part in parts for a in part.actions),
    )


def last_number(store: SqliteStore) -> int:
    """The number of the last change, after a look that every table agrees on it."""
    story = [e.detail["number"] for e in store.story(limit=100_000)]
    last = len(story)
    assert story == [e.detail["number"] for e in map(entry, range(1, last + 1))]
    assert [action.action.key for action in store.owed_actions()] == [f"drain/{n}" for n in range(1, last + 1)]
    assert store.has_event(EventId(f"kmsg:5a1e:{last}")) == (last > 0)
    assert not store.has_event(EventId(f"kmsg:5a1e:{last + 1}"))
    assert {source: int(cursor.position) for source, cursor in store.cursors().items()} == (
        {"kmsg": last} if last else {}
    )
    assert store.load_state().get("subject/gpu", b"0") == b"%d" % last
    return last


CHILD = """
import sys
from pathlib import Path
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.sqlite import open_store
from tests.support.stored import change
opened = open_store(Path(sys.argv[1]), clock=ManualClock())
assert opened.replaced is None, opened.replaced
number = len(opened.store.story(limit=100_000))
print(number, flush=True)
while True:
    number += 1
    opened.store.commit(change(number))
    print(number, flush=True)
"""


def test_killed_at_any_moment_nothing_committed_is_lost(tmp_path: Path) -> None:
    path, dice, said = tmp_path / "state" / "gpuguard.db", Random(20), 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        first = int(child.stdout.readline())
        assert first in (said, said + 1), "more or less than what was acknowledged came back"
        select.select([], [], [], dice.uniform(0.0, 0.03))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().splitlines(keepends=True)
        child.stdout.close()
        child.wait()
        said = max([first, *(int(row) for row in rest if row.endswith(b"\n"))])
    store = SqliteStore(path, clock=ManualClock())
    assert last_number(store) in (said, said + 1)
    assert said > 8
    store.close()
