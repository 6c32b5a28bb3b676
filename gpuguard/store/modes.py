"""Who may open the agent's files: its own user writes, its group reads, nobody else does either.

A descriptor opened for reading is enough to hold the lock that the writer needs: SQLite's byte of the -shm, or the
whole of `agent.lock`. Whoever may open these files may stop every commit.
"""

import contextlib
import os
from pathlib import Path

MODE = 0o640


def create_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is there with MODE whatever the umask is, and whatever its mode was before.

    Raises  OSError
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, MODE)
    # A folder may be shared: what another user made there is usable, but only its owner may close it to others.
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, MODE)
    return descriptor


def close_to_others(path: Path) -> None:
    """Nobody but owner and group may open the file any more; what they may not, they still may not. Nothing is made.

    By its name alone: a descriptor that is closed again takes this process's SQLite locks on the file along.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        mode = path.stat().st_mode & 0o7777
        if mode & ~MODE:
            path.chmod(mode & MODE)
