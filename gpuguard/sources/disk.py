"""Room on the file system that the agent's memory lies on.

Reads     statvfs of the state directory
Emits     a Sweep with the row `disk:state`
Source    statvfs(3); df's way of counting: of what an unprivileged program may use

The call hangs where the file system is remote and its server is gone; so it has a thread of its own and a deadline.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "disk"
STATE = SubjectId("disk:state")

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(name="disk_free_bytes", of="disk", unit="bytes", low=0, high=2.0**62, help="Room that programs may use."),
    Quantity(name="disk_free_ratio", of="disk", unit="ratio", low=0.0, high=1.0, help="Share of it that is free."),
    Quantity(
        name="disk_inodes_free_ratio", of="disk", unit="ratio", low=0.0, high=1.0,
        help="Share of the file system's places for files that is free.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    path: str = ""  # a folder on the file system to look at, below --root; empty: the agent's state directory
    every: Seconds = Seconds(60.0)  # it is looked at this often
    deadline: Seconds = Seconds(2.0)  # a call takes microseconds, or hangs

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


def read_room(path: Path) -> Values:
    """The room on the file system of `path`; absent columns where it counts no such thing (btrfs has no inodes)."""
    found = os.statvfs(path)
    values: Values = {"disk_free_bytes": found.f_bavail * found.f_frsize}
    usable = found.f_blocks - found.f_bfree + found.f_bavail
    if usable > 0:
        values["disk_free_ratio"] = found.f_bavail / usable
    places = found.f_files - found.f_ffree + found.f_favail
    if found.f_files > 0 and places > 0:
        values["disk_inodes_free_ratio"] = found.f_favail / places
    return values


class Disk:
    """The file system under a root. `read` is the blocking call; tests hand in one that hangs."""

    def __init__(
        self, settings: Settings, root: Path, state_dir: Path, *, read: Callable[[Path], Values] = read_room
    ) -> None:
        """Reads nothing yet."""
        # The agent's own folder is on this machine, also while it plays a recorded one.
        self._path = root / settings.path.lstrip("/") if settings.path or root != Path("/") else state_dir
        self._is_of_root = bool(settings.path) or root == Path("/")
        self._read = read
        self._apart: Apart[Values | None] = Apart(NAME, settings.deadline)

    def sweep(self, now: Instant) -> Rows:
        """One row; its values are unknown while the file system does not answer.

        Raises  Absent where there is no such directory
        """
        if not self._is_of_root:
            raise Absent(f"the recorded machine at {self._path} has no state directory")
        found = self._apart.read({"state": self._look})
        if "state" in found and found["state"] is None:
            raise Absent(f"{self._path} does not exist")
        return {STATE: found.get("state") or {quantity.name: None for quantity in QUANTITIES}}

    def _look(self) -> Values | None:
        try:
            return self._read(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None


def build(settings: Settings, root: Path, clock: Clock, state_dir: Path) -> Rounds:
    """The source for the machine under `root`, and the agent's own folder."""
    return Rounds(NAME, Disk(settings, root, state_dir).sweep, clock, every=settings.every)
