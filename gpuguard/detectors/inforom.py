"""A GPU whose InfoROM is damaged.

The InfoROM holds the board's identity, its settings and the history of its errors. Damaged, the GPU computes as before,
but what it remembers of itself is no longer to be trusted.

Reads     inforom_valid; of each GPU
Source    nvmlDeviceValidateInforom; DCGM: WARN (9), CORRUPT_INFOROM is for triage
Clears    when it is valid again, a new board, or by a person
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
    """Nothing to tune: its checksum is right or it is not."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the newest word says it all."""


class Inforom:
    """Reports damaged InfoROMs."""

    name = "inforom"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("inforom_valid",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        valid = row.number("inforom_valid")
        if valid is None:
            return memory, ()
        return memory, (
            Finding(
                subject=subject, check=self.name, code="inforom_damaged", at=row.at, severity="degraded",
                remedy="test", blame="hardware", advice="test", clears=("replace", "ack"), stands=valid == 0,
                reason="the InfoROM is damaged; a GPU that fails its test as well needs to be replaced",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Inforom:
    """The detector."""
    return Inforom()
