"""Memory of a GPU that stays as hot as its limit, or hotter.

HBM wears out and errs when it is hot long before the core is; few GPUs with GDDR tell its temperature at all.

Reads     memory_temperature_celsius with memory_temperature_limit_celsius, of each GPU
Source    nvml.h, NVML_FI_DEV_MEMORY_TEMP and NVML_TEMPERATURE_THRESHOLD_MEM_MAX
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

    limit: Celsius = Celsius(95.0)  # where the driver gives none
    lowest_limit: Celsius = Celsius(60.0)  # a limit of the driver below this is none
    hold: Seconds = Seconds(120.0)  # at the limit for this long

    def __post_init__(self) -> None:
        if self.limit <= 0:
            raise ValueError("limit must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has been at its limit."""

    hot: Held = Held()


class MemoryTemperature:
    """Reports GPUs whose memory stays at its limit of temperature."""

    name = "memory_temperature"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("memory_temperature_celsius",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        celsius = row.number("memory_temperature_celsius")
        # GPUs that do not measure it were seen to give 0.
        if celsius is None or celsius <= 0:
            return memory, ()
        told = row.number("memory_temperature_limit_celsius")
        limit = told if told is not None and told >= self.settings.lowest_limit else self.settings.limit
        hot = memory.hot.told(celsius >= limit, row.at)
        finding = Finding(
            subject=subject, check=self.name, code="memory_temperature", at=row.at, severity="degraded", blame="host",
            stands=hot.lasted(self.settings.hold, row.at), advice="watch",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"its memory has {celsius:g} degrees; {limit:g} is the most it is made for",
        )  # fmt: skip
        return Memory(hot=hot), (finding,)


def build(settings: Settings, rules: Rules) -> MemoryTemperature:
    """The detector with a site's settings."""
    return MemoryTemperature(settings)
