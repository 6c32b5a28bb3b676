"""A check that is shown the whole machine: when it is asked, what it sees, and that its crash blinds no other."""

from collections.abc import Mapping, Sequence

import msgspec

from gpuguard.health.decide import decide
from gpuguard.health.policy import Settings
from gpuguard.health.state import Health
from gpuguard.model.events import AnyEvent, Booted, Sweep
from gpuguard.model.findings import Finding
from gpuguard.model.health import Decision
from gpuguard.model.ids import NODE, EventId, SubjectId
from gpuguard.model.readings import Row, SubjectKind, Values
from tests.support.core import instant

CARD = SubjectId("nic:mlx5_0")
GPU = SubjectId("gpu:0000:1b:00.0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What it was shown."""

    shown: tuple[SubjectId, ...] = ()


class Whole:
    """Says that the card is not where the GPU is, while their columns differ."""

    name = "whole"
    of: tuple[SubjectKind, ...] = ("gpu", "nic")
    reads = ("nic_numa_node",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def survey(self, memory: Memory, rows: Mapping[SubjectId, Row]) -> tuple[Memory, Sequence[Finding]]:
        card, gpu = rows[CARD], rows[GPU]
        finding = Finding(
            subject=CARD, check="whole", code="whole_numa", at=card.at, severity="degraded", reason="apart",
            stands=card.number("nic_numa_node") != gpu.number("gpu_numa_node"),
        )  # fmt: skip
        return Memory(shown=tuple(sorted(rows))), (finding,)


def sweep(mono: float, rows: dict[SubjectId, Values], source: str = "topology") -> Sweep:
    return Sweep(id=EventId(f"s{mono}"), at=instant(mono), source=source, rate="slow", valid_for=1800.0, rows=rows)


def after(*events: AnyEvent) -> tuple[Health, Decision]:
    health = Health(now=instant(0.0))
    decision = Decision()
    for event in (Booted(id=EventId("b"), at=instant(0.0), previous=None), *events):
        health, decision = decide(health, event, (Whole(),), Settings())
    return health, decision


def test_it_sees_rows_of_all_sources_and_its_finding_stands_and_goes() -> None:
    of_gpu = sweep(1.0, {GPU: {"gpu_numa_node": 0}}, "pcie")
    health, decision = after(of_gpu, sweep(2.0, {CARD: {"nic_numa_node": 1}}))
    assert [told.finding for told in decision.transitions] == ["whole_numa"]
    assert health.subjects[CARD].state == "watched"
    health, decision = decide(health, sweep(3.0, {CARD: {"nic_numa_node": 1}}), (Whole(),), Settings())
    assert decision.transitions == ()
    health, decision = decide(health, sweep(4.0, {CARD: {"nic_numa_node": 0}}), (Whole(),), Settings())
    assert health.subjects[CARD].state == "healthy"


def test_it_is_shown_the_rows_of_its_kinds_alone() -> None:
    rows: dict[SubjectId, Values] = {NODE: {"ib_ports": 8}, GPU: {"gpu_numa_node": 0}, CARD: {"nic_numa_node": 1}}
    health, _ = after(sweep(1.0, rows))
    assert health.memory["whole", NODE] == Memory(shown=(GPU, CARD))


def test_it_is_asked_only_when_a_column_it_reads_came() -> None:
    health, _ = after(sweep(1.0, {GPU: {"gpu_numa_node": 0}}, "pcie"), sweep(2.0, {NODE: {"ib_ports": 8}}))
    assert ("whole", NODE) not in health.memory


def test_its_crash_is_a_finding_against_itself() -> None:
    health, decision = after(sweep(1.0, {CARD: {"nic_numa_node": 1}}))  # there is no row of the GPU
    assert decision.failed == ("whole",)
    assert [s.finding.code for s in health.subjects[NODE].standing] == ["check_whole"]
