"""GPUs that stay as hot as their limit, or hotter.

A moment at the limit is how a GPU protects itself; minutes there are a fan, a heat sink or a cold aisle. Newer GPUs
give no limit in degrees, only the margin that is left to it. Drivers were seen to give 0 or less for a limit or a
margin that they do not know, so neither says anything.

Reads     temperature_celsius with slowdown_temperature_celsius and operating_temperature_limit_celsius, else
          temperature_margin_celsius, of each GPU
Source    nvml.h, nvmlTemperatureThresholds_t and nvmlDeviceGetMarginTemperature; gpud 1208 (a margin of 0 read as hot)
Clears    when it is cooler again, a reset, a reboot, a new part, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Celsius, Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How hot for how long."""

    slowdown_hold: Seconds = Seconds(60.0)  # at the temperature at which clocks are held down
    operating_hold: Seconds = Seconds(300.0)  # at the highest temperature of normal operation, or without margin to it
    margin: Celsius = Celsius(2.0)  # no more than this is left to the limit: as hot as the limit
    lowest_limit: Celsius = Celsius(60.0)  # a limit below this is none

    def __post_init__(self) -> None:
        if self.margin <= 0:
            raise ValueError("margin must be more than 0: a margin of 0 is what drivers give for an unknown one")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has been how hot."""

    slowdown: Held = Held()
    operating: Held = Held()
    margin: Held = Held()


class Thermal:
    """Reports GPUs that stay at their limit of temperature."""

    name = "thermal"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("temperature_celsius", "temperature_margin_celsius")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        celsius = row.number("temperature_celsius")
        slowdown, operating = (
            self._limit(row, name) for name in ("slowdown_temperature_celsius", "operating_temperature_limit_celsius")
        )
        if celsius is None or (slowdown is None and operating is None):
            return self._by_margin(memory, subject, row)
        after = Memory(
            slowdown=memory.slowdown if slowdown is None else memory.slowdown.told(celsius >= slowdown, row.at),
            operating=memory.operating if operating is None else memory.operating.told(celsius >= operating, row.at),
            margin=memory.margin,
        )
        if slowdown is not None and after.slowdown.lasted(self.settings.slowdown_hold, row.at):
            reason = f"{celsius:g} degrees; its clocks are held down from {slowdown:g} on"
            return after, (self._finding(subject, row, True, reason),)
        hot = operating is not None and after.operating.lasted(self.settings.operating_hold, row.at)
        reason = "" if operating is None else f"{celsius:g} degrees; {operating:g} is the most in normal operation"
        return after, (self._finding(subject, row, hot, reason),)

    def _by_margin(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        margin = row.number("temperature_margin_celsius")
        if margin is None or margin <= 0:
            return memory, ()
        after = msgspec.structs.replace(memory, margin=memory.margin.told(margin <= self.settings.margin, row.at))
        hot = after.margin.lasted(self.settings.operating_hold, row.at)
        reason = f"{margin:g} degrees to the most in normal operation"
        return after, (self._finding(subject, row, hot, reason),)

    def _limit(self, row: Row, name: str) -> float | None:
        limit = row.number(name)
        return limit if limit is not None and limit >= self.settings.lowest_limit else None

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="thermal", at=row.at, stands=stands, severity="degraded",
            blame="host", advice="watch", clears=("reset", "reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Thermal:
    """The detector with a site's settings."""
    return Thermal(settings)
