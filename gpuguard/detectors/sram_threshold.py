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


class SramThreshold:
    """Reports GPUs whose SRAM passed the vendor's limit."""

    name = "sram_threshold"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("sram_threshold_exceeded",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        exceeded = row.number("sram_threshold_exceeded")
        if exceeded is None:
            return memory, ()
        up = memory.up.told(exceeded == 1, row.at)
        return (memory if up is memory.up else Memory(up=up)), (
            Finding(
                subject=subject, check=self.name, code="sram_threshold", at=row.at, severity="critical",
                remedy="replace", blame="hardware", latched=True, clears=("replace", "ack"), advice="test",
                stands=up.lasted(self.settings.hold, row.at),
                reason="uncorrected SRAM errors passed the vendor's limit: run the field diagnostic",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> SramThreshold:
    """The detector with a site's settings."""
    return SramThreshold(settings)
