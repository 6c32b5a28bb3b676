"""Memory of the host that errs.

An uncorrected error that the kernel survived may have cost a process its data; many corrected ones come before it. The
counters run since the kernel's driver was loaded: only growth counts.

Reads     edac_uncorrected_total and edac_corrected_total, of the node
Source    kernel Documentation/driver-api/edac.rst, ue_count and ce_count; mcelog.conf for the thresholds
Clears    when the window passed without, a new part, or by a person
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
    """How many errors are too many."""

    uncorrected: float = 1.0  # within the window
    corrected: float = 100.0  # within the window
    window: Seconds = Seconds(86400.0)  # errors older than this are forgotten

    def __post_init__(self) -> None:
        if self.uncorrected <= 0 or self.corrected <= 0 or self.window <= 0:
            raise ValueError("uncorrected, corrected and window must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How the counters grew; over a reboot too, as they begin at 0 and a bad module stays bad."""

    uncorrected: Counter = Counter()
    corrected: Counter = Counter()


class Edac:
    """Reports a node whose memory errs."""

    name = "edac"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("edac_uncorrected_total", "edac_corrected_total")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        bad, mended = (_count(row, name) for name in self.reads)
        window = self.settings.window
        after = Memory(
            uncorrected=memory.uncorrected.seen(bad, row.at, window),
            corrected=memory.corrected.seen(mended, row.at, window),
        )
        findings = []
        if bad is not None:
            count = after.uncorrected.growth()
            reason = f"the host's memory erred beyond correction, {count:g} times within {window / 3600:g} h"
            findings.append(self._finding(subject, row, "edac_uncorrected", count >= self.settings.uncorrected, reason))
        if mended is not None:
            count = after.corrected.growth()
            reason = f"the host's memory erred and was corrected, {count:g} times within {window / 3600:g} h"
            findings.append(self._finding(subject, row, "edac_corrected", count >= self.settings.corrected, reason))
        return after, tuple(findings)

    def _finding(self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, stands=stands, severity="degraded", blame="host",
            remedy="test", advice="test", clears=("replace", "ack"), reason=reason,
        )  # fmt: skip


def _count(row: Row, name: str) -> float | None:
    count = row.number(name)
    return count if count is not None and count >= 0 else None


def build(settings: Settings, rules: Rules) -> Edac:
    """The detector with a site's settings."""
    return Edac(settings)
