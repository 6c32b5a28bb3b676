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
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Nothing to tune: the flag is the driver's."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the flag says it all."""


class MemoryUnrepairable:
    """Reports GPUs whose memory is beyond repair."""

    name = "memory_unrepairable"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("memory_unrepairable",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        beyond = row.number("memory_unrepairable")
        if beyond is None:
            return memory, ()
        return memory, (
            Finding(
                subject=subject, check=self.name, code="memory_unrepairable", at=row.at, severity="critical",
                remedy="replace", blame="hardware", latched=True, clears=("replace", "ack"), advice="drain",
                stands=beyond == 1, reason="the driver says that the memory cannot be repaired any more",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> MemoryUnrepairable:
    """The detector."""
    return MemoryUnrepairable()
