"""GPUs that the server's power brake holds down, for long.

The brake is a wire from the power supplies or the chassis: the GPU runs at a fraction of its clock, silently. Short
ones are everyday noise; the long ones are a power supply or a feed that failed.

Reads     clock_events (bit 0x80), hw_power_brake_seconds_total, of each GPU
Source    nvml.h, nvmlClocksEventReasonHwPowerBrakeSlowdown; NVSentinel 1666 (69 % of nodes fire short ones; nine nodes
          were braked for 36 hours and nobody saw it)
Clears    when it is let go, a reset, a reboot, a new part, or by a person
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

POWER_BRAKE = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a brake is no longer noise."""

    hold: Seconds = Seconds(300.0)  # braked at every look for this long
    window: Seconds = Seconds(3600.0)  # or, counted by the driver, braked in this time
    braked: Seconds = Seconds(600.0)  # for this long in all

    def __post_init__(self) -> None:
        if not 0 < self.braked <= self.window:
            raise ValueError("braked must be more than 0 and no more than window")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has been braked, and how long in all."""

    braked: Held = Held()
    seconds: Counter = Counter()


class PowerBrake:
    """Reports GPUs that the server brakes."""

    name = "power_brake"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("clock_events", "hw_power_brake_seconds_total")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        events, counted = row.bits("clock_events"), row.number("hw_power_brake_seconds_total")
        if events is None and counted is None:
            return memory, ()
        after = Memory(
            braked=memory.braked.told(None if events is None else bool(events & POWER_BRAKE), row.at),
            seconds=memory.seconds.seen(counted, row.at, self.settings.window),
        )
        held = events is not None and after.braked.lasted(self.settings.hold, row.at)
        grown = after.seconds.growth() if counted is not None else 0.0
        reason = (
            f"the server's power brake has held it down for {after.braked.seconds(row.at):.0f} s"
            if held
            else f"the server's power brake held it down for {grown:.0f} s of the last {self.settings.window:.0f}"
        )
        finding = Finding(
            subject=subject, check=self.name, code="power_brake", at=row.at, severity="degraded", blame="host",
            stands=held or grown >= self.settings.braked, advice="watch",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"{reason}; look at the node's power supplies",
        )  # fmt: skip
        return after, (finding,)


def build(settings: Settings, rules: Rules) -> PowerBrake:
    """The detector with a site's settings."""
    return PowerBrake(settings)
