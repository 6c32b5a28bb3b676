"""One agent a state folder.

The lock is the kernel's (flock) on `agent.lock` and dies with its process; the file itself stays, since removing it
would let two agents hold locks on two files of one name.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from gpuguard.errors import StoreFailed
from gpuguard.store.failures import unusable
from gpuguard.store.modes import create_private

LOCK_NAME = "agent.lock"

# `check` tries the lock for some microseconds to see whether an agent runs; another agent holds it for good.
# Units: seconds
PATIENCE = 1.0
_PAUSE = 0.01


class AgentLock:
    """Holds the folder from construction to `release`.

    Units   patience: seconds that it waits for somebody who only looks
    Raises  StoreFailed when another process holds it, with its pid, or when the folder cannot be written
    """

    def __init__(self, folder: Path, *, patience: float = PATIENCE) -> None:
        path = folder / LOCK_NAME
        try:
            self._file: int | None = create_private(path, os.O_RDWR)
        except OSError as error:
            raise unusable(error, path, "open") from error
        try:
            _lock(self._file, patience)
        except BlockingIOError as error:
            holder = holder_of(folder)
            self.release()
            raise StoreFailed(
                f"another agent{f' (pid {holder})' if holder else ''} works with {folder}; stop it "
                "(`systemctl stop gpuguard-agent`) or name another folder with --state-dir"
            ) from error
        except OSError as error:
            self.release()
            raise unusable(error, path, "lock") from error
        # The pid is for people: a full disk must not keep the agent from starting.
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The folder is free for another agent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int, patience: float) -> None:
    """The lock is ours.

    Raises  BlockingIOError when somebody holds it for longer than we wait; OSError
    """
    gives_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= gives_up:
                raise
        time.sleep(_PAUSE)


def holder_of(folder: Path) -> int | None:
    """The pid that the lock file names; None when it names none. It may belong to an agent that is gone."""
    try:
        text = (folder / LOCK_NAME).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
