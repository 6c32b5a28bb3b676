"""Keeps the course of what was measured: at the full rate for a day, by the minute for a month, in bounded space.

A row holds a minute of one GPU (or an hour of minutes), its columns as 32-bit floats one after the other, compressed:
a float a value would take ten times the room as rows of SQL. What is old goes a little at a time, so that a clock that
jumps ahead does not take a day with it.
"""

import contextlib
import math
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.samples import HIGHEST, LOWEST, Grain, Stretch
from gpuguard.store.retention import Settings

MINUTE, HOUR = 60.0, 3600.0
# Rows of one grain that go at a time; a minute adds one for each GPU, and no node has as many.
FORGOTTEN_AT_ONCE = 64
# What a row takes in the file beyond its body: keys, indices, and the rest of a page.
ROW_OVERHEAD = 200


class _Body(msgspec.Struct, array_like=True):
    """How a stretch lies in a row."""

    names: list[str]
    offsets: bytes
    columns: list[bytes]


def pack(stretch: Stretch) -> bytes:
    """The stretch as bytes."""
    body = _Body(
        list(stretch.columns), _floats(stretch.offsets), [_floats(values) for values in stretch.columns.values()]
    )
    return zlib.compress(msgspec.msgpack.encode(body), 6)


def _floats(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


def unpack(gpu: str, grain: Grain, start: float, body: object) -> Stretch:
    """The stretch in a row.

    Raises  NotUnderstood, also where the column holds no bytes: SQLite keeps whatever it is given
    """
    try:
        if not isinstance(body, bytes):
            raise ValueError(f"{type(body).__name__} where bytes should be")
        told = msgspec.msgpack.decode(zlib.decompress(body), type=_Body)
        offsets, columns = array("f", told.offsets), [array("f", part) for part in told.columns]
        if len(columns) != len(told.names) or any(len(column) != len(offsets) for column in columns):
            raise ValueError("columns of unlike length")
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        raise NotUnderstood(f"samples of {gpu} from {start:.0f} cannot be read: {error}", repr(body)[:80]) from error
    named = zip(told.names, columns, strict=True)
    return Stretch(
        gpu=gpu, grain=grain, start=start, offsets=tuple(offsets), columns={name: tuple(part) for name, part in named}
    )


def condense(stretches: Iterable[Stretch]) -> Stretch | None:
    """One mean, lowest and highest a minute, of stretches of one GPU within one hour; None of nothing."""
    minutes = [s for s in sorted(stretches, key=lambda s: s.start) if s.offsets]
    if not minutes:
        return None
    start = minutes[0].start // HOUR * HOUR
    columns: dict[str, list[float]] = {}
    for place, stretch in enumerate(minutes):
        for name, values in stretch.columns.items():
            known = [value for value in values if not math.isnan(value)]
            if not known:
                continue
            for key, value in (
                (name, sum(known) / len(known)), (name + LOWEST, min(known)), (name + HIGHEST, max(known))
            ):  # fmt: skip
                columns.setdefault(key, [math.nan] * len(minutes))[place] = value
    return Stretch(
        gpu=minutes[0].gpu, grain="minute", start=start, offsets=tuple(s.start - start for s in minutes),
        columns={name: tuple(values) for name, values in columns.items()},
    )  # fmt: skip


def keep(connection: sqlite3.Connection, stretches: Iterable[Stretch]) -> None:
    """The stretches are there, inside the caller's transaction; one that was there already is replaced."""
    for stretch in stretches:
        body = pack(stretch)
        connection.execute(
            "INSERT OR REPLACE INTO samples (gpu, grain, start_utc, bytes, body) VALUES (?, ?, ?, ?, ?)",
            (stretch.gpu, stretch.grain, stretch.start, len(body) + ROW_OVERHEAD, body),
        )


def condense_hours(connection: sqlite3.Connection, utc: float) -> int:
    """Hours that are over and have a full course have their minutes, inside the caller's transaction; how many were
    made.

    One hour of each GPU at a time, the oldest first: after a long pause of the agent the rest follows with the next.
    Rows of that hour that cannot be read go, as they would stand in the way of every later hour.
    """
    over = utc // HOUR * HOUR
    due = connection.execute(
        "SELECT gpu, min(start_utc) FROM samples AS full WHERE grain = 'full' AND start_utc < ? AND NOT EXISTS ("
        "SELECT 1 FROM samples AS m WHERE m.gpu = full.gpu AND m.grain = 'minute' "
        "AND m.start_utc = CAST(full.start_utc / 3600 AS INTEGER) * 3600.0) GROUP BY gpu",
        (over,),
    ).fetchall()
    for gpu, first in due:
        hour = first // HOUR * HOUR
        _drop_unreadable(connection, gpu, hour)
        made = condense(read(connection, gpu, "full", hour, hour + HOUR))
        if made is not None:
            keep(connection, [made])
    return len(due)


def read(connection: sqlite3.Connection, gpu: str, grain: Grain, since: float, until: float) -> Iterator[Stretch]:
    """The stretches of one GPU that begin in a span of time, oldest first; what a damaged row held is a gap."""
    for _, start, body in _rows(connection, gpu, grain, since, until):
        with contextlib.suppress(NotUnderstood):
            yield unpack(gpu, grain, start, body)


def _rows(
    connection: sqlite3.Connection, gpu: str, grain: Grain, since: float, until: float
) -> Iterator[tuple[int, float, object]]:
    yield from connection.execute(
        "SELECT seq, start_utc, body FROM samples WHERE gpu = ? AND grain = ? AND start_utc >= ? AND start_utc < ? "
        "ORDER BY start_utc",
        (gpu, grain, since, until),
    )


def _drop_unreadable(connection: sqlite3.Connection, gpu: str, hour: float) -> None:
    for seq, start, body in list(_rows(connection, gpu, "full", hour, hour + HOUR)):
        try:
            unpack(gpu, "full", start, body)
        except NotUnderstood:
            connection.execute("DELETE FROM samples WHERE seq = ?", (seq,))


def forget(connection: sqlite3.Connection, settings: Settings, utc: float) -> int:
    """Rows that went because they are too old or take too much room, inside the caller's transaction."""
    before = connection.total_changes
    for grain, kept_for in (("full", settings.samples_full_for), ("minute", settings.samples_minutes_for)):
        _drop(connection, "grain = ? AND start_utc < ?", (grain, utc - kept_for))
    # The full rate goes first: it is the larger part, and its minutes are kept.
    for grain in ("full", "minute"):
        if used_bytes(connection) > settings.samples_bytes:
            _drop(connection, "grain = ?", (grain,))
    return connection.total_changes - before


def _drop(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> None:
    connection.execute(
        f"DELETE FROM samples WHERE seq IN (SELECT seq FROM samples WHERE {where} ORDER BY start_utc LIMIT ?)",
        (*values, FORGOTTEN_AT_ONCE),
    )


def used_bytes(connection: sqlite3.Connection) -> int:
    """What all samples take."""
    return int(connection.execute("SELECT coalesce(sum(bytes), 0) FROM samples").fetchone()[0])
