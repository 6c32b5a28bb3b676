"""GPUs that are used past the scheduler: with no job behind it, or by a job that was given other GPUs.

Somebody logs in and starts a program, or sets CUDA_VISIBLE_DEVICES by hand. The scheduler does not know, gives the GPU
to another job, and both run out of memory or crawl. Where no scheduler tells of its jobs there is nothing to bypass,
and nothing is said. Services of the GPU stack are no strangers.

Reads     gpu_unowned_processes of each GPU, which is there only where a scheduler tells; for people gpu_strangers
Source    slurm.conf(5), gres.conf(5) and cgroup.conf(5), ConstrainDevices, which would hold jobs to their own GPUs
Clears    when they are gone, a reset, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, counted
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """For how long."""

    hold: Seconds = Seconds(120.0)  # the scheduler tells of a new job a while after its processes were seen


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has had strangers."""

    strange: Held = Held()


class GpuBypass:
    """Reports GPUs that are used past the scheduler."""

    name = "gpu_bypass"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("gpu_unowned_processes",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        count = row.number("gpu_unowned_processes")
        if count is None:
            return memory, ()
        strange = memory.strange.told(count >= 1, row.at)
        who = clean(row.text("gpu_strangers") or "of unknown names", 320)
        return Memory(strange=strange), (
            Finding(
                subject=subject, check=self.name, code="gpu_bypass", at=row.at, severity="degraded", advice="watch",
                stands=strange.lasted(self.settings.hold, row.at), blame="configuration",
                clears=("reset", "reboot", "ack"),
                reason=f"used past the scheduler by {counted(count, 'process', 'processes')}: {who}; ask the owner, "
                "and set ConstrainDevices=yes in Slurm's cgroup.conf, which keeps jobs to their own GPUs",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> GpuBypass:
    """The detector with a site's settings."""
    return GpuBypass(settings)
