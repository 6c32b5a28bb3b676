"""Jobs that hold GPUs and hardly use them.

Mostly it is the loading of data, or a batch that is too small. It is advice: a GPU that rests is no fault, and nothing
is done to the job. Sessions in which a person types are idle by nature, and what no scheduler started keeps nobody
waiting.

Reads     job_gpu_activity_ratio and job_gpus_held of each job; job_name, job_verdict, and for people job_phase
Source    practice of large clusters: jobs below 20 % are looked at; sbatch(1) and salloc(1) for the names of sessions
Clears    when it is busier, lets its GPUs go or is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import counted, lasting
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.jobs import SCHEDULERS, keeper_of
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How idle, for how long, and whose."""

    ratio: float = 0.2  # mean activity of its GPUs
    limit: Seconds = Seconds(1800.0)  # without a break
    # Beginnings of the names of jobs in which a person types.
    sessions: tuple[str, ...] = ("interactive", "bash", "sh", "zsh", "jupyter", "spawner-", "sys/dashboard", "notebook",
                                 "vscode", "code-server", "tmux", "screen")  # fmt: skip
    keepers: tuple[str, ...] = SCHEDULERS  # whose jobs keep others waiting

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError("ratio must be more than 0 and at most 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has been idle."""

    idle: Held = Held()


class JobLowActivity:
    """Reports jobs whose GPUs are idle."""

    name = "job_low_activity"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_gpu_activity_ratio", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if keeper_of(subject.partition(":")[2]) not in self.settings.keepers:
            return memory, ()
        if row.number("job_ended") == 1:
            return Memory(), (self._finding(subject, row, False, ""),)
        held, ratio = row.number("job_gpus_held"), row.number("job_gpu_activity_ratio")
        if held is None or ratio is None:
            return memory, ()
        session = self._is_session(row.text("job_name") or "")
        # What is stopped can do nothing; that is told by itself.
        stopped = row.text("job_verdict") == "paused"
        idle = memory.idle.told(held >= 1 and ratio < self.settings.ratio and not session and not stopped, row.at)
        for_ = lasting(idle.seconds(row.at))
        remedy = "see whether it waits for data (num_workers, pin_memory, persistent_workers) or its batch is too small"
        if row.text("job_phase") == "start":
            remedy = (
                "it has made no step yet: what prepares its data needs no GPU, and could be a job of its own before"
            )
        reason = f"active {ratio:.0%} of the time on {counted(held, 'GPU')}, for {for_}; {remedy}"
        return Memory(idle=idle), (self._finding(subject, row, idle.lasted(self.settings.limit, row.at), reason),)

    def _is_session(self, name: str) -> bool:
        """A short name must be the whole of it: `sh` is a shell and `shard_data` is not."""
        return any(name == one or (len(one) > 4 and name.startswith(one)) for one in self.settings.sessions)

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="job_low_activity", at=row.at, stands=stands, blame="program",
            clears=("reboot", "ack"), reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> JobLowActivity:
    """The detector with a site's settings."""
    return JobLowActivity(settings)
