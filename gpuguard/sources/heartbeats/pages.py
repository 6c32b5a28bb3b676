"""The page of memory in which a rank keeps its newest state: read without another message.

Shape   progress/wire.py, PAGE
Source  memfd_create(2), fcntl(2) F_GET_SEALS; Linux mm/memfd.c: only files of shared memory have seals

The owner of a file can make reads of it hang, or make it shorter under somebody who mapped it. A memfd that is sealed
against both growing and shrinking can do neither; it is read with pread and never mapped all the same.
"""

import fcntl
import os
import stat
from typing import NamedTuple

from gpuguard.progress import wire
from gpuguard.sources.heartbeats.message import Refused

TRIES = 3
LATEST = 1e15  # of times, in seconds, as in a message
_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Live(NamedTuple):
    """What changes from step to step. A step or save that is none yet is None; so is a loss nobody told.

    Units   seconds of CLOCK_MONOTONIC
    """

    at: float
    step: int | None
    phase: str | None
    since: float | None
    loss: float | None
    saved: int | None
    saved_at: float | None
    done: bool
    preempt: int | None
    flat: int | None = None


def is_page(fd: int) -> bool:
    """Whether the file can be nothing but a page, and may be read. Seals are asked first: that reaches no file system.

    Whoever made it may have opened it again, to be written only.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED != _SEALED:
            return False
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            return False
    except OSError:
        return False
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and status.st_size == wire.PAGE_SIZE


class Page:
    """One page, and what it said last. The descriptor belongs to it."""

    def __init__(self, fd: int) -> None:
        """Raises  OSError where the descriptor is none"""
        status = os.fstat(fd)
        self.identity = (status.st_dev, status.st_ino)
        self._fd: int | None = fd
        self._raw = b""
        self._n = -1

    def read(self) -> Live | None:
        """What it says now; None where that is not new, or is being written.

        Raises  Refused, once for each state: not_understood where it is that of no rank, replayed where it is older
                than the one before, page where it cannot be read
        """
        if self._fd is None:
            return None
        raw = self._settled(self._fd)
        if raw is None or raw == self._raw:
            return None
        self._raw = raw
        magic, n, at, step, phase, since, loss, saved, saved_at, flags, preempt, flat = wire.PAGE.unpack(raw)
        # No time is before the machine was started.
        if magic != wire.PAGE_MAGIC or not all(0.0 <= time <= LATEST for time in (at, since, saved_at)):
            raise Refused("not_understood")
        if n < self._n:
            raise Refused("replayed")
        self._n = n
        return Live(
            at=at, step=None if step == wire.NONE else step, since=since or None,
            phase=phase.rstrip(b"\0").decode("utf-8", "replace") or None,
            loss=loss if flags & wire.FLAG_LOSS else None, saved=None if saved == wire.NONE else saved,
            saved_at=None if saved == wire.NONE else saved_at, done=bool(flags & wire.FLAG_DONE),
            preempt=preempt if preempt <= 3 else None, flat=flat if flags & wire.FLAG_LOSS else None,
        )  # fmt: skip

    def _settled(self, fd: int) -> bytes | None:
        """What two reads agree on; one that says what was said before needs no second."""
        before = self._bytes(fd)
        for _ in range(TRIES):
            if before == self._raw:
                return before
            again = self._bytes(fd)
            if again == before:
                return again if len(again) == wire.PAGE.size else None
            before = again
        return None

    def _bytes(self, fd: int) -> bytes:
        """Raises  Refused: page, once; nothing is read of it any more"""
        try:
            return os.pread(fd, wire.PAGE.size, 0)
        except OSError as error:
            self.close()
            raise Refused("page") from error

    def close(self) -> None:
        """The descriptor is given back."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
