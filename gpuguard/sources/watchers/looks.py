"""Looks at what moves when a job gets on: a file, a log, a folder of checkpoints.

Reads   attributes, and of a log what was appended, at most 64 KiB a look
Source  open(2), O_PATH; stat(2); Linux Documentation/filesystems/proc.rst, /proc/<pid>/fd

All of it may hang where the file lies on a server, so each look runs apart, with a deadline; what it finds comes back
as a value, and only the looks of one watch share their memory. A path that a job's user named could be anything: it is
opened without touching what lies there, and read only when that is a regular file of that user's.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from gpuguard.errors import ReadFailed
from gpuguard.sources.watchers.patterns import LINE, Pattern, step_in

TAIL = 65536  # bytes of a log that one look reads; of what is more the newest
NUMBER = 64  # bytes of a file that may be the number of a step
ENTRIES = 4096  # of a folder of checkpoints
INSIDE = 256  # of a checkpoint that is a folder
SLOW = 0.05  # seconds: a pattern that takes longer over one look is looked for no more
_UNFINISHED = re.compile(r"^[._]|[.~-](?:tmp|temp|part|partial|incomplete|lock|writing)(?:$|[._-])|^(?:tmp|temp)", re.I)
_LAST_NUMBER = re.compile(r"(\d{1,18})(?!.*\d)", re.ASCII)


class Sight(NamedTuple):
    """What one look found. `moves` is how often a look found another state than the one before it: a look that came
    back too late is not lost. `age` is how old the state is by its own date, in seconds; `step` what it tells; `seen`
    whether there is anything to go by."""

    moves: int
    age: float
    step: int | None = None
    seen: bool = True


@contextlib.contextmanager
def opened(path: str, owner: int | None, kind: int) -> Iterator[tuple[int, os.stat_result]]:
    """What lies at the path, opened to be read, where it is of that kind and, if one is given, that user's.

    Raises  OSError; ReadFailed where it is something else or somebody else's
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(found)
        if stat.S_IFMT(status.st_mode) != kind:
            raise ReadFailed(f"{path} is not of the kind that is watched")
        if owner is not None and status.st_uid != owner:
            raise ReadFailed(f"{path} belongs to user {status.st_uid}, and the job to {owner}")
        reader = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)
    try:
        yield reader, status
    finally:
        os.close(reader)


class FileLook:
    """A file that is touched at every step, or in which the number of the step stands."""

    def __init__(self, path: str, owner: int | None) -> None:
        self._path, self._owner, self._moves = path, owner, 0
        self._before: tuple[object, ...] | None = None

    def look(self, utc: float) -> Sight:
        """Raises  OSError, ReadFailed"""
        with opened(self._path, self._owner, stat.S_IFREG) as (reader, status):
            text = os.pread(reader, NUMBER, 0) if status.st_size <= NUMBER else b""
        now = (status.st_ino, status.st_mtime_ns, status.st_size, text)
        self._moves += self._before is not None and now != self._before
        self._before = now
        return Sight(self._moves, utc - status.st_mtime, step_in(text))


class LogLook:
    """A log that grows, or in which a pattern recurs."""

    def __init__(self, path: str, owner: int | None, pattern: Pattern | None) -> None:
        self._path, self._owner, self._pattern = path, owner, pattern
        self._moves, self._slow = 0, False
        self._inode: int | None = None
        self._read = 0
        self._rest = b""
        self._step: int | None = None
        self._seen = False

    def look(self, utc: float) -> Sight:
        """Raises  OSError, ReadFailed"""
        if self._slow:
            raise ReadFailed(f"the pattern for {self._path} took too long; write one that begins with plain letters")
        with opened(self._path, self._owner, stat.S_IFREG) as (reader, status):
            first = self._inode is None
            if status.st_ino != self._inode or status.st_size < self._read:
                self._inode, self._rest = status.st_ino, b""  # the first look, or it was begun anew
                grown, self._read = not first, 0
            else:
                grown = status.st_size > self._read
            if self._pattern is None:
                self._read = status.st_size
                self._moves += grown and not first
                return Sight(self._moves, utc - status.st_mtime)
            start = max(self._read, status.st_size - TAIL)
            if start > self._read:
                self._rest = b""
            text = os.pread(reader, min(TAIL, max(0, status.st_size - start)), start)
        self._read = start + len(text)
        self._moves += self._find(text) and not first
        return Sight(self._moves, utc - status.st_mtime, self._step, self._seen)

    def _find(self, text: bytes) -> bool:
        assert self._pattern is not None
        lines = (self._rest + text).split(b"\n")
        self._rest = lines.pop()[:LINE]
        found, began = False, time.perf_counter()
        for line in lines:
            has, step = self._pattern.find(line)
            if has:
                found, self._seen = True, True
                self._step = self._step if step is None else step
            if time.perf_counter() - began > SLOW:
                self._slow = True
                break
        return found


class CheckpointsLook:
    """A folder in which checkpoints turn up. One is complete when it has a name of a complete one and was the same at
    two looks."""

    def __init__(self, path: str, owner: int | None) -> None:
        self._path, self._owner = path, owner
        self._before: tuple[object, ...] | None = None
        self._complete: tuple[object, ...] | None = None
        self._moves = 0
        self._step: int | None = None
        self._dated = 0.0

    def look(self, utc: float) -> Sight:
        """Raises  OSError, ReadFailed"""
        with opened(self._path, self._owner, stat.S_IFDIR) as (reader, _):
            newest = _newest(reader)
            state = None if newest is None else (newest[1], newest[0], *_inside(reader, newest[1]))
        if state is None or newest is None:
            return Sight(self._moves, 0.0, seen=False)
        settled, first = state == self._before, self._before is None
        self._before = state
        self._moves += settled and state != self._complete
        if settled or (first and utc - newest[0] > 60.0):
            self._complete = state
            number = _LAST_NUMBER.search(newest[1])
            self._step, self._dated = int(number[1]) if number else None, newest[0]
        return Sight(self._moves, utc - self._dated, self._step, seen=self._complete is not None)


def _newest(folder: int) -> tuple[float, str] | None:
    """When it was changed last, and the name, of the newest entry that is not being written by its name."""
    newest: tuple[float, str] | None = None
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= ENTRIES:
                break
            if not _UNFINISHED.search(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest or (0.0, ""), (entry.stat(follow_symlinks=False).st_mtime, entry.name))
    return newest


def _inside(folder: int, name: str) -> tuple[int, int, float]:
    """How many files a checkpoint has, of how many bytes, changed when: what grows while it is written."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return 1, status.st_size, status.st_mtime
    count, size, newest = 0, 0, status.st_mtime
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(inner) as entries:
            for entry in entries:
                if count >= INSIDE:
                    break
                one = entry.stat(follow_symlinks=False)
                count, size, newest = count + 1, size + one.st_size, max(newest, one.st_mtime)
    finally:
        os.close(inner)
    return count, size, newest
