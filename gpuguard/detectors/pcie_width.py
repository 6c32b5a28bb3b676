"""PCIe links that run on fewer lanes than GPU and slot can do together.

The width does not change to save power, so a narrow link is a dirty or loose connector, a riser or a broken lane, also
of a GPU at rest. A slot with fewer lanes than the machine's profile says is a choice or a setting, and worth a word.

Reads     pcie_link_width with pcie_link_width_limit, and pcie_link_width_expected of the machine's profile, of each GPU
Source    PCI Express Base Specification, Link Status register; nvml.h, nvmlDeviceGetMaxPcieLinkWidth
Clears    when the full width was seen again, a reset, a reboot, a new part, or by a person
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
    """How long a link may be narrow."""

    hold: Seconds = Seconds(30.0)  # a reset trains the link anew; wait before judging


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the link has been narrow, and since when its slot has been."""

    narrow: Held = Held()
    limited: Held = Held()


class PcieWidth:
    """Reports GPUs on fewer lanes than they could have."""

    name = "pcie_width"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("pcie_link_width",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        lanes, limit = row.number("pcie_link_width"), row.number("pcie_link_width_limit")
        if lanes is None or limit is None or lanes < 1 or limit < 1:
            return memory, ()
        narrow, limited = memory.narrow.told(lanes < limit, row.at), memory.limited
        finding = Finding(
            subject=subject, check=self.name, code="pcie_width", at=row.at, severity="degraded", blame="hardware",
            stands=narrow.lasted(self.settings.hold, row.at), remedy="test", advice="test",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"PCIe runs on {lanes:g} lanes of {limit:g}; look at the connector and the riser",
        )  # fmt: skip
        expected = row.number("pcie_link_width_expected")
        if expected is None or expected < 1:
            return Memory(narrow=narrow, limited=limited), (finding,)
        limited = limited.told(limit < expected, row.at)
        slot = Finding(
            subject=subject, check=self.name, code="pcie_slot_width", at=row.at, blame="configuration",
            stands=limited.lasted(self.settings.hold, row.at), clears=("reset", "reboot", "replace", "ack"),
            reason=f"GPU and slot can do {limit:g} PCIe lanes together; the machine's profile has {expected:g}",
        )  # fmt: skip
        return Memory(narrow=narrow, limited=limited), (finding, slot)


def build(settings: Settings, rules: Rules) -> PcieWidth:
    """The detector with a site's settings."""
    return PcieWidth(settings)
