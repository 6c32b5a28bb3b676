"""GPUs that two jobs use at once, without a partition between them.

They take turns, and take each other's cache and memory bandwidth: two that would each take half were seen to run at 35
% of their speed while the GPU read 100 %. Where sharing is wanted, MIG keeps jobs apart and MPS lets them run
together; on such a GPU nothing is said.

Reads     gpu_jobs of each GPU with mig_mode and gpu_mps; for people gpu_job
Source    a cluster's measurement of two jobs on one card; NVIDIA's MPS and MIG guides
Clears    when it has one job, a reset, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """For how long."""

    hold: Seconds = Seconds(120.0)  # one job ends while the next begins
    warn: bool = False  # whether it makes the node WARNING; not where a scheduler is meant to share GPUs


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has had more than one job."""

    shared: Held = Held()


class GpuShared:
    """Reports GPUs that jobs share."""

    name = "gpu_shared"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("gpu_jobs",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        jobs = row.number("gpu_jobs")
        if jobs is None:
            return memory, ()
        apart = row.number("mig_mode") == 1 or row.number("gpu_mps") == 1
        shared = memory.shared.told(jobs >= 2 and not apart, row.at)
        names = clean((row.text("gpu_job") or "whose is not known").replace(",", " "), 160)
        return Memory(shared=shared), (
            Finding(
                subject=subject, check=self.name, code="gpu_shared", at=row.at, blame="configuration",
                stands=shared.lasted(self.settings.hold, row.at), severity="degraded" if self.settings.warn else "info",
                advice="watch" if self.settings.warn else "none", clears=("reset", "reboot", "ack"),
                reason=f"{jobs:g} jobs share it without MIG or MPS and slow each other: {names}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> GpuShared:
    """The detector with a site's settings."""
    return GpuShared(settings)
