"""What people are told follows from the health: what begins and what ends, once each."""

import msgspec
import pytest

from gpuguard.health import machine, policy
from gpuguard.health.decide import decide
from gpuguard.health.errands import Errand
from gpuguard.health.notices import BLIND_FOR, notices, over, standing, unsettled
from gpuguard.health.state import Health
from gpuguard.model.actions import Result
from gpuguard.model.events import AnyEvent, SourceChanged, SourceLevel
from gpuguard.model.findings import Remedy
from gpuguard.model.health import Decision, Drain, DrainState
from gpuguard.model.ids import NODE, EventId, SubjectId, TokenId
from gpuguard.model.notices import Notice
from tests.support.core import ACTING, BOOT, booted, detectors, instant, tick, xid

GPU = SubjectId("gpu:0000:4e:00.0")


class Life:
    """A node's health over some events, and everything that was told."""

    def __init__(self, rules: policy.Settings = ACTING) -> None:
        self.health, self._rules = Health(now=instant(0.5)), rules
        self.told: list[Notice] = []
        self.see(booted())

    def see(self, event: AnyEvent) -> tuple[Notice, ...]:
        before = self.health
        self.health, decision = decide(before, event, detectors(), self._rules)
        new = notices(before, self.health, decision, event, node="n7")
        assert new == notices(before, self.health, decision, event, node="n7")
        self.told += new
        return new

    def set(self, **parts: object) -> tuple[Notice, ...]:
        """The same health with other parts, as if a decision had led there."""
        before = self.health
        self.health = msgspec.structs.replace(before, **parts)
        return notices(before, self.health, Decision(urgent=True), tick(self.health.now.mono), node="n7")


def _source(name: str, level: SourceLevel, mono: float, reason: str = "") -> SourceChanged:
    return SourceChanged(id=EventId(f"{name}:{mono}"), at=instant(mono), source=name, level=level, reason=reason)


def _drain(state: DrainState, **more: object) -> Drain:
    made = Drain(
        token=TokenId("7f3a"), subject=GPU, code="xid79", reason="gpuguard:7f3a gpu5 lost xid79", since=instant(5.0),
        state=state, message="the target's words", dry_run=False,
    )  # fmt: skip
    return msgspec.structs.replace(made, **more)


def _errand(came: Result | None, verb: str = "test", **more: object) -> dict[str, Errand]:
    made = Errand(verb=verb, about=str(GPU), subject=GPU, since=instant(5.0), came=came, number=1)  # type: ignore[arg-type]
    return {f"{verb}/{GPU}": msgspec.structs.replace(made, **more)}


def _words(told: tuple[Notice, ...]) -> list[tuple[str, str, bool]]:
    return [(n.event, n.urgency, n.until is not None) for n in told]


def test_a_lost_gpu_is_told_once_with_its_remedy() -> None:
    life = Life()
    told = life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    failed = next(n for n in told if n.event == "gpu.failed")
    assert (failed.urgency, failed.subject, failed.code, failed.node) == ("warning", GPU, "xid79", "n7")
    assert "reboot" in failed.title
    assert "reboot the node" in failed.next_step
    assert failed.because
    # The same again, and time, are no news.
    assert life.see(xid("0000:4e:00", 79, 20.0, "GPU has fallen off the bus.")) == ()
    assert life.see(tick(60.0)) == ()


def test_a_fault_that_joins_is_no_other_failure() -> None:
    life = Life()
    life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    before = {n.key for n in life.told}
    life.see(xid("0000:4e:00", 48, 4000.0, "DBE"))
    assert [n for n in life.told if n.event == "gpu.failed" and n.key not in before] == []


def test_it_is_over_when_the_gpu_is_on_probation() -> None:
    life = Life()
    life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    failed = next(n for n in life.told if n.event == "gpu.failed")
    (subject,) = (s for s in life.health.subjects.values() if s.id == GPU)
    back = msgspec.structs.replace(subject, state="returning", standing=(), remedy="none")
    told = life.set(subjects={**life.health.subjects, GPU: back})
    (end,) = (n for n in told if n.event == "gpu.failed")
    assert end.until is not None
    assert (end.key, end.since) == (failed.key, failed.since)
    assert end.id != failed.id
    assert "stayed clean" in end.text


