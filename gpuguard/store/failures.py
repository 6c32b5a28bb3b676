"""What SQLite and the file system say, as errors for people."""

import errno
import sqlite3
from pathlib import Path

from gpuguard.errors import StoreFailed

# Extended result codes end in the primary one: https://www.sqlite.org/rescode.html
_PRIMARY = 0xFF
_NO_ROOM = (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE)  # the file system is full, told as I/O errors

_NEXT_STEP = {
    sqlite3.SQLITE_BUSY: "another program holds the database; close it (`fuser {path}` names it)",
    sqlite3.SQLITE_LOCKED: "another program holds the database; close it (`fuser {path}` names it)",
    sqlite3.SQLITE_FULL: "free space on its file system (`df {folder}`); gpuguard tries again by itself",
    sqlite3.SQLITE_READONLY: "make {folder} writable for the agent's user, or name another with --state-dir",
    sqlite3.SQLITE_CANTOPEN: "check that {folder} exists and that this user may use it, or pass --state-dir",
    sqlite3.SQLITE_PERM: "make {folder} usable for this user, or name another with --state-dir",
    sqlite3.SQLITE_CORRUPT: "restart the agent: it moves the file aside and starts with an empty memory",
    sqlite3.SQLITE_NOTADB: "restart the agent: it moves the file aside and starts with an empty memory",
    sqlite3.SQLITE_IOERR: "look at the disk under {folder} (`dmesg`, `df {folder}`); gpuguard tries again by itself",
}


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 when the error is not SQLite's own."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


def is_full(error: sqlite3.Error) -> bool:
    """Whether there was no room to write."""
    return primary_code(error) == sqlite3.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) in _NO_ROOM


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file's content, not its surroundings, is at fault."""
    return primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def failed(error: sqlite3.Error, path: Path, doing: str) -> StoreFailed:
    """The error for people: what failed, on which file, what to do."""
    step = _NEXT_STEP.get(primary_code(error), "look at the agent's log, then restart it")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return StoreFailed(f"cannot {doing} {path}: {error} ({name}); {step.format(path=path, folder=path.parent)}")


def unusable(error: OSError, path: Path, doing: str) -> StoreFailed:
    """The same for the file system's own errors."""
    if error.errno == errno.ENOSPC:
        step = f"free space on its file system (`df {path.parent}`)"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        step = "make it writable for the agent's user, or name another folder with --state-dir"
    else:
        step = "check the path, or name another folder with --state-dir"
    return StoreFailed(f"cannot {doing} {path}: {error.strerror or error}; {step}")
