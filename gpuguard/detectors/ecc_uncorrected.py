"""Memory errors of a GPU that could not be corrected, while they are counted.

Only growth counts: what a counter shows when it is first seen may be years old. Errors of the DRAM lose data of a
program; the driver prints Xid 48 or 95 with them, which is the other witness. Errors of the SRAM are judged by the
vendor's limit (`sram_threshold`), and until then are worth a look. Where the driver does not tell the two apart, or
only counts for life, all of them are taken for the DRAM's.

Reads     ecc_dram_uncorrected, ecc_sram_uncorrected (since the driver was loaded); where the GPU has neither,
          ecc_uncorrected_volatile, else ecc_uncorrected_aggregate; of each GPU
Source    DCGM: volatile double-bit errors fail the memory watch; a health check that failed GPUs for ever on a counter
          for life (lessons, azhpc-2)
Clears    when the counter begins anew, as it does after a reset; after a day without growth; the remedy; a person
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter

DRAM, SRAM = "ecc_dram_uncorrected", "ecc_sram_uncorrected"
ALL, FOR_LIFE = "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long growth is remembered."""

    within: Seconds = Seconds(86400.0)  # without growth for this long it stands no longer

    def __post_init__(self) -> None:
        if self.within <= 0:
            raise ValueError("within: must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The counters by column."""

    counters: dict[str, Counter] = {}


class EccUncorrected:
    """Reports growth of uncorrected memory errors."""

    name = "ecc_uncorrected"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = (DRAM, SRAM, ALL, FOR_LIFE)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        known = {column: value for column in self.reads if (value := row.number(column)) is not None}
        if not known:
            return memory, ()
        counters = {**memory.counters, **self._grown(memory.counters, known, row.at)}
        findings: list[Finding] = []
        located = DRAM in row.values or SRAM in row.values
        # By what the GPU has: the counter for life is no stand-in for one that did not answer just now.
        dram = DRAM if located else next((column for column in (ALL, FOR_LIFE) if column in row.values), None)
        if dram in known:
            grown = counters[dram].growth()
            where = "of the DRAM" if located else "of the memory"
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="ecc_uncorrected", at=row.at, stands=grown > 0,
                    severity="critical", remedy="reset", ladder=("reset", "replace"), blame="hardware",
                    advice="drain", clears=("reset", "reboot", "replace", "ack"),
                    reason=f"uncorrected errors {where}: {grown:g} more, {known[dram]:g} in all",
                )
            )  # fmt: skip
        if SRAM in known:
            grown = counters[SRAM].growth()
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="ecc_sram_uncorrected", at=row.at, stands=grown > 0,
                    severity="degraded", remedy="reset", blame="hardware", advice="watch",
                    clears=("reset", "reboot", "replace", "ack"),
                    reason=f"uncorrected errors of the SRAM: {grown:g} more, {known[SRAM]:g} in all",
                )
            )  # fmt: skip
        return Memory(counters=counters), findings

    def _grown(self, counters: Mapping[str, Counter], known: Mapping[str, float], at: Instant) -> dict[str, Counter]:
        grown = {}
        for column, value in known.items():
            counter = counters.get(column, Counter())
            if counter.last is not None and value < counter.last:
                # A driver loaded anew counts from zero: what was before is over.
                counter = Counter()
            grown[column] = counter.seen(value, at, self.settings.within)
        return grown


def build(settings: Settings, rules: Rules) -> EccUncorrected:
    """The detector with a site's settings."""
    return EccUncorrected(settings)
