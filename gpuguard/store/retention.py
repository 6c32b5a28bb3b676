"""What may be forgotten: old story entries and lines, and actions that are settled.

Never forgotten: entries of a kind in the kept set, the lines they rest on, and actions still owed. Age alone never
empties the memory: the newest tenth of the allowed rows stays whatever the clock says, since a clock that jumps to
2099 would otherwise take everything with it.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from gpuguard.model.units import Bytes, Seconds

DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is remembered; the section [store].

    `story_rows`, `event_rows` and `action_rows` bound the number of rows, `keep_for` their age, `max_bytes` the space
    that all of it takes in the file. What must never be forgotten does not count. Samples of what was measured have
    bounds of their own; with the default ones all of the file stays below 200 MB.
    """

    story_rows: int = 20_000
    event_rows: int = 20_000
    action_rows: int = 1_000
    keep_for: Seconds = Seconds(400 * DAY)  # a year of history, and room to look back at the same month
    max_bytes: Bytes = Bytes(64 * 1024 * 1024)
    samples_full_for: Seconds = Seconds(DAY)  # what was measured, as often as it was
    samples_minutes_for: Seconds = Seconds(30 * DAY)  # its mean, lowest and highest of each minute
    samples_bytes: Bytes = Bytes(120 * 1024 * 1024)  # beyond this the oldest samples go, whatever their age

    def __post_init__(self) -> None:
        for name in ("story_rows", "event_rows", "action_rows"):
            if getattr(self, name) < 100:
                raise ValueError(f"{name}: must be at least 100; a single burst of one fault would not fit")
        if self.keep_for < DAY:
            raise ValueError(f"keep_for: must be at least {DAY:.0f} seconds, one day")
        for name in ("max_bytes", "samples_bytes"):
            if getattr(self, name) < 1024 * 1024:
                raise ValueError(f"{name}: must be at least 1048576, one mebibyte")
        for name in ("samples_full_for", "samples_minutes_for"):
            if getattr(self, name) < 3600.0:
                raise ValueError(f"{name}: must be at least 3600 seconds, one hour")


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the rows take in the file, less what earlier deletions left free in it, and less the samples."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    samples = int(connection.execute("SELECT coalesce(sum(bytes), 0) FROM samples").fetchone()[0])
    return max(0, (pages - free) * size - samples)


def forget(connection: sqlite3.Connection, settings: Settings, keep: Collection[str], utc: float | None) -> int:
    """Number of rows that were forgotten; afterwards the memory is within its bounds, or only holds what must stay.

    The connection is inside a transaction of the caller.
    """
    forgotten = _forget(connection, settings, keep, utc, share=1.0)
    share = 0.5
    while used_bytes(connection) > settings.max_bytes and share > 0.001:
        forgotten += _forget(connection, settings, keep, utc, share=share)
        share /= 2
    return forgotten


def _forget(
    connection: sqlite3.Connection, settings: Settings, keep: Collection[str], utc: float | None, *, share: float
) -> int:
    kept = ", ".join("?" * len(keep))
    oldest = None if utc is None else utc - settings.keep_for
    story = _bounds(connection, "story", f"kind NOT IN ({kept})", tuple(keep), int(settings.story_rows * share))
    lines = _bounds(connection, "events", "true", (), int(settings.event_rows * share))
    acts = _bounds(connection, "actions", "state <> 'owed'", (), int(settings.action_rows * share))
    before = connection.total_changes
    connection.execute(
        f"DELETE FROM story WHERE kind NOT IN ({kept}) AND (seq <= ? OR (seq <= ? AND at_utc < ?))",
        (*keep, *story, oldest),
    )
    connection.execute(
        "DELETE FROM events WHERE (seq <= ? OR (seq <= ? AND at_utc < ?)) "
        f"AND NOT EXISTS (SELECT 1 FROM story WHERE story.event_id = events.event_id AND story.kind IN ({kept}))",
        (*lines, oldest, *keep),
    )
    connection.execute(
        "DELETE FROM actions WHERE state <> 'owed' AND (seq <= ? OR (seq <= ? AND at_utc < ?))", (*acts, oldest)
    )
    return connection.total_changes - before


def _bounds(
    connection: sqlite3.Connection, table: str, among: str, values: tuple[str, ...], rows: int
) -> tuple[int, int]:
    """The seq up to which rows go for their number, and the one up to which they may go for their age."""

    def older_than(newest: int) -> int:
        sql = f"SELECT seq FROM {table} WHERE {among} ORDER BY seq DESC LIMIT 1 OFFSET ?"
        row = connection.execute(sql, (*values, newest)).fetchone()
        return int(row[0]) if row else 0

    return older_than(rows), older_than(max(rows // 10, 1))
