"""Pages of memory that a GPU before Ampere has retired: too many, too many of late, or waiting for a reset.

Newer GPUs replace rows instead (`row_remap`) and have no such count. The count is no verdict of the hardware, and what
is retired is out of use: alone it drains nothing.

Reads     retired_pages_single_bit, retired_pages_double_bit, retired_pages_pending; of each GPU
Source    DCGM: 63 pages or more FAIL; more than 15 for double-bit errors and more than one of them within a week FAIL;
          pending WARN
Clears    too many: a new board, or by a person; pending: when a reset has retired the page
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
    """How many pages are too many."""

    pages: int = 63  # of both kinds together
    double_bit: int = 15  # more than these, and more than `recent` of them
    recent: int = 1  # more than these were retired lately
    within: Seconds = Seconds(604800.0)  # in this time

    def __post_init__(self) -> None:
        if self.pages < 1 or self.double_bit < 0 or self.recent < 0:
            raise ValueError("pages must be at least 1, double_bit and recent not negative")
        if self.within <= 0:
            raise ValueError("within: must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How many pages were retired for double-bit errors of late."""

    double_bit: Counter = Counter()


class RetiredPages:
    """Reports GPUs that retired too many pages, or that wait to retire one."""

    name = "retired_pages"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("retired_pages_single_bit", "retired_pages_double_bit", "retired_pages_pending")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        single, double = row.number("retired_pages_single_bit"), row.number("retired_pages_double_bit")
        counter = memory.double_bit.seen(double, row.at, self.settings.within)
        findings: list[Finding] = []
        if single is not None and double is not None:
            recent = counter.growth()
            many = single + double >= self.settings.pages
            of_late = double > self.settings.double_bit and recent > self.settings.recent
            late = f", {recent:g} of those within {self.settings.within / 86400.0:g} days" if of_late else ""
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="retired_pages", at=row.at, severity="critical",
                    remedy="replace", blame="hardware", latched=True, clears=("replace", "ack"), advice="test",
                    stands=many or of_late,
                    reason=f"{single + double:g} pages of memory are retired, {double:g} for double-bit errors{late}",
                )
            )  # fmt: skip
        if (pending := row.number("retired_pages_pending")) is not None:
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="retired_pages_pending", at=row.at, severity="degraded",
                    remedy="reset", blame="hardware", advice="test", clears=("reset", "reboot", "replace", "ack"),
                    stands=pending == 1, reason="a page of memory waits to be retired: reset the GPU when it is idle",
                )
            )  # fmt: skip
        return Memory(double_bit=counter), findings


def build(settings: Settings, rules: Rules) -> RetiredPages:
    """The detector with a site's settings."""
    return RetiredPages(settings)
