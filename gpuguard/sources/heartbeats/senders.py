"""Who sent a message: the process behind the pid that the kernel vouches for, and the job that it may speak for.

Reads   /proc/<pid>/{stat,status,cgroup}
Source  unix(7), SCM_CREDENTIALS; proc_pid_stat(5), proc_pid_status(5), cgroups(7)

The cgroup a process cannot choose, so a keeper's job is what the cgroup says. What runs outside of any keeper may call
itself what it likes, below the number of its user.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import JobId
from gpuguard.model.jobs import Keeper, Owner, job_id, keeper_of
from gpuguard.sources.heartbeats.message import Refused
from gpuguard.sweeping.files import read_bytes

OwnerOf = Callable[[str, Mapping[str, str]], Owner]
# Whose word about a process is its job; a unit of systemd is no more than where a shell or a service runs.
VOUCHING: tuple[Keeper, ...] = ("slurm", "kubernetes", "gpuguard", "docker")
_GONE = "ZXx"


class Sender(NamedTuple):
    """One process from its start to its end. `group` names those that were started together.

    Units   ticks: ticks since boot; started: seconds of CLOCK_MONOTONIC
    """

    pid: int
    ticks: int
    uid: int
    started: float
    group: int
    owner: Owner


def suspended() -> float:
    """For how many seconds this machine has slept since boot: stat counts them, CLOCK_MONOTONIC does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class Senders:
    """The processes below a root."""

    def __init__(
        self, root: Path, owner_of: OwnerOf, *, asleep: Callable[[], float] = suspended, hertz: int | None = None
    ) -> None:
        """Reads nothing yet."""
        self._proc, self._owner_of, self._asleep = f"{root / 'proc'}", owner_of, asleep
        self._hertz = hertz or os.sysconf("SC_CLK_TCK")

    def meet(self, pid: int, uid: int) -> Sender | None:
        """The process, where it lives and is that user's; a pid may have been given anew since the message was sent."""
        fields = self._stat(pid)
        if fields is None:
            return None
        try:
            status = read_bytes(f"{self._proc}/{pid}/status").decode("ascii", "replace")
            cgroup = read_bytes(f"{self._proc}/{pid}/cgroup").decode("utf-8", "replace")
        except (Absent, ReadFailed):
            return None
        users = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
        if str(uid) not in users:
            return None
        parent, group, session, ticks = (int(fields[place]) for place in (1, 2, 3, 19))
        # A launcher gives each rank a session of its own: what they have in common is then the launcher.
        together = parent if session == pid and parent > 1 else group
        return Sender(
            pid, ticks, uid, ticks / self._hertz - self._asleep(), together, self._owner_of(cgroup, {})
        )  # fmt: skip

    def lives(self, sender: Sender) -> bool:
        """Whether that process has not ended."""
        fields = self._stat(sender.pid)
        return fields is not None and int(fields[19]) == sender.ticks

    def _stat(self, pid: int) -> list[bytes] | None:
        """The numbers after the name, the state first; None where there is no such process or it is dead."""
        try:
            text = read_bytes(f"{self._proc}/{pid}/stat", 1024)
        except (Absent, ReadFailed):
            return None
        fields = text[text.rfind(b")") + 2 :].split()
        return fields if len(fields) >= 20 and fields[0].decode("ascii", "replace") not in _GONE else None


def job_of(sender: Sender, claim: str | None) -> JobId:
    """The job that the sender belongs to.

    A bare word where a keeper vouches is a nickname, and is not needed; another job's name is refused. A container of
    Docker's that was started within a job names that job, as it has its environment: it stays the container.
    Raises  Refused: foreign_job
    """
    own = sender.owner.job
    if own is not None and keeper_of(own) in VOUCHING:
        keeper, _, name = (claim or "").partition("/")
        in_container = keeper_of(own) == "docker" and keeper != "docker"
        if keeper in VOUCHING and not in_container and own != f"{keeper}/{_spelled(name)}":
            raise Refused("foreign_job")
        return own
    if claim:
        return job_id("claimed", f"{sender.uid}-{claim}")
    return own if own is not None else job_id("claimed", f"{sender.uid}-{sender.group}")


def _spelled(name: str) -> str:
    """As it stands in a job's id; '' for none."""
    return job_id("claimed", name).partition("/")[2] if name else ""
