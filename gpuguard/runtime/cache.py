"""The file that answers `check`, `status` and hooks without asking the daemon: <state dir>/snapshot.json.

Written whole and renamed into place when something changed; in between its modification time is the daemon's sign of
life. Reading it takes the standard library only, because hooks do so on every job.
"""

import contextlib
import fcntl
import json
import os
import time

from gpuguard.errors import ConfigInvalid
from gpuguard.runtime.files import read_regular, read_toml

# Where an agent keeps its memory, and where a site says otherwise.
STATE_DIR = "/var/lib/gpuguard"
CONFIG = "/etc/gpuguard/config.toml"
NAME = "snapshot.json"
LOCK = "agent.lock"
# The daemon touches the file every tick (30 s); three missed ticks mean that it hangs.
STALE_AFTER = 100.0
# A snapshot is some KiB. Units: bytes
LIMIT = 16 * 1024 * 1024
# Everybody on the node may ask whether it is well.
MODE = 0o644


class Cache:
    """The writing side."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, NAME)

    def write(self, encoded: bytes) -> bool:
        """Whether the snapshot stands on disk, for everybody to read whatever the umask is.

        Where it cannot be written (a full disk), the old one is gone too: it would be quoted as if it still held.
        """
        fresh = f"{self._path}.new"
        _remove(fresh)
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE), "wb") as file:
                os.fchmod(file.fileno(), MODE)
                file.write(encoded)
            os.replace(fresh, self._path)
        except OSError:
            _remove(fresh)
            _remove(self._path)
            return False
        return True

    def touch(self) -> bool:
        """Whether the sign of life was given."""
        try:
            os.utime(self._path)
        except OSError:
            return False
        return True


def _remove(path: str) -> None:
    # Where even that is refused, the file grows stale, and says so.
    with contextlib.suppress(OSError):
        os.unlink(path)


def agent_runs(state_dir: str) -> bool:
    """Whether a daemon holds this state directory.

    Whoever may not open the lock, which is for the agent's group alone, judges by the snapshot: whether it is fresh.
    Reads   the lock on <state dir>/agent.lock, without waiting and without taking it from anybody
    """
    try:
        descriptor = os.open(os.path.join(state_dir, LOCK), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return _is_fresh(state_dir)
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


def _is_fresh(state_dir: str) -> bool:
    try:
        return abs(time.time() - os.stat(os.path.join(state_dir, NAME)).st_mtime) <= STALE_AFTER
    except OSError:
        return False


def read(state_dir: str) -> "tuple[dict[str, object], float] | None":
    """The snapshot and its age in seconds; None when there is none that can be read.

    The age is how far the file's time is from now, in either direction: a wall clock that was set back far must not
    keep an old verdict young for hours.
    Shape   the fields of model/health.py Snapshot, as JSON
    """
    try:
        data, changed_at = read_regular(os.path.join(state_dir, NAME), LIMIT)
        snapshot = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    return (snapshot, abs(time.time() - changed_at)) if isinstance(snapshot, dict) else None


def state_dir(config: str | None) -> str:
    """The state directory that the configuration names; only that is read of it. None is the usual configuration.

    Raises  ConfigInvalid
    """
    path = config or CONFIG
    # One that this user may not read is the agent's: the usual place is worth a look.
    if config is None and not os.access(path, os.R_OK):
        return STATE_DIR
    try:
        agent = read_toml(path).get("agent", {})
    except OSError as error:
        raise ConfigInvalid([f"{path}: {error.strerror}; make it a file that this user may read"]) from error
    except ValueError as error:
        raise ConfigInvalid([f"{path}: {error}; correct the file"]) from error
    named = agent.get("state_dir", STATE_DIR) if isinstance(agent, dict) else STATE_DIR
    if not isinstance(named, str) or "\0" in named:
        raise ConfigInvalid([f"{path}: [agent] state_dir: is not a path in quotes; correct it"])
    return named
