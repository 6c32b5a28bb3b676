"""What is measured: one sweep is one event; findings on it are levels, and only changes are news."""

from collections.abc import Sequence

import msgspec

from gpuguard.health.decide import decide
from gpuguard.health.identity import RETIRED_KEPT
from gpuguard.health.state import Health
from gpuguard.model.events import Acknowledged, AnyEvent
from gpuguard.model.findings import Finding
from gpuguard.model.health import Decision
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.readings import Row, SubjectKind, Values, merged
from tests.support.core import ACTING, instant, sweep, tick

GPU = SubjectId("gpu:0000:1b:00.0")
OTHER = SubjectId("gpu:0000:43:00.0")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing."""


class Hot:
    """Says each time whether the GPU is hot; says nothing where it cannot know."""

    name = "hot"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("temperature_celsius",)
    memory = Memory

    def __init__(self) -> None:
        self.shown: list[Row] = []

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        self.shown.append(row)
        degrees = row.number("temperature_celsius")
        if degrees is None:
            return memory, ()
        finding = Finding(
            subject=subject, check=self.name, code="hot", at=row.at, severity="degraded", stands=degrees > 90,
            clears=("quiet", "reset", "ack"), reason=f"{degrees:g} degrees",
        )  # fmt: skip
        return memory, (finding,)


class Node:
    """A health with the one check."""

    def __init__(self) -> None:
        self.hot = Hot()
        self.health = Health(now=instant(0.0))

    def tell(self, event: AnyEvent) -> Decision:
        self.health, decision = decide(self.health, event, (self.hot,), ACTING)
        return decision

    def tell_all(self, event: AnyEvent, checks: Sequence[Hot]) -> None:
        self.health, _ = decide(self.health, event, tuple(checks), ACTING)

    def measure(self, mono: float, values: Values, subject: SubjectId = GPU) -> Decision:
        return self.tell(sweep({subject: values}, mono))

    def codes(self) -> list[str]:
        return [s.finding.code for s in self.health.subject(GPU).standing]


def acknowledged(code: str) -> Acknowledged:
    return Acknowledged(id=EventId("ack"), at=instant(2.0), code=code, subject=GPU, by="mia", reason="looked at it")


def test_a_level_is_news_when_it_comes_and_when_it_goes() -> None:
    node = Node()
    assert node.measure(1.0, {"temperature_celsius": 95}).transitions[0].state == "watched"
    again = node.measure(6.0, {"temperature_celsius": 96})
    assert again == Decision()
    assert node.health.subject(GPU).standing[0].count == 1
    assert node.measure(11.0, {"temperature_celsius": 60}).transitions[0].state == "healthy"


def test_the_core_fills_in_who_saw_it() -> None:
    node = Node()
    node.measure(1.0, {"temperature_celsius": 95})
    finding = node.health.subject(GPU).standing[0].finding
    assert (finding.source, finding.because, finding.level) == ("nvml", (EventId("nvml/fast:1.0"),), True)
    assert finding.clears == ("reset", "ack")


def test_what_is_unknown_or_absent_neither_raises_nor_clears() -> None:
    node = Node()
    node.measure(1.0, {"temperature_celsius": 95})
    node.measure(2.0, {"temperature_celsius": None})
    node.measure(3.0, {"power_watts": 70})
    assert node.codes() == ["hot"]
    assert len(node.hot.shown) == 2


def test_a_persons_word_holds_until_it_was_gone_once() -> None:
    node = Node()
    node.measure(1.0, {"temperature_celsius": 95})
    node.tell(acknowledged("hot"))
    node.measure(3.0, {"temperature_celsius": 95})
    assert node.codes() == []
    node.measure(4.0, {"temperature_celsius": 50})
    node.measure(5.0, {"temperature_celsius": 95})
    assert node.codes() == ["hot"]


class Asking(Hot):
    """A driver that asks for more when it is hotter."""

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        degrees = row.number("temperature_celsius") or 0
        grave = degrees > 100
        finding = Finding(
            subject=subject, check=self.name, code="asks", at=row.at, severity="critical" if grave else "degraded",
            stands=degrees > 90, self_evident=True, remedy="reset" if grave else "none", clears=("reset", "ack"),
        )  # fmt: skip
        return memory, (finding,)


def test_a_persons_word_covers_what_was_known_and_nothing_graver() -> None:
    node = Node()
    node.hot = Asking()
    node.measure(1.0, {"temperature_celsius": 95})
    node.tell(acknowledged("asks"))
    node.measure(3.0, {"temperature_celsius": 95})
    assert node.codes() == []
    assert node.measure(4.0, {"temperature_celsius": 105}).transitions[0].state == "unfit"
    node.measure(5.0, {"temperature_celsius": 50})
    node.measure(6.0, {"temperature_celsius": 95})
    assert node.codes() == ["asks"]


def test_a_persons_word_on_the_graver_covers_the_lesser() -> None:
    node = Node()
    node.hot = Asking()
    node.measure(1.0, {"temperature_celsius": 105})
    node.tell(acknowledged("asks"))
    for mono, degrees in ((3.0, 95), (4.0, 105)):
        node.measure(mono, {"temperature_celsius": degrees})
    assert node.codes() == []


def test_a_persons_word_on_one_measured_finding_covers_no_other() -> None:
    """Both were seen in the first sweep, and so in one incident; each is measured by itself."""
    node = Node()
    node.tell_all(sweep({GPU: {"temperature_celsius": 105}}, 1.0), (Hot(), Asking()))
    assert node.codes() == ["hot", "asks"]
    node.tell_all(acknowledged("asks"), (Hot(), Asking()))
    assert node.codes() == ["hot"]


class Flag(Hot):
    """A flag that does not end by itself, and needs no witness from the second look on."""

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        self.shown.append(row)
        finding = Finding(
            subject=subject, check=self.name, code="flag", at=row.at, severity="critical", remedy="replace",
            stands=row.number("temperature_celsius") == 1, latched=True, clears=("replace", "ack"),
            self_evident=len(self.shown) > 1,
        )  # fmt: skip
        return memory, (finding,)


def flagged() -> Node:
    node = Node()
    node.hot = Flag()
    return node


def test_that_it_needs_no_witness_any_more_is_news() -> None:
    node = flagged()
    assert node.measure(1.0, {"temperature_celsius": 1}).transitions[0].state == "watched"
    assert node.measure(6.0, {"temperature_celsius": 1}).transitions[0].state == "unfit"
    assert node.measure(11.0, {"temperature_celsius": 1}) == Decision()


def test_a_latched_one_stays_though_it_is_not_measured_any_more() -> None:
    node = flagged()
    for mono, flag in ((1.0, 1), (6.0, 1), (11.0, 0)):
        node.measure(mono, {"temperature_celsius": flag})
    assert [s.finding.code for s in node.health.subject(GPU).standing] == ["flag"]
    assert node.health.subject(GPU).state == "unfit"


def test_a_persons_word_on_a_latched_one_holds_until_it_was_gone_once() -> None:
    node = flagged()
    node.measure(1.0, {"temperature_celsius": 1})
    node.tell(acknowledged("flag"))
    node.measure(3.0, {"temperature_celsius": 1})
    assert node.codes() == []
    node.measure(4.0, {"temperature_celsius": 0})
    node.measure(5.0, {"temperature_celsius": 1})
    assert node.codes() == ["flag"]


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """How often a check looked."""

    looks: int = 0


class Counting(Hot):
    """Counts its looks at each subject."""

    def start(self) -> Looked:  # type: ignore[override]  # a memory of its own
        return Looked()

    def observe(self, memory: Looked, subject: SubjectId, row: Row) -> tuple[Looked, Sequence[Finding]]:  # type: ignore[override]  # as above
        return Looked(looks=memory.looks + 1), ()


def test_what_was_remembered_of_one_gpu_is_not_held_against_the_next_in_its_place() -> None:
    node = Node()
    node.hot = Counting()
    for mono, uuid in ((1.0, "GPU-1"), (2.0, "GPU-1"), (3.0, "GPU-2")):
        node.measure(mono, {"temperature_celsius": 50, "gpu_uuid": uuid})
    assert node.health.memory["hot", GPU] == Looked(looks=1)


def test_nor_what_was_measured_of_it() -> None:
    node = Node()
    node.tell(sweep({GPU: {"gpu_uuid": "GPU-1", "remap_banks_none": 2}}, 1.0, rate="slow"))
    node.measure(2.0, {"temperature_celsius": 50, "gpu_uuid": "GPU-1"})
    assert "remap_banks_none" in node.hot.shown[-1].values
    node.measure(3.0, {"temperature_celsius": 50, "gpu_uuid": "GPU-2"})
    assert "remap_banks_none" not in node.hot.shown[-1].values


def test_nor_what_was_remembered_of_one_that_went_elsewhere() -> None:
    node = Node()
    node.hot = Counting()
    node.measure(1.0, {"temperature_celsius": 50, "gpu_uuid": "GPU-1"})
    node.tell(sweep({OTHER: {"temperature_celsius": 50, "gpu_uuid": "GPU-1"}}, 2.0))
    node.measure(3.0, {"temperature_celsius": 50, "gpu_uuid": "GPU-2"})
    assert node.health.memory["hot", GPU] == Looked(looks=1)


def test_each_gpu_has_a_row_of_its_own() -> None:
    node = Node()
    node.tell(sweep({GPU: {"temperature_celsius": 95}, OTHER: {"temperature_celsius": 40}}, 1.0))
    assert node.codes() == ["hot"]
    assert node.health.subject(OTHER).standing == ()


def test_a_row_joins_all_sources_and_forgets_what_is_old() -> None:
    node = Node()
    node.measure(1.0, {"temperature_celsius": 50, "power_watts": 300})
    node.tell(sweep({GPU: {"power_watts": None, "pcie_link_width": 16}}, 2.0, source="pcie", rate="medium"))
    node.measure(3.0, {"temperature_celsius": 51})
    assert dict(node.hot.shown[-1].values) == {"temperature_celsius": 51, "power_watts": None, "pcie_link_width": 16}
    node.tell(tick(32.5))
    assert [*node.health.readings[GPU]] == ["nvml/fast"]
    node.tell(tick(100.0))
    assert GPU not in node.health.readings


def test_one_that_knows_comes_before_one_that_does_not() -> None:
    node = Node()
    node.tell(sweep({GPU: {"sm_active_ratio": 0.5}}, 1.0, source="dcgm"))
    node.tell(sweep({GPU: {"sm_active_ratio": None}}, 1.5, source="nvml"))
    assert merged(node.health.readings[GPU], instant(2.0)) == {"sm_active_ratio": 0.5}
    node.tell(sweep({GPU: {"sm_active_ratio": 0.7}}, 2.0, source="nvml"))
    assert merged(node.health.readings[GPU], instant(2.0)) == {"sm_active_ratio": 0.7}


def test_a_sweep_tells_which_gpu_is_where() -> None:
    node = Node()
    identity: Values = {"gpu_uuid": "GPU-1", "gpu_serial": "165", "gpu_index": 3}
    node.measure(1.0, identity)
    subject = node.health.subjects[GPU]
    assert (subject.uuid, subject.serial, subject.index) == ("GPU-1", "165", 3)
    assert node.measure(2.0, identity) == Decision()
    assert node.health.subjects[GPU] is subject
    node.measure(3.0, {"temperature_celsius": 95})
    node.tell(sweep({OTHER: identity}, 4.0))
    assert [s.finding.code for s in node.health.subjects[OTHER].standing] == ["hot"]


def test_a_check_that_crashes_on_a_row_is_a_finding_against_itself() -> None:
    class Broken(Hot):
        name = "broken"

        def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
            raise ZeroDivisionError("a bug of ours")

    health, decision = decide(
        Health(now=instant(0.0)), sweep({GPU: {"temperature_celsius": 95}}, 1.0), (Broken(), Hot()), ACTING
    )
    assert decision.failed == ("broken",)
    assert [s.finding.code for s in health.subject(GPU).standing] == ["hot"]


def test_a_library_that_tells_another_uuid_each_time_fills_no_memory() -> None:
    health = Health(now=instant(0.0))
    for number in range(RETIRED_KEPT + 50):
        health, _ = decide(health, sweep({GPU: {"gpu_uuid": f"GPU-{number}"}}, 10.0 + number), (), ACTING)
    assert len(health.retired) == RETIRED_KEPT
    assert "GPU-0" not in health.retired, "the one that was put aside longest ago goes first"
    assert f"GPU-{RETIRED_KEPT + 48}" in health.retired
