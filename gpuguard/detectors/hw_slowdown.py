"""GPUs whose own hardware holds their clocks down, for long.

The hardware halves the clock or worse when the GPU is too hot or draws too much. The server's power brake sets the
same bit beside its own, and is `power_brake`'s to tell.

Reads     clock_events (bits 0x8 and 0x40), hw_thermal_slowdown_seconds_total, of each GPU
Source    nvml.h, nvmlClocksEventReasonHwSlowdown and nvmlClocksEventReasonHwThermalSlowdown; NVSentinel 1666
Clears    when the clocks are let go, a reset, a reboot, a new part, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter, Held

HW_SLOWDOWN = 0x8
HW_THERMAL = 0x40
POWER_BRAKE = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a slowdown is no longer the GPU's everyday self-defence."""

    hold: Seconds = Seconds(120.0)  # held down at every look for this long
    window: Seconds = Seconds(3600.0)  # or, counted by the driver, held down for heat in this time
    slowed: Seconds = Seconds(600.0)  # for this long in all

    def __post_init__(self) -> None:
        if not 0 < self.slowed <= self.window:
            raise ValueError("slowed must be more than 0 and no more than window")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when its clocks have been held down, and how long for heat in all."""

    slowed: Held = Held()
    seconds: Counter = Counter()


class HwSlowdown:
    """Reports GPUs that their own hardware slows down."""

    name = "hw_slowdown"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("clock_events", "hw_thermal_slowdown_seconds_total")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        events, counted = row.bits("clock_events"), row.number("hw_thermal_slowdown_seconds_total")
        if events is None and counted is None:
            return memory, ()
        after = Memory(
            slowed=memory.slowed.told(None if events is None else _is_slowed(events), row.at),
            seconds=memory.seconds.seen(counted, row.at, self.settings.window),
        )
        held = events is not None and after.slowed.lasted(self.settings.hold, row.at)
        grown = after.seconds.growth() if counted is not None else 0.0
        why = "for its temperature" if events is not None and events & HW_THERMAL else "by itself"
        reason = (
            f"the hardware has held its clocks down {why} for {after.slowed.seconds(row.at):.0f} s"
            if held
            else f"the hardware held its clocks down for heat for {grown:.0f} s of the last {self.settings.window:.0f}"
        )
        finding = Finding(
            subject=subject, check=self.name, code="hw_slowdown", at=row.at, severity="degraded", blame="hardware",
            stands=held or grown >= self.settings.slowed, advice="watch",
            clears=("reset", "reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip
        return after, (finding,)


def _is_slowed(events: int) -> bool:
    by_itself = events & HW_SLOWDOWN and not events & POWER_BRAKE
    return bool(events & HW_THERMAL or by_itself)


def build(settings: Settings, rules: Rules) -> HwSlowdown:
    """The detector with a site's settings."""
    return HwSlowdown(settings)
