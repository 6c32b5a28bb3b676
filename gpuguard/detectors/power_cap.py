"""GPUs whose power limit was lowered, and GPUs that draw far more than their limit.

A lowered limit is somebody's choice, and the first thing to know of a node that is slower than its neighbours. More
power than the limit allows, for long, is a regulator or a sensor that is broken. A limit of 0 is none.

Reads     power_limit_watts with power_default_limit_watts, power_watts with power_limit_watts, of each GPU
Source    nvml.h, nvmlDeviceGetEnforcedPowerLimit and nvmlDeviceGetPowerManagementDefaultLimit; NVSentinel 465 (a check
          of power against a limit of 0)
Clears    when it is as it should be, a reset, a reboot, a new part, or by a person
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
    """How far from what is to be expected, for how long."""

    lowered: float = 0.05  # of the product's limit: lowered by more than this is worth a word
    above: float = 0.2  # of the limit in force: drawing more than this above it is none of the limit's doing
    hold: Seconds = Seconds(60.0)  # a lowered limit: at every look for this long
    above_hold: Seconds = Seconds(900.0)  # too much power: at every look for this long
    lowest_limit: float = 10.0  # watts; a limit below this is none

    def __post_init__(self) -> None:
        if self.lowered <= 0 or self.above <= 0 or self.lowest_limit <= 0:
            raise ValueError("lowered, above and lowest_limit must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the limit has been low, and since when more has been drawn."""

    lowered: Held = Held()
    above: Held = Held()


class PowerCap:
    """Reports GPUs with a lowered power limit, and those that do not keep theirs."""

    name = "power_cap"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("power_limit_watts", "power_watts")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        limit, default = self._limit(row, "power_limit_watts"), self._limit(row, "power_default_limit_watts")
        watts = row.number("power_watts")
        findings = []
        if limit is not None and default is not None:
            lowered = memory.lowered.told(limit < default * (1 - self.settings.lowered), row.at)
            memory = msgspec.structs.replace(memory, lowered=lowered)
            finding = Finding(
                subject=subject, check=self.name, code="power_limit_lowered", at=row.at, blame="configuration",
                stands=lowered.lasted(self.settings.hold, row.at), clears=("reset", "reboot", "replace", "ack"),
                reason=f"its power limit is {limit:g} W; the product's is {default:g} W",
            )  # fmt: skip
            findings.append(finding)
        if limit is not None and watts is not None:
            above = memory.above.told(watts > limit * (1 + self.settings.above), row.at)
            memory = msgspec.structs.replace(memory, above=above)
            finding = Finding(
                subject=subject, check=self.name, code="power_above_limit", at=row.at, severity="degraded",
                stands=above.lasted(self.settings.above_hold, row.at), blame="hardware", remedy="test", advice="test",
                clears=("reset", "reboot", "replace", "ack"),
                reason=f"draws {watts:.0f} W; its limit is {limit:g} W",
            )  # fmt: skip
            findings.append(finding)
        return memory, tuple(findings)

    def _limit(self, row: Row, name: str) -> float | None:
        watts = row.number(name)
        return watts if watts is not None and watts >= self.settings.lowest_limit else None


def build(settings: Settings, rules: Rules) -> PowerCap:
    """The detector with a site's settings."""
    return PowerCap(settings)
