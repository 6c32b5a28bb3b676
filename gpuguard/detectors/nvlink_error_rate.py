"""NVLinks that err more than a good link does.

Every counter runs since the driver was loaded, so only what came since the last look counts, and what a start of the
machine left does not. Up to Hopper there are CRC errors, replays and recoveries; from Blackwell on, kinds of errors,
the outcome of recoveries, and the share of bits that correction could not mend. No kind drains alone: those that the
driver would not survive come with an Xid, and that one decides.

Reads     nvlink_crc_errors_total, nvlink_replay_errors_total, nvlink_recovery_errors_total, nvlink5_*_total and
          nvlink_effective_ber, of each GPU
Source    DCGM 4.6, health watch NVLINK: CRC errors 1 a minute warn and 100 a second fail, a replay or recovery fails;
          NVLink 5: any error, effective bit error rate above 1e-12, recovery failed
Clears    when the window passed without, a reset, a reboot, a new part, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Advice, Finding, Remedy, Severity
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter

CRC = "nvlink_crc_errors_total"
RETRIES = ("nvlink_replay_errors_total", "nvlink_recovery_errors_total")
RECOVERED = "nvlink5_recovery_successful_total"
FAILED = "nvlink5_recovery_failed_total"
# What DCGM's health watch counts as an error; symbol errors are what the code is there to correct.
KINDS = ("malformed", "buffer_overrun", "receive", "receive_remote", "receive_general", "local_integrity", "effective")
ERRORS = tuple(f"nvlink5_{kind}_total" for kind in KINDS)
BER = "nvlink_effective_ber"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many errors are too many."""

    crc_per_minute: float = 1.0  # so many are worth a look
    crc_per_second: float = 100.0  # so many are a link that does not work
    crc_window: Seconds = Seconds(300.0)  # the rate of CRC errors is that of this time
    errors: float = 1.0  # of any other kind, within the window
    window: Seconds = Seconds(600.0)  # and for this long after the last one
    bit_errors: float = 1e-12  # share of bits that correction could not mend

    def __post_init__(self) -> None:
        if min(self.crc_per_minute, self.crc_per_second, self.crc_window, self.errors, self.window) <= 0:
            raise ValueError("every limit and window must be more than 0: counters are never judged by what they show")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How each counter grew in this boot."""

    counters: dict[str, Counter] = {}
    boot: BootId | None = None


class NvlinkErrorRate:
    """Reports GPUs whose NVLinks err."""

    name = "nvlink_error_rate"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = (CRC, *RETRIES, *ERRORS, RECOVERED, FAILED, BER)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        counters = dict(memory.counters) if memory.boot == row.at.boot else {}
        shown: set[str] = set()
        for column in (CRC, *RETRIES, *ERRORS, RECOVERED, FAILED):
            count = row.number(column)
            if count is not None and count >= 0:
                window = self.settings.crc_window if column == CRC else self.settings.window
                known = counters.get(column, Counter())
                counters[column] = known.seen(count, row.at, window, as_rate=column == CRC)
                shown.add(column)
        ber = row.number(BER)
        if not shown and ber is None:
            return memory, ()
        grown = {column: counters[column].growth() for column in counters if column in shown}
        findings = [*self._crc(subject, row, grown), *self._counted(subject, row, grown)]
        if ber is not None:
            reason = f"{ber:.1e} of the bits of its worst NVLink stay wrong; {self.settings.bit_errors:.0e} are allowed"
            stands = ber > self.settings.bit_errors
            findings.append(self._finding(subject, row, "nvlink_bit_errors", stands, reason))
        return Memory(counters=counters, boot=row.at.boot), tuple(findings)

    def _crc(self, subject: SubjectId, row: Row, grown: dict[str, float]) -> Sequence[Finding]:
        if CRC not in grown:
            return ()
        per_second = grown[CRC] / self.settings.crc_window
        reason = f"{per_second * 60:.1f} CRC errors a minute on its NVLinks"
        if per_second >= self.settings.crc_per_second:
            return (self._finding(subject, row, "nvlink_crc", True, reason, "critical", "reset", "drain"),)
        return (self._finding(subject, row, "nvlink_crc", per_second * 60 >= self.settings.crc_per_minute, reason),)

    def _counted(self, subject: SubjectId, row: Row, grown: dict[str, float]) -> list[Finding]:
        findings = []
        groups: tuple[tuple[str, tuple[str, ...], str, Severity, Remedy, Advice], ...] = (
            ("nvlink_retries", RETRIES, "NVLink had to repeat itself", "degraded", "none", "watch"),
            ("nvlink5_errors", ERRORS, "NVLink erred", "degraded", "test", "test"),
            ("nvlink5_recovered", (RECOVERED,), "NVLink lost a link and recovered it", "info", "none", "none"),
            ("nvlink5_recovery_failed", (FAILED,), "NVLink could not recover a link", "critical", "reset", "drain"),
        )
        for code, columns, words, severity, remedy, advice in groups:
            counts = {column: grown[column] for column in columns if column in grown}
            if not counts:
                continue
            kinds = ", ".join(f"{_kind(column)} {count:g}" for column, count in counts.items() if count > 0)
            stands = sum(counts.values()) >= self.settings.errors
            reason = f"{words} within {self.settings.window:.0f} s: {kinds}"
            findings.append(self._finding(subject, row, code, stands, reason, severity, remedy, advice))
        return findings

    def _finding(
        self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str, severity: Severity = "degraded",
        remedy: Remedy = "test", advice: Advice = "test",
    ) -> Finding:  # fmt: skip
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, stands=stands, severity=severity, remedy=remedy,
            blame="hardware", advice=advice, ladder=("reset", "reboot", "replace") if remedy == "reset" else (),
            clears=("reset", "reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip


def _kind(column: str) -> str:
    """The word for a column: what is left of its name."""
    name = column.removesuffix("_total").removesuffix("_errors")
    return name.removeprefix("nvlink5_").removeprefix("nvlink_").replace("_", " ")


def build(settings: Settings, rules: Rules) -> NvlinkErrorRate:
    """The detector with a site's settings."""
    return NvlinkErrorRate(settings)
