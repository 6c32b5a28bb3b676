"""Disks that gpuguard needs and that are nearly full.

What is not on disk is not acted on: a full disk of the state directory stops the agent from draining anything.

Reads     disk_free_ratio and disk_inodes_free_ratio, one row a disk
Source    statvfs(3); the agent's own rule to write first and act then
Clears    when there is room again, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding, Severity
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How little room is little."""

    low: float = 0.05  # share of space or inodes that is free: worth a word
    full: float = 0.03  # and worth a person
    slack: float = 0.01  # so much more than its limit must be free before a word is taken back

    def __post_init__(self) -> None:
        if not 0 <= self.full <= self.low < 1 or self.slack < 0:
            raise ValueError("full must not be above low, low must be below 1, and slack not below 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What was said last: '', low or full."""

    said: str = ""


class DiskSpace:
    """Reports disks that are nearly full."""

    name = "disk_space"
    of: tuple[SubjectKind, ...] = ("disk",)
    reads = ("disk_free_ratio", "disk_inodes_free_ratio")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        shares = {
            words: share
            for words, name in (("space", "disk_free_ratio"), ("inodes", "disk_inodes_free_ratio"))
            if (share := row.number(name)) is not None and 0 <= share <= 1
        }
        if not shares:
            return memory, ()
        what = min(shares, key=lambda words: shares[words])
        said = self._word(memory.said, shares[what])
        severity: Severity = "degraded" if said == "full" else "info"
        finding = Finding(
            subject=subject, check=self.name, code="disk_space", at=row.at, severity=severity, stands=said != "",
            blame="host", advice="watch" if said == "full" else "none", clears=("ack",),
            reason=f"{shares[what]:.1%} of its {what} free",
        )  # fmt: skip
        return Memory(said=said), (finding,)

    def _word(self, before: str, share: float) -> str:
        full = self.settings.full + (self.settings.slack if before == "full" else 0.0)
        low = self.settings.low + (self.settings.slack if before else 0.0)
        return "full" if share < full else "low" if share < low else ""


def build(settings: Settings, rules: Rules) -> DiskSpace:
    """The detector with a site's settings."""
    return DiskSpace(settings)
