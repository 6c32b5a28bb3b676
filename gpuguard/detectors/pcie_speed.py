"""PCIe links that stay slower than GPU and slot can do together, also under load.

At rest a link saves power at the lowest speed, so only a GPU at work is judged, at several looks in a row; one look at
full speed among them, and nothing is wrong. A GPU at rest tells nothing, so what stands is taken back only when full
speed was seen. A slot that is slower than the machine's profile says is a choice or a setting, and worth a word.

Reads     pcie_link_generation with pcie_link_generation_limit, performance_state, utilization_ratio and PCIe traffic,
          and pcie_link_generation_expected of the machine's profile, of each GPU
Source    open-gpu-kernel-modules 1010 and nvtop 6 (generation 1 at rest), rtx6kpro 88 (1,415 changes in two minutes on
          one machine, and 3.5 hours at generation 2 under full load that nobody saw)
Clears    when full speed was seen, a reset, a reboot, a new part, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What load is, and how many looks it takes."""

    looks: int = 5  # in a row, at a GPU at work, none of them at full speed
    apart: Seconds = Seconds(30.0)  # looks closer than this count as one
    traffic: float = 1e8  # bytes a second over PCIe are work, also where no kernel runs

    def __post_init__(self) -> None:
        if self.looks < 1:
            raise ValueError("looks must be at least 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How many looks in a row showed a slow link under load, the best of them, and when the newest that counted was."""

    looks: int = 0
    best: float = 0.0
    last: Instant | None = None


class PcieSpeed:
    """Reports GPUs whose link stays slow at work."""

    name = "pcie_speed"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("pcie_link_generation",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        generation, limit = row.number("pcie_link_generation"), row.number("pcie_link_generation_limit")
        if generation is None or limit is None or generation < 1 or limit < 1:
            return memory, ()
        slot = self._judge_slot(subject, row, limit)
        if generation >= limit:
            return Memory(), (self._finding(subject, row, False, ""), *slot)
        busy = self._is_busy(row)
        if busy is None:
            return memory, slot
        if not busy:
            return Memory(), slot
        after = self._looked(memory, generation, row.at)
        if after.looks < self.settings.looks:
            return after, slot
        reason = f"PCIe runs at generation {after.best:g} of {limit:g} also under load"
        return after, (self._finding(subject, row, True, reason), *slot)

    def _judge_slot(self, subject: SubjectId, row: Row, limit: float) -> tuple[Finding, ...]:
        expected = row.number("pcie_link_generation_expected")
        if expected is None or expected < 1:
            return ()
        finding = Finding(
            subject=subject, check=self.name, code="pcie_slot_speed", at=row.at, stands=limit < expected,
            blame="configuration", clears=("reset", "reboot", "replace", "ack"),
            reason=f"GPU and slot can do PCIe generation {limit:g} together; the machine's profile has {expected:g}",
        )  # fmt: skip
        return (finding,)

    def _looked(self, memory: Memory, generation: float, at: Instant) -> Memory:
        if memory.last is not None and memory.last.boot != at.boot:
            memory = Memory()
        best = max(memory.best, generation)
        since = None if memory.last is None else seconds_between(memory.last, at)
        if memory.looks >= self.settings.looks or (since is not None and since < self.settings.apart):
            return msgspec.structs.replace(memory, best=best)
        return Memory(looks=memory.looks + 1, best=best, last=at)

    def _is_busy(self, row: Row) -> bool | None:
        state, utilization = row.number("performance_state"), row.number("utilization_ratio")
        rates = (row.number("pcie_tx_bytes_per_second"), row.number("pcie_rx_bytes_per_second"))
        traffic = [rate for rate in rates if rate is not None]
        if state is None or (utilization is None and not traffic):
            return None
        return state == 0 and ((utilization or 0.0) > 0 or sum(traffic) >= self.settings.traffic)

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="pcie_speed", at=row.at, stands=stands, severity="degraded",
            blame="hardware", remedy="test", advice="test", clears=("reset", "reboot", "replace", "ack"),
            reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> PcieSpeed:
    """The detector with a site's settings."""
    return PcieSpeed(settings)
