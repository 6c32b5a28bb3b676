"""The version of the schema, and the way to it.

A database is ours when its application id says so, or when it is still empty.
"""

import re
import sqlite3
from functools import cache
from pathlib import Path

from gpuguard.errors import InvariantBroken, StoreFailed

APPLICATION_ID = 0x67677561  # "ggua", in the file's header: another program's database is never touched

_STEP = re.compile(r"(\d{4})_\w+\.sql$")


@cache
def steps() -> tuple[tuple[int, str], ...]:
    """Number and SQL of every migration, in order.

    Raises  InvariantBroken when a number is missing or given twice
    """
    folder = Path(__file__).parent / "migrations"
    found = sorted((int(match[1]), path) for path in folder.iterdir() if (match := _STEP.match(path.name)))
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise InvariantBroken(f"migrations are not numbered 1, 2, 3...: {[path.name for _, path in found]}")
    return tuple((number, path.read_text(encoding="utf-8")) for number, path in found)


def newest() -> int:
    """The version this release writes."""
    return len(steps())


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version the database has now, 0 for an empty one.

    Raises  StoreFailed when it is another program's, or of a newer gpuguard
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreFailed(
            f"{path} is a database of another program; move it away or name another folder with --state-dir"
        )
    if version > newest():
        raise StoreFailed(
            f"{path} has schema version {version}, this gpuguard knows up to {newest()}; it was left untouched: "
            "install the newer gpuguard again, or move the file away to start with an empty memory"
        )
    return version


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """The database has the newest schema; each step is there whole or not at all.

    The connection is in autocommit mode.
    """
    for number, sql in steps()[version:]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements(sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def statements(sql: str) -> list[str]:
    """The statements of a migration, one by one: `executescript` would commit on its own."""
    found: list[str] = []
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending.strip())
            pending = ""
    return found
