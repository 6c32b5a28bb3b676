"""A GPU whose memory cannot be repaired any more, as the driver says.

The driver's flag asks for a new board. It is new, its struct differs between the library's releases, and nobody has
held it against a real fault yet: a reading that is wrong would be wrong on every GPU alike. So it waits for a second
witness, as the kernel's Xid 48, 64 or 95, before it drains.

Reads     memory_unrepairable; of each GPU
Source    nvml.h 13.5, nvmlDeviceGetUnrepairableMemoryFlag_v1; DCGM: FAIL, faulty memory
Clears    a new board, or by a person
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
    """When the flag is believed. Units: seconds."""

    hold: Seconds = Seconds(30.0)  # between two looks that agree

    def __post_init__(self) -> None:
        if self.hold <= 0:
            raise ValueError("hold: must be more than 0: one look is no proof")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the flag is up."""

    up: Held = Held()


class MemoryUnrepairable:
    """Reports GPUs whose memory is beyond repair."""

    name = "memory_unrepairable"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("memory_unrepairable",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        beyond = row.number("memory_unrepairable")
        if beyond is None:
            return memory, ()
        up = memory.up.told(beyond == 1, row.at)
        return (memory if up is memory.up else Memory(up=up)), (
            Finding(
                subject=subject, check=self.name, code="memory_unrepairable", at=row.at, severity="critical",
                remedy="replace", blame="hardware", latched=True, clears=("replace", "ack"), advice="drain",
                stands=up.lasted(self.settings.hold, row.at),
                reason="the driver says that the memory cannot be repaired any more",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> MemoryUnrepairable:
    """The detector with a site's settings."""
    return MemoryUnrepairable(settings)
