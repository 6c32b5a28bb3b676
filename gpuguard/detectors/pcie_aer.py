"""Errors on the PCIe link of a GPU that the GPU itself reported and that could not be corrected.

The kernel's counters see them where its log was full or had already turned over. Alone they decide nothing: a program
that asks a device for what it does not have makes a non-fatal one, too.

Reads     pcie_aer_fatal_total and pcie_aer_nonfatal_total of each GPU
Source    PCI Express Base Specification, Advanced Error Reporting; Linux drivers/pci/pcie/aer.c
Clears    when none came for as long as the window is
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many are too many."""

    fatal: int = 1  # fatal ones within the time
    nonfatal: int = 10  # non-fatal ones within the time
    within: Seconds = Seconds(3600.0)  # the time

    def __post_init__(self) -> None:
        """Raises ValueError for a count that any GPU meets."""
        if min(self.fatal, self.nonfatal) < 1:
            raise ValueError("fatal and nonfatal must be at least 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How many came lately."""

    fatal: Counter = Counter()
    nonfatal: Counter = Counter()


class PcieAer:
    """Reports GPUs whose link had errors that were not corrected."""

    name = "pcie_aer"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("pcie_aer_fatal_total", "pcie_aer_nonfatal_total")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        fatal, nonfatal = row.number("pcie_aer_fatal_total"), row.number("pcie_aer_nonfatal_total")
        after = Memory(
            fatal=memory.fatal.seen(fatal, row.at, self.settings.within),
            nonfatal=memory.nonfatal.seen(nonfatal, row.at, self.settings.within),
        )
        findings = []
        if fatal is not None:
            findings.append(self._finding(subject, row, "fatal", after.fatal, self.settings.fatal))
        if nonfatal is not None:
            findings.append(self._finding(subject, row, "nonfatal", after.nonfatal, self.settings.nonfatal))
        return (memory if after == memory else after), findings

    def _finding(self, subject: SubjectId, row: Row, kind: str, counter: Counter, limit: int) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=f"pcie_aer_{kind}", at=row.at, severity="degraded",
            blame="hardware", clears=("reset", "reboot", "replace", "ack"), advice="watch",
            stands=counter.growth() >= limit,
            reason=f"{kind} errors on the PCIe link within {self.settings.within / 3600:g} h: {counter.growth():g}",
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> PcieAer:
    """The detector with a site's settings."""
    return PcieAer(settings)
