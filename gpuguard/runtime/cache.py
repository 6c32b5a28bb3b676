"""The file that answers `check`, `status` and hooks without asking the daemon: <state dir>/snapshot.json.

Written whole and renamed into place when something changed; in between its modification time is the daemon's sign of
life. Reading it takes the standard library only, because hooks do so on every job.
"""

import fcntl
import json
import os
import time

NAME = "snapshot.json"
LOCK = "agent.lock"
# The daemon touches the file every tick (30 s); three missed ticks mean that it hangs.
STALE_AFTER = 100.0


class Cache:
    """The writing side."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, NAME)

    def write(self, encoded: bytes) -> bool:
        """Whether the snapshot stands on disk. A full disk leaves the old one, which then grows stale and says so."""
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "wb") as file:
                file.write(encoded)
            os.replace(fresh, self._path)
        except OSError:
            return False
        return True

    def touch(self) -> bool:
        """Whether the sign of life was given."""
        try:
            os.utime(self._path)
        except OSError:
            return False
        return True


def agent_runs(state_dir: str) -> bool:
    """Whether a daemon holds this state directory.

    Reads   the lock on <state dir>/agent.lock, without waiting and without taking it from anybody
    """
    try:
        descriptor = os.open(os.path.join(state_dir, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def read(state_dir: str) -> "tuple[dict[str, object], float] | None":
    """The snapshot and its age in seconds; None when there is none that can be read.

    Shape   the fields of model/health.py Snapshot, as JSON
    """
    path = os.path.join(state_dir, NAME)
    try:
        with open(path, "rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            snapshot = json.loads(file.read())
    except (OSError, ValueError):
        return None
    # A wall clock that was set back makes the age negative: then the file is as fresh as can be told.
    return (snapshot, max(0.0, age)) if isinstance(snapshot, dict) else None
