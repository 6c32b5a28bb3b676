"""A GPU without persistence mode: the driver lets go of it whenever nobody uses it.

Then each first call takes seconds, the limits that were set are forgotten, and counters begin anew between jobs. The
service nvidia-persistenced, or the old mode itself, keeps the driver loaded.

Reads     persistence_mode; of each GPU
Source    nvmlDeviceGetPersistenceMode; DCGM counts it as configuration (PERSISTENCE_MODE)
Clears    when it is on, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this site runs its GPUs."""

    expected: Literal["on", "any"] = "on"  # any: nothing is told
    hold: Seconds = Seconds(300.0)  # the service turns it on a while after the driver was loaded

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError("hold: must not be negative")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it is off."""

    off: Held = Held()


class PersistenceMode:
    """Reports GPUs that the driver lets go of."""

    name = "persistence_mode"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("persistence_mode",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        mode = row.number("persistence_mode")
        if mode is None:
            return memory, ()
        off = memory.off.told(mode == 0, row.at)
        finding = Finding(
            subject=subject, check=self.name, code="persistence_off", at=row.at, severity="degraded",
            blame="configuration", advice="watch", clears=("ack",),
            stands=self.settings.expected == "on" and off.lasted(self.settings.hold, row.at),
            reason="persistence mode is off: start nvidia-persistenced",
        )  # fmt: skip
        return Memory(off=off), (finding,)


def build(settings: Settings, rules: Rules) -> PersistenceMode:
    """The detector with a site's settings."""
    return PersistenceMode(settings)