@pytest.mark.parametrize(("remedy", "paged"), [("reset", False), ("reboot", False), ("replace", True)])
def test_a_replacement_is_a_page_with_evidence(remedy: Remedy, paged: bool) -> None:
    life = Life()
    life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    subject = life.health.subjects[GPU]
    life.set(subjects={GPU: msgspec.structs.replace(subject, remedy="reset")})
    told = life.set(subjects={GPU: msgspec.structs.replace(subject, remedy=remedy, serial="1650000000001")})
    pages = [n for n in told if n.urgency == "page" and n.until is None]
    assert [n.event for n in pages] == (["replacement.asked"] if paged else [])
    if paged:
        assert pages[0].facts["serial"] == "1650000000001"
        assert "xid79" in pages[0].facts["fault_1"]
        assert pages[0].facts["tried"] == "nothing"


@pytest.mark.parametrize(
    ("state", "event", "urgency"),
    [
        ("held", "drain.held", "page"),
        ("refused", "drain.refused", "page"),
        ("foreign", "drain.blocked", "warning"),
        ("overridden", "drain.overridden", "warning"),
    ],
)
def test_a_drain_that_does_not_stand_says_why(state: DrainState, event: str, urgency: str) -> None:
    life = Life()
    assert life.set(drain=_drain("owed")) == ()
    told = life.set(drain=_drain(state))
    assert _words(told) == [(event, urgency, False)]
    assert "the target's words" in told[0].text
    assert told[0].next_step
    assert _words(life.set(drain=None)) == [(event, urgency, True)]


def test_the_node_is_drained_and_given_back() -> None:
    life = Life()
    stands = _drain("standing", written=instant(6.0))
    assert _words(life.set(drain=stands)) == [("node.drained", "notice", False)]
    # Another reason, and the beginning of its release, are no news.
    assert life.set(drain=msgspec.structs.replace(stands, code="xid95", reason="gpuguard:7f3a gpu5 memory xid95")) == ()
    assert life.set(drain=msgspec.structs.replace(stands, state="releasing")) == ()
    assert _words(life.set(drain=None)) == [("node.drained", "notice", True)]


def test_a_release_that_was_refused_leaves_the_node_drained() -> None:
    life = Life()
    life.set(drain=_drain("standing", written=instant(6.0)))
    assert _words(life.set(drain=_drain("refused", written=instant(6.0)))) == [("drain.refused", "page", False)]


def test_where_gpuguard_observes_it_says_only_what_it_would_do() -> None:
    life = Life(policy.Settings())
    told = life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    assert {n.event for n in told} == {"gpu.failed", "drain.rehearsed"}
    assert not [n for n in told if n.urgency == "page"]


@pytest.mark.parametrize(
    ("verb", "came", "urgency"),
    [("test", "failed", "warning"), ("reset", "refused", "page"), ("reboot", "held", "page"),
     ("requeue", "refused", "warning")],
)  # fmt: skip
def test_what_an_errand_came_to_is_told_until_it_is_done(verb: str, came: Result, urgency: str) -> None:
    life = Life()
    assert life.set(errands=_errand(None, verb)) == ()
    begun = tuple(n for n in life.set(errands=_errand(came, verb, message="its words")) if n.until is None)
    assert _words(begun) == [(f"{verb}.{came}", urgency, False)]
    # Asked again: nobody knows until it is answered.
    assert life.set(errands=_errand(None, verb, number=2)) == ()
    assert unsettled(life.health, begun[0])
    done = life.set(errands=_errand("done", verb, number=2))
    assert [n.key for n in done if n.key == begun[0].key] == [begun[0].key]
    assert all(n.until is not None for n in done)


def test_an_errand_that_was_only_talked_about_is_not_told() -> None:
    life = Life()
    assert life.set(errands=_errand("refused", "reset", dry=True)) == ()


