"""A GPU that the driver's library calls lost, lists no more, cannot use before a reset, or cannot read.

Lost is what NVML says of a GPU that fell off the bus, also where no line was printed. The library alone decides
nothing: it says the same while a GPU is reset or its driver unloaded. The kernel's Xid 79 or PCI config space, which is
asked at once, is the other witness. One that is merely listed no more may have been taken away on purpose, or its
driver is loaded anew: PCI config space is asked when that lasts.

Reads     gpu_up, nvml_error (15 lost, 16 reset required, 28 not found, 0 none); of each GPU
Source    nvml.h, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED, NVML_ERROR_GPU_NOT_FOUND
Clears    when the GPU answers again; but a loss that lasted longer than a reset: a reboot, another GPU, or by a person
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
NOT_FOUND = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a GPU may be missing, may fail to answer, or be lost and come back."""

    hold: Seconds = Seconds(30.0)  # one look that failed proves nothing

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError("hold: must not be negative")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the GPU is lost, listed no more, and without an answer for a reason of its own."""

    lost: Held = Held()
    unlisted: Held = Held()
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
        # That it is listed no more, or gives another error, does not say that it is back.
        there = error in (0, RESET_REQUIRED)
        away = memory.lost.told(False if there else True if error == LOST else None, row.at)
        unlisted = memory.unlisted.told(error == NOT_FOUND, row.at)
        gone = unlisted.lasted(self.settings.hold, row.at)
        mute = memory.mute.told(up == 0 and error not in (LOST, RESET_REQUIRED, NOT_FOUND), row.at)
        lost = Finding(
            subject=subject, check=self.name, code="nvml_lost", at=row.at, severity="critical", remedy="reboot",
            ladder=("reboot", "replace"), blame="hardware", clears=("reboot", "replace", "ack"), advice="drain",
            latched=away.lasted(self.settings.hold, row.at), stands=error == LOST,
            reason="the driver's library calls the GPU lost",
        )  # fmt: skip
        missing = Finding(
            subject=subject, check=self.name, code="nvml_unlisted", at=row.at, stands=error == NOT_FOUND,
            severity="critical" if gone else "degraded", remedy="reboot", ladder=("reboot", "replace"),
            blame="unknown", advice="drain" if gone else "watch", clears=("reboot", "replace", "ack"),
            reason="the driver's library lists the GPU no more",
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
            stands=mute.lasted(self.settings.hold, row.at),
            reason=f"the driver's library cannot read the GPU: its error {error:g}",
        )  # fmt: skip
        others = (missing, reset, silent)
        return Memory(lost=away, unlisted=unlisted, mute=mute), ((lost, *others) if there or lost.stands else others)


def build(settings: Settings, rules: Rules) -> GpuLost:
    """The detector with a site's settings."""
    return GpuLost(settings)
