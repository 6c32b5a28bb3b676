"""What is forgotten, and what never is."""

from pathlib import Path

import pytest

from gpuguard.model.story import Change
from gpuguard.runtime.clock import ManualClock
from gpuguard.store.retention import DAY, Settings, forget, used_bytes
from gpuguard.store.sqlite import SqliteStore
from tests.support.stored import entry, instant, line, owed

SMALL = Settings(story_rows=100, event_rows=100, action_rows=100)
NOW = instant(0).utc


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "gpuguard.db", clock=ManualClock())


def numbers(store: SqliteStore) -> list[object]:
    found = [e.detail["number"] for e in store.story(limit=10_000)]
    store.close()
    return found


def test_the_oldest_go_when_there_are_too_many(store: SqliteStore) -> None:
    store.commit(Change(story=tuple(entry(n, kind="note") for n in range(250))))
    assert forget(store._connection, SMALL, ("verdict",), NOW) == 150
    assert numbers(store) == list(range(150, 250))


def test_verdicts_and_the_lines_they_rest_on_stay(store: SqliteStore) -> None:
    story = (entry(0, kind="verdict", event_id=line(0).id), entry(1, kind="note", event_id=line(1).id))
    store.commit(Change(story=story, events=tuple(map(line, range(200)))))
    store.commit(Change(story=tuple(entry(n, kind="note") for n in range(2, 300))))
    forget(store._connection, SMALL, ("verdict",), NOW)
    assert store.has_event(line(0).id)
    assert not store.has_event(line(1).id)
    assert numbers(store) == [0, *range(200, 300)]


def test_age_takes_what_number_would_leave(store: SqliteStore) -> None:
    store.commit(Change(story=tuple(entry(n, kind="note") for n in range(50))))
    later = NOW + SMALL.keep_for + 30 if NOW else None
    forget(store._connection, SMALL, (), later)
    assert numbers(store) == list(range(30, 50))


def test_a_clock_gone_mad_leaves_the_newest_tenth(store: SqliteStore) -> None:
    store.commit(Change(story=tuple(entry(n, kind="note") for n in range(50)), events=tuple(map(line, range(50)))))
    forget(store._connection, SMALL, (), 1e12)
    assert store.has_event(line(40).id)
    assert numbers(store) == list(range(40, 50))


def test_without_a_date_only_the_number_counts(store: SqliteStore) -> None:
    store.commit(Change(story=tuple(entry(n, kind="note") for n in range(100))))
    assert forget(store._connection, SMALL, (), None) == 0
    assert len(numbers(store)) == 100


def test_an_owed_action_is_never_forgotten(store: SqliteStore) -> None:
    store.commit(Change(actions=(owed(0), *(owed(n, state="done") for n in range(1, 300)))))
    forget(store._connection, SMALL, (), NOW)
    assert [action.action.key for action in store.actions()] == [f"drain/{n}" for n in (0, *range(200, 300))]
    store.close()


def test_space_is_bounded_too(store: SqliteStore) -> None:
    import msgspec

    settings = Settings(max_bytes=1024 * 1024)  # type: ignore[arg-type]  # Bytes is an int
    for start in range(0, 400, 100):
        wide = tuple(msgspec.structs.replace(line(n), raw="x" * 16_000) for n in range(start, start + 100))
        store.commit(Change(events=wide, story=(entry(start),)))
    assert used_bytes(store._connection) > 5 * 1024 * 1024
    forget(store._connection, settings, ("verdict",), NOW)
    assert used_bytes(store._connection) <= 1024 * 1024
    assert store.has_event(line(399).id)
    assert len(numbers(store)) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"story_rows": 5}, "story_rows: must be at least 100"),
        ({"keep_for": 60.0}, f"keep_for: must be at least {DAY:.0f}"),
        ({"max_bytes": 10}, "max_bytes: must be at least"),
    ],
)
def test_bounds_too_small_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**given)  # type: ignore[arg-type]  # one wrong value at a time
