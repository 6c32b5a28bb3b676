"""PCIe links that send more packets again than their speed and width explain.

A bit error now and then is within the specification and grows with lanes and speed; more of them are a link about to
fail: a connector, a riser, a cable.

Reads     pcie_replay_total with pcie_link_width and pcie_link_generation_limit, else pcie_link_generation, of each GPU
Source    DCGM 4.6, health watch PCIE: replays a minute > ceil(lanes x factor of the generation)
Clears    when the rate was normal over the window, a reset, a reboot, a new part, or by a person
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import BootId, SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter

MOST_LANES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many replays are normal."""

    # Replays a minute on one lane, by generation from 1 on; a newer generation counts as the last.
    per_lane: tuple[float, ...] = (0.15, 0.3, 0.48, 0.96, 1.92, 3.84)
    window: Seconds = Seconds(300.0)  # the rate is that of this time

    def __post_init__(self) -> None:
        if not self.per_lane or self.window <= 0:
            raise ValueError("per_lane needs a number, and window must be more than 0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How the counter grew in this boot: training the link at start costs replays that are no fault."""

    replays: Counter = Counter()
    boot: BootId | None = None


class PcieReplayRate:
    """Reports GPUs whose link replays too often."""

    name = "pcie_replay_rate"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("pcie_replay_total",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        count = row.number("pcie_replay_total")
        if count is None or count < 0:
            return memory, ()
        known = memory.replays if memory.boot == row.at.boot else Counter()
        after = Memory(replays=known.seen(count, row.at, self.settings.window, as_rate=True), boot=row.at.boot)
        limit = self._limit(row)
        if limit is None:
            return after, ()
        rate = after.replays.growth() * 60 / self.settings.window
        finding = Finding(
            subject=subject, check=self.name, code="pcie_replay_rate", at=row.at, severity="degraded",
            blame="hardware", stands=rate > limit, remedy="test", advice="test",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"PCIe has to send {rate:.0f} packets a minute again; {limit} are normal on this link",
        )  # fmt: skip
        return after, (finding,)

    def _limit(self, row: Row) -> int | None:
        lanes = row.number("pcie_link_width")
        # At rest the link is slower than when it erred: the limit is that of its best speed.
        generation = row.number("pcie_link_generation_limit") or row.number("pcie_link_generation")
        if lanes is None or generation is None or not 1 <= lanes <= MOST_LANES or generation < 1:
            return None
        place = int(min(generation, len(self.settings.per_lane))) - 1
        return math.ceil(lanes * self.settings.per_lane[place])


def build(settings: Settings, rules: Rules) -> PcieReplayRate:
    """The detector with a site's settings."""
    return PcieReplayRate(settings)
