"""Ends a process that outlived its job and holds memory of a GPU.

Theory. The one who asks has read hostile text and may be wrong, or worse. So nothing of the wish is believed but the
number and the start of the process; whose it is, and whether its job is over, is found out here, and at each doubt the
process lives. It is ended only when all of this is so:

1. the number still means the same process: its start is the same, looked at after a descriptor holds it (pidfd), so
   that no signal can reach another one;
2. it is no kernel thread, not the first process, and not this one or one that started it;
3. its cgroup is one that Slurm made for a job. Processes of pods are the kubelet's affair, those of services, of logins
   and of nobody a person's;
4. Slurm, asked now, does not have that job run on this node; no answer is no permission;
5. no slurmstepd of that job lives here: while one does, the job's end is not over, whatever the controller says.

Then it is told to end, and after `grace` it is killed. One that still lives then sleeps in the kernel.

Reads   /proc/<pid>/stat and cgroup, which anybody may read: no right to look into processes is needed, CAP_KILL is
Source  cgroup_v1(7), pidfd_open(2); Slurm's src/plugins/cgroup/v1/cgroup_v1.c (slurm[_node]/uid_N/job_N/step_N) and
        v2/cgroup_v2.c (system.slice/[node_]slurmstepd.scope/job_N/step_N)
"""

import os
import re
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuguard.custody.token import parse_reason
from gpuguard.errors import Absent, ActionDeferred, ActionRefused, ReadFailed
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.units import Seconds
from gpuguard.ports import NodeReport
from gpuguard.sweeping.files import read_bytes
from gpuguard.sweeping.processes import Process, Processes, parse_stat

NAME: Final = "processes"
# Whether a job of Slurm's runs on this node, asked before a moment of time.monotonic(); None for no answer.
RunsHere = Callable[[str, float], bool | None]

TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")
CGROUP_BYTES: Final = 16384
# For Slurm's answer, and after the last signal: a process that can die does within milliseconds.
ANSWER_WITHIN: Final = 1.5
DIES_WITHIN: Final = 0.5
KTHREADD: Final = 2
STEPD: Final = "slurmstepd"
_SLURM = re.compile(
    r"(?:/slurm(?:_[^/]+)?/uid_\d{1,10}|/system\.slice/(?:[^/]+_)?slurmstepd\.scope)/job_(?P<job>[1-9]\d{0,9})(?:/.*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a process may take to end."""

    grace: Seconds = Seconds(2.5)  # between SIGTERM and SIGKILL; its job is over, so there is little to save
    deadline: Seconds = Seconds(5.0)  # for the whole of one wish; less than the agent waits for an answer

    def __post_init__(self) -> None:
        if not 0.2 <= self.deadline <= 30.0:
            raise ValueError("deadline: must lie between 0.2 and 30 seconds")
        if not 0.0 <= self.grace < self.deadline:
            raise ValueError("grace: must be at least 0 and less than the deadline")


class LeftOver:
    """Ends leftover processes of this machine's. `proc` is where it is told what they are."""

    name = NAME

    def __init__(self, settings: Settings, runs_here: RunsHere, proc: Path = Path("/proc")) -> None:
        self._settings, self._runs_here, self._proc = settings, runs_here, proc
        self._processes = Processes(proc)

    def perform(self, action: Action) -> Outcome:
        """The process is gone, or the outcome says who acts next. Safe to send twice."""
        try:
            return self._perform(action, time.monotonic() + self._settings.deadline)
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except ActionRefused as no:
            return Outcome(result="refused", message=str(no))

    def read_state(self) -> NodeReport:
        """Says that nothing is known: processes have no scheduler's state."""
        return NodeReport(target=self.name, node="", error="no scheduler is asked about processes")

    def _perform(self, action: Action, until: float) -> Outcome:
        pid, started = action.pid, action.started
        if action.verb != "reclaim" or pid is None or started is None or pid < 1:
            raise ActionRefused(f"{action.verb} is no wish about a process; this is a bug, please report it")
        if parse_reason(action.reason) != action.token:
            raise ActionRefused(
                f"the reason {action.reason[:80]!r} does not carry the token {action.token}; nothing was ended; "
                "this is a bug, please report it"
            )
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return Outcome(result="done", message=f"process {pid} is gone already")
        except OSError as error:
            raise ActionRefused(f"{pid} is no process that can be held: {error.strerror}") from error
        try:
            process = self._processes.stat(pid)
            if process is None or abs(process.started * TICK - started) > TICK:
                return Outcome(result="done", message=f"process {pid} is gone already; its number may be another's now")
            if process.state in "ZX":
                return Outcome(
                    result="refused",
                    message=f"{_called(process)} is dead already and not yet taken leave of; what it holds, the driver "
                    "keeps: a reset of the GPU, or a reboot, gives it back",
                )
            self._not_ours_to_spare(process)
            job = self._job_of(pid)
            spared = self._spared(process, job, until)
            return spared or self._end(handle, process, job, until)
        finally:
            os.close(handle)

    def _not_ours_to_spare(self, process: Process) -> None:
        """It is no process without which the machine, or this program, does not go on.

        Raises  ActionRefused
        """
        if process.pid in (1, KTHREADD) or process.parent == KTHREADD:
            raise ActionRefused(f"{_called(process)} is a process of the system's; it is never ended")
        ours: int | None = os.getpid()
        while ours is not None and ours > 1:
            if ours == process.pid:
                raise ActionRefused(f"{_called(process)} is gpuguard's own, or started it; it is never ended")
            above = self._processes.stat(ours)
            ours = above.parent if above is not None else None

    def _job_of(self, pid: int) -> str:
        """The number of the job that Slurm made its cgroup for.

        Raises  ActionRefused where it is no job's of Slurm's; ActionDeferred where that cannot be read
        """
        paths = self._cgroups(pid)
        jobs = {match["job"] for path in paths if (match := _SLURM.fullmatch(path))}
        if any("kubepods" in path for path in paths):
            raise ActionRefused(f"process {pid} is in a pod; what is left of pods, the kubelet ends")
        if len(jobs) != 1:
            where = next((path for path in paths if path != "/"), "/")
            raise ActionRefused(
                f"process {pid} belongs to no job of Slurm's (it is in {where[:80]!r}); "
                "end it yourself if it is in the way"
            )
        return jobs.pop()

    def _cgroups(self, pid: int) -> list[str]:
        """Shape   lines of number:controllers:path"""
        try:
            text = read_bytes(self._proc / str(pid) / "cgroup", CGROUP_BYTES).decode("utf-8", "replace")
        except (Absent, ReadFailed) as error:
            raise ActionDeferred(f"it cannot be told whose process {pid} is: {error}", 30.0) from error
        return [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]

    def _spared(self, process: Process, job: str, until: float) -> Outcome | None:
        """Why the process lives on; None when its job is over for certain."""
        runs = self._runs_here(job, min(until, time.monotonic() + ANSWER_WITHIN))
        if runs is None:
            raise ActionDeferred(f"Slurm does not say whether job {job} is over; nothing was ended", 60.0)
        if runs:
            message = f"job {job} of {_called(process)} runs on this node; nothing was ended"
            return Outcome(result="foreign", message=message)
        for stat in self._processes.stats():
            other = parse_stat(stat)
            if other is None or other.comm != STEPD:
                continue
            if any((match := _SLURM.fullmatch(path)) and match["job"] == job for path in self._cgroups(other.pid)):
                raise ActionDeferred(f"slurmstepd {other.pid} is still at work for job {job}; nothing was ended", 60.0)
        return None

    def _end(self, handle: int, process: Process, job: str, until: float) -> Outcome:
        ended = f"{_called(process)} of job {job}, which is over"
        for number, patience in ((signal.SIGTERM, self._settings.grace), (signal.SIGKILL, self._settings.deadline)):
            # Whatever SIGTERM was given, there is time left to kill and to see it die.
            reserve = DIES_WITHIN if number is signal.SIGTERM else 0.0
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return Outcome(result="done", message=f"{ended}, went by itself")
            except PermissionError as error:
                raise ActionRefused(
                    f"no right to end {_called(process)}; gpuguard-actuator needs CAP_KILL (systemd/)"
                ) from error
            left = min(patience, until - time.monotonic() - reserve)
            if _exits(handle, left):
                return Outcome(result="done", message=f"{ended}, was ended by {number.name}")
        now = self._processes.stat(process.pid)
        state = now.state if now is not None else "?"
        raise ActionRefused(
            f"{ended}, does not die: it sleeps in the kernel (state {state}) and goes when that lets it; "
            "if it never does, the node needs a reboot"
        )


def _exits(handle: int, within: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, within) * 1000))


def _called(process: Process) -> str:
    return f"process {process.pid} ({process.comm[:32]})"


def build(settings: Settings) -> LeftOver:
    """The actuator of this machine's processes; as nobody is there who can say that a job is over, it ends none."""
    return LeftOver(settings, lambda job, until: None)
