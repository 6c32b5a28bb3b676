"""Rows of a GPU's memory that wait to be replaced, that could not be, and spares that run out.

A pending row is safe until the GPU is reset, which replaces it. A row that could not be replaced is the driver's own
verdict, kept in the InfoROM: the memory is no longer to be trusted. It drains when two looks agree. Spares that run out
are no fault yet.

Reads     row_remap_pending, row_remap_failure, remap_banks_none, remapped_rows_uncorrectable; of each GPU
Source    NVIDIA GPU Memory Error Management, row remapping and RMA policy; DCGM: pending WARN, failure FAIL (80), 512
          rows or more WARN (132)
Clears    pending: when a reset has replaced the row; failed, and 512 rows: a new board or a person; spares: when a bank
          has one again, a new board or a person
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
    """What the vendor's tables say."""

    rows: int = 512  # rows replaced for uncorrected errors; after these the next one fails
    hold: Seconds = Seconds(30.0)  # between two looks that agree that a row could not be replaced

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError("rows: must be at least 1")
        if self.hold <= 0:
            raise ValueError("hold: must be more than 0: one look is no proof")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when a row could not be replaced."""

    failed: Held = Held()


class RowRemap:
    """Reports pending and failed replacements of rows, and spares that run out."""

    name = "row_remap"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("row_remap_pending", "row_remap_failure", "remap_banks_none", "remapped_rows_uncorrectable")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        findings: list[Finding] = []
        if (pending := row.number("row_remap_pending")) is not None:
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="row_remap_pending", at=row.at, severity="degraded",
                    remedy="reset", blame="hardware", advice="test", clears=("reset", "reboot", "replace", "ack"),
                    stands=pending == 1, reason="a row of memory waits to be replaced: reset the GPU when it is idle",
                )
            )  # fmt: skip
        failed = memory.failed
        if (failure := row.number("row_remap_failure")) is not None:
            failed = failed.told(failure == 1, row.at)
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="row_remap_failed", at=row.at, severity="critical",
                    remedy="replace", blame="hardware", advice="drain", latched=True, clears=("replace", "ack"),
                    stands=failed.lasted(self.settings.hold, row.at), self_evident=True,
                    reason="a row of memory could not be replaced",
                )
            )  # fmt: skip
        if (bare := row.number("remap_banks_none")) is not None:
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="row_remap_spares", at=row.at, severity="degraded",
                    remedy="test", blame="hardware", advice="watch", clears=("replace", "ack"), stands=bare > 0,
                    reason=f"banks of memory without a spare row: {bare:g}; the next bad row there will stay",
                )
            )  # fmt: skip
        if (rows := row.number("remapped_rows_uncorrectable")) is not None:
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="row_remap_limit", at=row.at, severity="degraded",
                    remedy="test", blame="hardware", advice="test", latched=True, clears=("replace", "ack"),
                    stands=rows >= self.settings.rows,
                    reason=f"{rows:g} rows of memory were replaced for uncorrected errors",
                )
            )  # fmt: skip
        return Memory(failed=failed), findings


def build(settings: Settings, rules: Rules) -> RowRemap:
    """The detector with a site's settings."""
    return RowRemap(settings)
