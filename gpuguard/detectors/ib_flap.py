"""A port of an InfiniBand or RoCE adapter that goes down and comes back, again and again.

Each time a collective over all nodes stalls or dies; between two looks the port seems well, so the adapter's own count
is judged.

Reads     ib_link_downed_total of each port
Source    InfiniBand Architecture Specification 1, PortCounters.LinkDownedCounter; it stays at 255 where it is narrow
Clears    when the port stayed up for as long as the window is
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
    """How often is too often."""

    times: int = 3  # so many times down
    within: Seconds = Seconds(21600.0)  # in this time

    def __post_init__(self) -> None:
        """Raises ValueError for a count that any port meets."""
        if self.times < 1:
            raise ValueError("times must be at least 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How often it went down lately."""

    downed: Counter = Counter()


class IbFlap:
    """Reports ports that flap."""

    name = "ib_flap"
    of: tuple[SubjectKind, ...] = ("port",)
    reads = ("ib_link_downed_total",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        count = row.number("ib_link_downed_total")
        if count is None:
            return memory, ()
        downed = memory.downed.seen(count, row.at, self.settings.within)
        return (memory if downed is memory.downed else Memory(downed=downed)), (
            Finding(
                subject=subject, check=self.name, code="ib_flap", at=row.at, severity="degraded", blame="hardware",
                clears=("replace", "ack"), advice="watch", stands=downed.growth() >= self.settings.times,
                reason=f"the link went down {downed.growth():g} times within {self.settings.within / 3600:g} h",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> IbFlap:
    """The detector with a site's settings."""
    return IbFlap(settings)
