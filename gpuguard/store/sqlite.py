"""The agent's durable memory: one SQLite file, one writer.

A change is on disk, all of it, before anything is done outside. Write-ahead log with `synchronous=FULL`: a commit
returns after its fsync, so that a verdict survives a power loss; readers never wait for the writer.
Only this process writes: `agent.lock` in the same folder sees to it.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuguard.errors import NotUnderstood, StoreFailed
from gpuguard.model.samples import Stretch
from gpuguard.model.story import KEPT_FOREVER, Change
from gpuguard.ports import Clock
from gpuguard.store import samples
from gpuguard.store.ballast import Ballast
from gpuguard.store.failures import failed, is_corrupt, is_full, unusable
from gpuguard.store.lock import AgentLock
from gpuguard.store.modes import close_to_others, create_private
from gpuguard.store.reader import DATABASE_NAME, Queries
from gpuguard.store.retention import Settings, forget
from gpuguard.store.rows import (
    ACTION_COLUMNS,
    STORY_COLUMNS,
    UnknownVerb,
    action_row,
    as_text,
    clean,
    event_row,
    story_row,
)
from gpuguard.store.schema import migrate, newest, version_of

__all__ = ["DATABASE_NAME", "Settings", "SqliteStore", "StoreOpened", "open_store"]

# Nobody but a person with the sqlite3 shell ever holds the file for long. Units: seconds
_PATIENCE = 2.0

# How many new rows pass between two looks at what may be forgotten.
_ROWS_BETWEEN_FORGETTING = 500

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 256",  # pages; folding 1 MiB into the file takes one more fsync, every hundred commits
    "PRAGMA journal_size_limit = 1048576",
    "PRAGMA cache_size = -512",  # KiB; the agent asks little of its own memory
    "PRAGMA temp_store = MEMORY",
    "PRAGMA trusted_schema = OFF",
)

_STORY_MARKS = ", ".join("?" * len(STORY_COLUMNS.split(",")))
_ACTION_SETS = ", ".join(f"{name} = excluded.{name}" for name in (*ACTION_COLUMNS.split(", "), "at_utc"))


class SqliteStore(Queries):
    """`ports.Store` at `path`, which is locked, brought to the newest schema, and sound.

    `forgetting_failed` counts how often old rows could not be removed: the change before it was written all the same.
    Raises  StoreFailed when another agent holds the folder, or the file cannot be used
    """

    def __init__(
        self, path: Path, *, clock: Clock, settings: Settings | None = None, keep: Collection[str] = KEPT_FOREVER
    ) -> None:
        self._clock = clock
        self._settings = settings or Settings()
        self._keep = tuple(sorted(keep))
        self._mutex = threading.Lock()
        self._since_forgetting = 0
        self._condensed = 0.0
        self.forgetting_failed = 0
        _make_folder(path.parent)
        self._lock = AgentLock(path.parent)
        try:
            self._ballast = Ballast(path.parent)
            super().__init__(_open(path, self._ballast), path)
            self._ballast.make()
        except BaseException:
            self._lock.release()
            raise

    def commit(self, change: Change) -> None:
        """All of the change is on disk and survives a power loss; when it raises, none of it counts.

        On a full disk the ballast is given up for a change that owes or ends an action, and for nothing less: faults
        that only go into the story could otherwise use up, one by one, the room that a drain will need.
        Raises  StoreFailed
        """
        if not change:
            return
        with self._mutex:
            try:
                self._write(change)
            except sqlite3.Error as error:
                if not (is_full(error) and change.actions and self._ballast.free()):
                    raise failed(error, self._path, "write") from error
                try:
                    self._write(change)
                except sqlite3.Error as again:
                    raise failed(again, self._path, "write") from again
            self._ballast.restore()
            self._tidy(change)

    def keep_samples(self, stretches: Sequence[Stretch]) -> None:
        """The course of what was measured is on disk, what is too old of it is not, and an hour that is over has its
        minutes. The ballast is none of its business.

        Raises  StoreFailed, and then none of it was kept
        """
        utc = self._clock.now().utc
        connection = self._connection
        with self._mutex:
            try:
                connection.execute("BEGIN IMMEDIATE")
                samples.keep(connection, stretches)
                if utc is not None:
                    self._condense(utc)
                    samples.forget(connection, self._settings, utc)
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise failed(error, self._path, "write") from error
                raise

    def close(self) -> None:
        """Everything is folded into the one file, and the folder is free for another agent."""
        with self._mutex:
            super().close()
            self._lock.release()

    def _condense(self, utc: float) -> None:
        """Looks for hours to condense once an hour, and goes on until none is left."""
        hour = utc // samples.HOUR
        if hour != self._condensed and not samples.condense_hours(self._connection, utc):
            self._condensed = hour

    def _write(self, change: Change) -> None:
        connection = self._connection
        utc = self._clock.now().utc
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany("DELETE FROM state WHERE key = ?", ((clean(key),) for key in change.deletes))
            connection.executemany(
                "INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)",
                ((clean(key), value) for key, value in change.puts.items()),
            )
            connection.executemany(
                "INSERT OR IGNORE INTO events (event_id, at_utc, body) VALUES (?, ?, ?)", map(event_row, change.events)
            )
            connection.executemany(
                f"INSERT INTO story ({STORY_COLUMNS}) VALUES ({_STORY_MARKS})", map(story_row, change.story)
            )
            connection.executemany(
                f"INSERT INTO actions (key, seq, at_utc, {ACTION_COLUMNS}) "
                "VALUES (?, (SELECT coalesce(max(seq), 0) + 1 FROM actions), ?, ?, ?, ?, ?, ?) "
                f"ON CONFLICT (key) DO UPDATE SET {_ACTION_SETS}",
                ((clean(owed.action.key), utc, *action_row(owed)) for owed in change.actions),
            )
            connection.executemany(
                "INSERT OR REPLACE INTO cursors (source, boot, position) VALUES (?, ?, ?)",
                ((cursor.source, cursor.boot, clean(cursor.position)) for cursor in change.cursors),
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _tidy(self, change: Change) -> None:
        """Old rows are forgotten now and then; a failure is counted, never raised: the change itself is on disk."""
        self._since_forgetting += len(change.story) + len(change.events) + len(change.actions)
        if self._since_forgetting < _ROWS_BETWEEN_FORGETTING:
            return
        self._since_forgetting = 0
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            forget(connection, self._settings, self._keep, self._clock.now().utc)
            connection.execute("COMMIT")
        except sqlite3.Error:
            self.forgetting_failed += 1
            if connection.in_transaction:
                connection.execute("ROLLBACK")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOpened:
    """A store, and what a person must know about how it came to be: None, or what was found and moved aside."""

    store: SqliteStore
    replaced: str | None = None


def open_store(
    path: Path, *, clock: Clock, settings: Settings | None = None, keep: Collection[str] = KEPT_FOREVER
) -> StoreOpened:
    """The store at `path`; a damaged file was moved aside with every byte of it, and an empty memory stands instead.

    Raises  StoreFailed
    """
    try:
        return StoreOpened(store=SqliteStore(path, clock=clock, settings=settings, keep=keep))
    except _Damaged as damage:
        aside = _move_aside(path, clock)
        store = SqliteStore(path, clock=clock, settings=settings, keep=keep)
        return StoreOpened(
            store=store,
            replaced=f"{path} was damaged ({damage}); its bytes are kept in {aside}, the memory starts empty: drains "
            "that it knew are now orphans, see `gpuguard status` and `gpuguard resume --adopt`",
        )


class _Damaged(StoreFailed):
    """The content of the file is at fault."""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(error, folder, "make") from error


def _open(path: Path, ballast: Ballast) -> sqlite3.Connection:
    """A connection to a sound database of the newest schema.

    Raises  StoreFailed; _Damaged when the content is at fault
    """
    _close_to_others(path)
    sound = _look_first(path)
    try:
        connection = _connect(path)
    except sqlite3.Error as error:
        raise failed(error, path, "open") from error
    try:
        try:
            _prepare(connection, path, sound=sound)
        except sqlite3.Error as error:
            if not (is_full(error) and ballast.free()):
                raise
            _prepare(connection, path, sound=sound)
        return connection
    except sqlite3.Error as error:
        connection.close()
        if is_corrupt(error):
            raise _Damaged(str(error)) from error
        raise failed(error, path, "open") from error
    except BaseException:
        connection.close()
        raise


def _close_to_others(path: Path) -> None:
    """The database is there, maybe empty, and with its -wal and -shm nobody else's to open.

    What SQLite makes beside a database gets the database's mode, whatever the umask is.
    Raises  StoreFailed
    """
    try:
        os.close(create_private(path, os.O_RDWR | os.O_EXCL))
    except FileExistsError:
        for suffix in ("", "-wal", "-shm"):
            close_to_others(path.with_name(path.name + suffix))
    except OSError as error:
        raise unusable(error, path, "make") from error


def _connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    connection.text_factory = as_text
    return connection


def _look_first(path: Path) -> bool:
    """Whether the content was found sound, through a connection that cannot write.

    One that can write folds the log into the file when it closes, and damaged bytes would not be kept as they were
    found. What this look cannot settle (a first start that was interrupted) the real one does.
    Raises  _Damaged
    """
    if not path.is_file() or path.stat().st_size == 0:
        return False
    try:
        with contextlib.closing(_connect(path, "ro")) as connection:
            _examine(connection, path)
    except sqlite3.Error as error:
        if is_corrupt(error):
            raise _Damaged(str(error)) from error
        return False
    return True


def _examine(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema; the content is sound.

    Raises  StoreFailed when it is not ours; _Damaged
    """
    version = version_of(connection, path)
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _Damaged(str(verdict).splitlines()[-1])
    if version == newest():
        try:
            Queries(connection, path).actions()
        except UnknownVerb as error:
            raise StoreFailed(
                f"{path}: {error}, and which is still owed; it was left untouched: install the newer gpuguard again, "
                "or move the file away to start with an empty memory"
            ) from error
        except NotUnderstood as error:
            raise _Damaged(str(error)) from error
    return version


def _prepare(connection: sqlite3.Connection, path: Path, *, sound: bool) -> None:
    version = version_of(connection, path) if sound else _examine(connection, path)
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    migrate(connection, version)


def _move_aside(path: Path, clock: Clock) -> Path:
    """Where the damaged file lies now, with its -wal and -shm.

    Raises  StoreFailed
    """
    utc = clock.now().utc or 0.0
    stamp = datetime.fromtimestamp(utc, UTC).strftime("%Y%m%dT%H%M%SZ")
    aside, number = path.with_name(f"{path.name}.corrupt-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    try:
        # The log first: a file without its log is only old, a log beside a new file would be taken for its own.
        for suffix in ("-wal", "-shm", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise unusable(error, path, "move aside") from error
    return aside
