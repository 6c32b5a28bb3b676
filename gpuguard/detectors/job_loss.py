"""Jobs whose loss is no number any more, or does not move at all.

Such a job looks alive, loads its GPUs and computes nothing of use. A single bad step is normal with mixed precision,
so a loss must stay so; and a program may tell the loss of its last log line at every step, so few steps with the very
same loss are only told.

Reads     job_loss_nan, job_loss_flat_steps and job_loss of each job
Source    field reports of jobs that ran on with a frozen loss; PyTorch's GradScaler, which skips steps whose gradients
          are no numbers
Clears    when the loss is a number, or moves again, when the job is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import counted
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """For how long, and for how many steps."""

    hold: Seconds = Seconds(60.0)  # for as long as this the loss is no number
    flat_steps: int = 200  # so many steps with the very same loss are told
    frozen_steps: int = 1000  # and so many are a warning

    def __post_init__(self) -> None:
        if not 1 < self.flat_steps <= self.frozen_steps:
            raise ValueError("flat_steps must be more than 1 and at most frozen_steps")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the loss is no number."""

    broken: Held = Held()


class JobLoss:
    """Reports jobs that compute nothing of use."""

    name = "job_loss"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_loss_nan", "job_loss_flat_steps", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if row.number("job_ended") == 1:
            codes = ("job_loss_nan", "job_loss_flat")
            return Memory(), tuple(self._finding(subject, row, code, False, "") for code in codes)
        findings: list[Finding] = []
        after = memory
        if (ranks := row.number("job_loss_nan")) is not None:
            after = Memory(broken=memory.broken.told(ranks >= 1, row.at))
            stands = after.broken.lasted(self.settings.hold, row.at)
            reason = f"the loss of {counted(ranks, 'rank')} here is no number; go on from an earlier checkpoint"
            findings.append(self._finding(subject, row, "job_loss_nan", stands, reason, grave=True))
        if (steps := row.number("job_loss_flat_steps")) is not None:
            reason = f"the loss is the very same for {steps:g} steps; see whether it learns, or tells an old value"
            # While a rate of learning warms up from nothing, and where rewards decide, it is rightly so.
            zero = row.number("job_loss") == 0.0
            reason += "; one of exactly 0 may be right while it warms up, or learns from rewards" if zero else ""
            grave = steps >= self.settings.frozen_steps and not zero
            stands = steps >= self.settings.flat_steps
            findings.append(self._finding(subject, row, "job_loss_flat", stands, reason, grave=grave))
        return after, findings

    def _finding(
        self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str, *, grave: bool = False
    ) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, stands=stands, blame="program",
            severity="degraded" if grave else "info", advice="watch" if grave else "none", clears=("reboot", "ack"),
            reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> JobLoss:
    """The detector with a site's settings."""
    return JobLoss(settings)
