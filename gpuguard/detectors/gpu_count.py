"""Fewer GPUs than this machine should have.

A GPU that never came up prints no line, and what was there yesterday proves nothing: the number that should be there
comes from the machine's profile. Alone it drains nothing, as the jobs on the other GPUs run on.

Reads     gpus_expected (of the profile), gpus_visible (to the driver's library), gpus_on_bus; of the node
Source    field reports of GPUs missing without any log line, or never enumerated (NVSentinel#684, #833, gpud#591);
          DCGM calls it DEVICE_COUNT_MISMATCH and a matter of configuration
Clears    when as many are visible as there should be, a reboot, or by a person
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long GPUs may be missing."""

    hold: Seconds = Seconds(120.0)  # while a driver is loaded anew its GPUs come up one after another

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError("hold: must not be negative")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when GPUs are missing."""

    short: Held = Held()


class GpuCount:
    """Reports nodes with fewer GPUs than their profile says."""

    name = "gpu_count"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("gpus_visible", "gpus_on_bus", "gpus_expected")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        expected = row.number("gpus_expected")
        visible, on_bus = row.number("gpus_visible"), row.number("gpus_on_bus")
        if expected is None:
            return memory, ()
        short = any(count is not None and count < expected for count in (visible, on_bus))
        if not short and visible is None:
            return memory, ()
        held = memory.short.told(short, row.at)
        seen = "" if visible is None else f"; {visible:g} are visible to the driver's library"
        there = "" if on_bus is None else f"; {on_bus:g} are on the bus"
        finding = Finding(
            subject=subject, check=self.name, code="gpu_count", at=row.at, severity="degraded", remedy="reboot",
            blame="unknown", clears=("reboot", "ack"), advice="watch",
            stands=held.lasted(self.settings.hold, row.at),
            reason=f"this machine should have {expected:g} GPUs{seen}{there}",
        )  # fmt: skip
        return Memory(short=held), (finding,)


def build(settings: Settings, rules: Rules) -> GpuCount:
    """The detector with a site's settings."""
    return GpuCount(settings)
