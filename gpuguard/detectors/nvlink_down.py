"""NVLinks that are down though the machine's profile expects them.

Links without a partner read as down too: a PCIe card without its bridge, any GPU while it is cut into instances. So
nothing is said without an expectation, and nothing stands while MIG is on.

Reads     nvlink_up, else nvlinks_active, with nvlinks_expected of the machine's profile and mig_mode, of each GPU
Source    nvml.h, NVML_FI_DEV_NVLINK_GET_STATE; NVSentinel PR 1481 (links of A100 PCIe cards reported down)
Clears    when all are up, when MIG is switched on, a reset, a reboot, a new part, or by a person
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
    """How long a link may be down."""

    hold: Seconds = Seconds(120.0)  # links train anew after a reset, and after MIG was switched off


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when links have been missing."""

    missing: Held = Held()


class NvlinkDown:
    """Reports GPUs with fewer links than they should have."""

    name = "nvlink_down"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("nvlink_up", "nvlinks_active")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        expected = row.number("nvlinks_expected")
        if expected is None or expected < 1:
            return memory, ()
        mig = row.number("mig_mode")
        if "mig_mode" in row.values and mig is None:
            return Memory(), ()  # links read as down on a GPU that is cut into instances, and nobody knows
        if mig:
            return Memory(), (self._finding(subject, row, False, "it is cut into instances"),)
        up, unknown, down = _links(row)
        if up is None or (up < expected <= up + unknown):
            return memory, ()
        missing = memory.missing.told(up + unknown < expected, row.at)
        names = ", ".join(str(link) for link in down)
        reason = f"{up:g} of {expected:g} NVLinks are up" + (
            f"; down: link{'s' if len(down) > 1 else ''} {names}" if names else ""
        )
        stands = missing.lasted(self.settings.hold, row.at)
        return Memory(missing=missing), (self._finding(subject, row, stands, reason),)

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="nvlink_down", at=row.at, stands=stands, severity="degraded",
            blame="hardware", remedy="reset", ladder=("reset", "reboot", "replace"), advice="test",
            clears=("reset", "reboot", "replace", "ack"), reason=reason,
        )  # fmt: skip


def _links(row: Row) -> tuple[float | None, int, list[int]]:
    """How many links are up (None where nobody knows), of how many nobody knows, and which are down."""
    links = row.parts("nvlink_up")
    if not links:
        return row.number("nvlinks_active"), 0, []
    return (
        float(sum(1 for state in links if state == 1)),
        sum(1 for state in links if state not in (0, 1)),
        [link for link, state in enumerate(links) if state == 0],
    )


def build(settings: Settings, rules: Rules) -> NvlinkDown:
    """The detector with a site's settings."""
    return NvlinkDown(settings)
