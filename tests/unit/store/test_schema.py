"""Each step of the schema is there whole or not at all, and a database of every version can be brought up to date."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.store import schema


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:", isolation_level=None)
    yield opened
    opened.close()


def tables(connection: sqlite3.Connection) -> set[str]:
    return {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_newest_schema_has_every_table(connection: sqlite3.Connection) -> None:
    schema.migrate(connection, 0)
    assert tables(connection) == {"state", "cursors", "story", "events", "actions", "samples"}
    assert schema.version_of(connection, Path("x")) == schema.newest()


def test_to_migrate_twice_changes_nothing(connection: sqlite3.Connection) -> None:
    schema.migrate(connection, 0)
    connection.execute("INSERT INTO state VALUES ('drain', x'00')")
    schema.migrate(connection, schema.newest())
    assert connection.execute("SELECT count(*) FROM state").fetchone() == (1,)


def test_a_broken_step_leaves_the_version_before(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = schema.steps()
    broken = (*good, (len(good) + 1, "CREATE TABLE fresh (a);\nCREATE TABLE state (b);\n"))
    monkeypatch.setattr(schema, "steps", lambda: broken)
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        schema.migrate(connection, 0)
    assert "fresh" not in tables(connection)
    assert not connection.in_transaction
    assert connection.execute("PRAGMA user_version").fetchone() == (len(good),)


def test_statements_are_told_apart() -> None:
    sql = "-- first; not the end\nCREATE TABLE a (\n  b TEXT CHECK (b <> ';')\n);\nCREATE INDEX c ON a (b);\n"
    found = schema.statements(sql)
    assert len(found) == 2
    assert found[1] == "CREATE INDEX c ON a (b);"


def test_every_statement_of_a_step_ends() -> None:
    for _, sql in schema.steps():
        assert sqlite3.complete_statement("".join(schema.statements(sql)[-1:]))
        assert sql.rstrip().endswith(";")