def test_a_source_is_blind_after_a_minute_and_back_at_once() -> None:
    life = Life()
    assert life.see(_source("kmsg", "blind", 10.0, "no right to read it")) == ()
    assert life.see(tick(10.0 + BLIND_FOR - 1.0)) == ()
    (told,) = life.see(tick(10.0 + BLIND_FOR))
    assert (told.event, told.urgency, told.mark) == ("source.blinded", "warning", "kmsg")
    assert "no right to read it" in told.text
    # For another reason it is the same blindness.
    assert life.see(_source("kmsg", "blind", 80.0, "another reason")) == ()
    (end,) = life.see(_source("kmsg", "watching", 90.0))
    assert (end.key, end.until is not None) == (told.key, True)


def test_a_short_blindness_is_no_news() -> None:
    life = Life()
    life.see(_source("kmsg", "blind", 10.0))
    # That it is over is told by whoever told of it: here nobody did.
    assert [n for n in life.see(_source("kmsg", "watching", 30.0)) if n.until is None] == []
    assert life.see(tick(200.0)) == ()


def test_a_source_that_was_not_heard_yet_is_not_told_to_be_back() -> None:
    life = Life()
    life.see(_source("nvml", "blind", 10.0))
    (told,) = life.see(tick(100.0))
    assert life.see(booted(200.0)) == ()
    assert unsettled(life.health, told)


def test_a_disk_that_refuses_is_told() -> None:
    life = Life()
    (told,) = life.see(_source("store", "degraded", 10.0, "No space left on device"))
    assert (told.event, told.mark) == ("disk.refused", "store")
    assert _words(life.see(_source("store", "watching", 20.0))) == [("disk.refused", "warning", True)]


def test_what_stands_has_the_same_id_after_a_restart() -> None:
    life = Life()
    life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    before = standing(life.health, node="n7")
    life.see(booted(100.0, BOOT))
    after = standing(life.health, node="n7")
    assert {key: n.id for key, n in before.items()} == {key: n.id for key, n in after.items()}
    end = over(before[next(iter(before))], instant(200.0), life.health)
    assert end.next_step == ""


def test_a_node_that_is_drained_for_itself_is_told_as_the_node() -> None:
    life = Life()
    life.set(drain=_drain("standing", written=instant(6.0), by="ann"))
    (told,) = standing(life.health).values()
    assert told.subject == NODE
    assert "by ann" in told.title


def test_a_drain_that_nobody_takes_is_told_after_ten_minutes() -> None:
    life = Life()
    life.set(drain=_drain("owed", pending="drain:7f3a:0", message="no answer"))
    assert "drain.waiting" not in {n.event for n in standing(life.health).values()}
    waiting = msgspec.structs.replace(life.health, now=instant(700.0))
    (notice,) = (n for n in standing(waiting).values() if n.event == "drain.waiting")
    assert (notice.urgency, notice.text) == ("warning", "no answer")
    foreign = msgspec.structs.replace(waiting, drain=_drain("foreign", pending="drain:7f3a:0"))
    assert "drain.waiting" not in {n.event for n in standing(foreign).values()}


def test_what_a_person_has_to_decide_is_a_page() -> None:
    life = Life()
    kept = life.set(drain=_drain("standing", written=instant(6.0), kept="it was given back 2 times"))
    assert ("drain.kept", "page", False) in _words(kept)
    life = Life()
    spent = life.set(errands=_errand("done", "reboot", spent=True))
    assert ("reboot.spent", "page", False) in _words(spent)
    assert ("reboot.spent", "page", True) in _words(life.set(errands=_errand("done", "reboot")))


def test_a_fault_that_a_pause_left_undecided_is_a_page() -> None:
    life = Life()
    life.see(xid("0000:4e:00", 79, 10.0, "GPU has fallen off the bus."))
    (subject,) = (s for s in life.health.subjects.values() if s.id == GPU)
    doubted = machine.doubt(subject, instant(9000.0), 3600.0)
    told = life.set(subjects={**life.health.subjects, GPU: msgspec.structs.replace(doubted, state="returning")})
    assert ("fault.undecided", "page", False) in _words(told)


@pytest.mark.parametrize("verb", ["test", "reset", "reboot", "evict"])
def test_a_remedy_that_was_refused_names_what_a_person_can_do(verb: str) -> None:
    life = Life()
    (notice,) = (n for n in life.set(errands=_errand("refused", verb)) if n.until is None)
    assert "by hand" in notice.next_step
