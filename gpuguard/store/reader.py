"""Answers from the memory, for commands: while the agent runs, when it is dead, and for any user who may read it.

Three ways in, tried in this order: read-only beside the agent; as a file that nobody changes, when the agent ended
well (no -wal beside it) and this user may not make the -shm that a live reader needs; on a copy, when the agent died
with a -wal but the -shm is gone.
"""

import os
import sqlite3
import tempfile
from pathlib import Path
from shutil import copyfile

from gpuguard.errors import Absent, StoreFailed
from gpuguard.model.events import Cursor, LogLine
from gpuguard.model.ids import BootId, EventId, SubjectId
from gpuguard.model.samples import Grain, Stretch
from gpuguard.model.story import OwedAction, StoryEntry
from gpuguard.store import samples
from gpuguard.store.failures import failed, unusable
from gpuguard.store.rows import (
    ACTION_COLUMNS,
    STORY_COLUMNS,
    Column,
    Row,
    UnknownVerb,
    as_text,
    clean,
    log_line,
    owed_action,
    story_entry,
)
from gpuguard.store.schema import newest, version_of

DATABASE_NAME = "gpuguard.db"

# A reader waits this long for the moment in which the agent recovers or folds the log. Units: seconds
_PATIENCE = 2.0


class Queries:
    """The questions of `ports.StoreReader`, on any connection."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def load_state(self) -> dict[str, bytes]:
        """The core's own state, by key."""
        return {str(key): bytes(value) for key, value in self._ask("SELECT key, value FROM state ORDER BY key")}  # type: ignore[arg-type]  # the column is a BLOB

    def cursors(self) -> dict[str, Cursor]:
        """How far each source has read, by source."""
        rows = self._ask("SELECT source, boot, position FROM cursors ORDER BY source")
        return {
            str(source): Cursor(source=str(source), boot=BootId(str(boot)), position=str(position))
            for source, boot, position in rows
        }

    def actions(self) -> tuple[OwedAction, ...]:
        """Every action that is known, in the order in which they were first owed; less what a newer gpuguard did and
        does not owe any more, by a verb that this one does not know.

        Raises  NotUnderstood; UnknownVerb for such a one that is owed
        """
        found = []
        for row in self._ask(f"SELECT {ACTION_COLUMNS} FROM actions ORDER BY seq"):
            try:
                found.append(owed_action(row))
            except UnknownVerb as error:
                if not error.ended:
                    raise
        return tuple(found)

    def owed_actions(self) -> tuple[OwedAction, ...]:
        """The actions that must still be sent, oldest first.

        Raises  NotUnderstood
        """
        sql = f"SELECT {ACTION_COLUMNS} FROM actions WHERE state = 'owed' ORDER BY seq"
        return tuple(map(owed_action, self._ask(sql)))

    def story(
        self, subject: SubjectId | None = None, since: float | None = None, limit: int = 1000
    ) -> tuple[StoryEntry, ...]:
        """The newest `limit` entries, oldest of them first; `since` in seconds since 1970.

        Raises  NotUnderstood
        """
        wanted = ["(at_utc IS NULL OR at_utc >= ?)"] if since is not None else []
        values: list[Column] = [since] if since is not None else []
        if subject is not None:
            wanted.append("subject = ?")
            values.append(clean(subject))
        where = f"WHERE {' AND '.join(wanted)} " if wanted else ""
        rows = self._ask(f"SELECT {STORY_COLUMNS} FROM story {where}ORDER BY seq DESC LIMIT ?", *values, limit)
        return tuple(story_entry(row) for row in reversed(rows))

    def event(self, event_id: EventId) -> LogLine | None:
        """The line behind an id; None when it was not kept.

        Raises  NotUnderstood
        """
        rows = self._ask("SELECT body FROM events WHERE event_id = ?", clean(event_id))
        return log_line(rows[0][0]) if rows else None

    def has_event(self, event_id: EventId) -> bool:
        """Whether a line with this id was stored."""
        return bool(self._ask("SELECT 1 FROM events WHERE event_id = ?", clean(event_id)))

    def samples(self, gpu: str, grain: Grain, since: float, until: float) -> tuple[Stretch, ...]:
        """What was measured of one GPU, by stretches that begin in a span of time, oldest first.

        Raises  StoreFailed
        """
        try:
            return tuple(samples.read(self._connection, gpu, grain, since, until))
        except sqlite3.Error as error:
            raise failed(error, self._path, "read") from error

    def close(self) -> None:
        """The file is free."""
        self._connection.close()

    def _ask(self, sql: str, *values: Column) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise failed(error, self._path, "read") from error


class SqliteReader(Queries):
    """`ports.StoreReader` over a memory that belongs to somebody else."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, copy: "tempfile.TemporaryDirectory[str] | None" = None
    ) -> None:
        super().__init__(connection, path)
        self._copy = copy

    def close(self) -> None:
        """The file is free, a copy of it is gone."""
        super().close()
        if self._copy is not None:
            self._copy.cleanup()


def open_reader(path: Path) -> SqliteReader:
    """A reader of the memory at `path`; nothing is written beside it.

    Raises  Absent when there is none; StoreFailed when it cannot be read, or was written by a newer gpuguard
    """
    try:
        if path.stat().st_size == 0:
            raise Absent(f"{path} is empty: the agent has not finished its first start; try again in a moment")
    except FileNotFoundError as error:
        raise Absent(
            f"no memory at {path}: no agent has run here; start it (`systemctl start gpuguard-agent`) or name its "
            "folder with --state-dir"
        ) from error
    except OSError as error:
        raise unusable(error, path, "read") from error
    if not os.access(path, os.R_OK):
        raise StoreFailed(
            f"{path} may be read by its owner and group only; ask as root or as a member of that group "
            f"(`stat {path}` names both)"
        )
    try:
        return _checked(_connect(path, "mode=ro"), path)
    except sqlite3.Error as live:
        try:
            return _without_shm(path)
        except sqlite3.Error:
            raise failed(live, path, "read") from live
        except OSError as error:
            raise unusable(error, path, "read") from error


def _without_shm(path: Path) -> SqliteReader:
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or log.stat().st_size == 0:
        return _checked(_connect(path, "mode=ro&immutable=1"), path)
    copy = tempfile.TemporaryDirectory(prefix="gpuguard-")
    try:
        copied = Path(copy.name) / path.name
        copyfile(path, copied)
        copyfile(log, copied.with_name(log.name))
        return _checked(_connect(copied, "mode=rw"), path, copy)
    except (OSError, sqlite3.Error, StoreFailed):
        copy.cleanup()
        raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{mode}"
    connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    connection.text_factory = as_text
    return connection


def _checked(
    connection: sqlite3.Connection, path: Path, copy: "tempfile.TemporaryDirectory[str] | None" = None
) -> SqliteReader:
    try:
        version = version_of(connection, path)
        if version < newest():
            raise StoreFailed(
                f"{path} has schema version {version}, this gpuguard reads {newest()}; restart the agent, which brings "
                "it up to date"
            )
    except (sqlite3.Error, StoreFailed):
        connection.close()
        raise
    return SqliteReader(connection, path, copy)
