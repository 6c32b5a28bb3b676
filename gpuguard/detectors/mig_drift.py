"""MIG is set otherwise than this site wants it, or will be after the next reset.

Whoever cuts GPUs into instances does it on purpose, so that nothing is expected unless the site says so. A change that
waits for a reset is only told.

Reads     mig_mode, mig_mode_pending; of each GPU that can do MIG
Source    nvmlDeviceGetMigMode
Clears    when it is as wanted, and nothing is pending, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this site runs its GPUs."""

    expected: Literal["on", "off", "any"] = "any"  # any: only a change that waits for a reset is told


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the newest word says it all."""


class MigDrift:
    """Reports MIG that is not as the site wants it."""

    name = "mig_drift"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("mig_mode", "mig_mode_pending")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        mode, pending, expected = row.number("mig_mode"), row.number("mig_mode_pending"), self.settings.expected
        if mode is None:
            return memory, ()
        findings: list[Finding] = []
        if expected != "any":
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="mig_mode", at=row.at, severity="degraded",
                    remedy="reset", blame="configuration", advice="watch", clears=("ack",),
                    stands=_word(mode) != expected, reason=f"MIG is {_word(mode)}; this site wants it {expected}",
                )
            )  # fmt: skip
        if pending is not None:
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="mig_mode_pending", at=row.at, severity="info",
                    remedy="reset", blame="configuration", clears=("ack",), stands=pending != mode,
                    reason=f"MIG is {_word(mode)} and will be {_word(pending)} after the next reset",
                )
            )  # fmt: skip
        return memory, findings


def _word(flag: float) -> str:
    return "on" if flag == 1 else "off"


def build(settings: Settings, rules: Rules) -> MigDrift:
    """The detector with a site's settings."""
    return MigDrift(settings)
