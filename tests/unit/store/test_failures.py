"""Every failure of the disk or of SQLite reads as: what failed, where, what to do."""

import errno
import sqlite3
from pathlib import Path

import pytest

from gpuguard.store.failures import failed, is_corrupt, is_full, unusable

PATH = Path("/var/lib/gpuguard/gpuguard.db")


def error(code: int, name: str) -> sqlite3.OperationalError:
    made = sqlite3.OperationalError("it went wrong")
    made.sqlite_errorcode, made.sqlite_errorname = code, name
    return made


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_BUSY, "fuser /var/lib/gpuguard/gpuguard.db"),
        (sqlite3.SQLITE_FULL, "df /var/lib/gpuguard"),
        (sqlite3.SQLITE_IOERR_FSYNC, "dmesg"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "make /var/lib/gpuguard writable"),
        (sqlite3.SQLITE_CORRUPT_INDEX, "moves the file aside"),
        (sqlite3.SQLITE_MISUSE, "restart it"),
    ],
)
def test_the_next_step_follows_the_code(code: int, words: str) -> None:
    told = str(failed(error(code, "SQLITE_X"), PATH, "write"))
    assert told.startswith(f"cannot write {PATH}: it went wrong (SQLITE_X); ")
    assert words in told


def test_an_error_of_pythons_own_has_a_name_too() -> None:
    told = str(failed(sqlite3.ProgrammingError("Cannot operate on a closed database."), PATH, "read"))
    assert "(ProgrammingError); look at the agent's log" in told


@pytest.mark.parametrize(
    ("code", "full", "corrupt"),
    [
        (sqlite3.SQLITE_FULL, True, False),
        (sqlite3.SQLITE_IOERR_SHMSIZE, True, False),
        (sqlite3.SQLITE_IOERR_WRITE, True, False),
        (sqlite3.SQLITE_IOERR_READ, False, False),
        (sqlite3.SQLITE_NOTADB, False, True),
        (sqlite3.SQLITE_CORRUPT_VTAB, False, True),
    ],
)
def test_a_full_disk_and_a_damaged_file_are_told_apart(code: int, full: bool, corrupt: bool) -> None:
    made = error(code, "SQLITE_X")
    assert (is_full(made), is_corrupt(made)) == (full, corrupt)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "free space"), (errno.EROFS, "make it writable"), (errno.ENOTDIR, "check the path")],
)
def test_the_file_systems_errors_have_next_steps(number: int, words: str) -> None:
    assert words in str(unusable(OSError(number, "no"), PATH, "open"))
