"""A GPU that the driver's library calls lost, in need of a reset, or that does not answer it.

Lost is what NVML says of a GPU that fell off the bus, also where no line was printed. The library alone decides
nothing: it says the same while a GPU is reset or its driver unloaded. The kernel's Xid 79 or PCI config space, which is
asked at once, is the other witness.

Reads     gpu_up, nvml_error (15 lost, 16 reset required, 0 none); of each GPU
Source    nvml.h, NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED
Clears    lost: a reboot, another GPU, or by a person; reset required and no answer: when the GPU answers again
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

LOST = 15
RESET_REQUIRED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a GPU may fail to answer for another reason."""

    hold: Seconds = Seconds(30.0)  # one slow or broken look proves nothing

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError("hold: must not be negative")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the GPU does not answer for a reason of its own."""

    mute: Held = Held()


class GpuLost:
    """Reports GPUs that the driver's library cannot read any more."""

    name = "gpu_lost"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("gpu_up", "nvml_error")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        up, error = row.number("gpu_up"), row.number("nvml_error")
        if up == 1:
            # What it failed to answer before is over, whatever code is left of it.
            error = 0
        elif error is None:
            return memory, ()
        mute = memory.mute.told(up == 0 and error not in (LOST, RESET_REQUIRED), row.at)
        lost = Finding(
            subject=subject, check=self.name, code="nvml_lost", at=row.at, severity="critical", remedy="reboot",
            ladder=("reboot", "replace"), blame="hardware", latched=True, clears=("reboot", "replace", "ack"),
            advice="drain", stands=error == LOST, reason="the driver's library calls the GPU lost",
        )  # fmt: skip
        reset = Finding(
            subject=subject, check=self.name, code="nvml_reset_required", at=row.at, severity="critical",
            remedy="reset", ladder=("reset", "reboot", "replace"), blame="hardware", advice="drain",
            clears=("reset", "reboot", "replace", "ack"), stands=error == RESET_REQUIRED,
            reason="the driver's library cannot use the GPU before it is reset",
        )  # fmt: skip
        silent = Finding(
            subject=subject, check=self.name, code="nvml_no_answer", at=row.at, severity="degraded", silent=True,
            blame="driver", advice="watch", clears=("reset", "reboot", "replace", "ack"),
            stands=mute.since is not None and mute.seconds(row.at) >= self.settings.hold,
            reason=f"the driver's library cannot read the GPU: its error {error:g}",
        )  # fmt: skip
        return Memory(mute=mute), (lost, reset, silent)


def build(settings: Settings, rules: Rules) -> GpuLost:
    """The detector with a site's settings."""
    return GpuLost(settings)
