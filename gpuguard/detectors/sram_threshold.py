"""The vendor's limit of uncorrected SRAM errors is passed.

The driver keeps the flag in the InfoROM. It is the vendor's criterion for a new board, once the field diagnostic
agrees: so the GPU is to be tested, and the flag alone drains nothing. With a second witness, as Xid 48 or 95 of the
same time, the node drains and a new board is due.

Reads     sram_threshold_exceeded; of each GPU
Source    NVIDIA GPU Memory Error Management, RMA policy: more than 4 unique errors in one bank of a parity-protected
          SRAM, more than 2 with SECDED; "the field diagnostic determines"
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
    """Nothing to tune: the limit is the vendor's."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the flag says it all."""


class SramThreshold:
    """Reports GPUs whose SRAM passed the vendor's limit."""

    name = "sram_threshold"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("sram_threshold_exceeded",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        exceeded = row.number("sram_threshold_exceeded")
        if exceeded is None:
            return memory, ()
        return memory, (
            Finding(
                subject=subject, check=self.name, code="sram_threshold", at=row.at, severity="critical",
                remedy="replace", blame="hardware", latched=True, clears=("replace", "ack"), advice="test",
                stands=exceeded == 1,
                reason="uncorrected SRAM errors passed the vendor's limit: run the field diagnostic",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> SramThreshold:
    """The detector."""
    return SramThreshold()
