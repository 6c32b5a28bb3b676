"""The scheduler of a simulated fleet: obeys, judges what gpuguard writes, and counts what it must not have written."""

from gpuguard.custody.budget import Limits
from gpuguard.model.actions import Action, DrainVerb
from gpuguard.model.ids import NODE, BootId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.simulator.fleet.scheduler import Scheduler
from tests.support.fleet import OPEN

AT = Instant(boot=BootId("b"), mono=1.0, utc=1.0)


def action(verb: DrainVerb, token: str = "7f3a", *, by: str = "gpuguard", number: int = 0) -> Action:
    return Action(
        key=f"{verb}:{token}:{number}", verb=verb, token=TokenId(token), subject=NODE,
        reason=f"gpuguard:{token} gpu5 lost xid79", at=AT, by=by, code="xid79",
    )  # fmt: skip


def done(scheduler: Scheduler, node: int, what: Action, at: float = 100.0) -> str:
    outcome = scheduler.begin(node, what, at) or scheduler.finish(node, what, at)
    return outcome.result


def test_a_drain_is_written_and_lifted_by_its_own_token() -> None:
    scheduler = Scheduler(3, OPEN)
    assert done(scheduler, 1, action("drain")) == "done"
    assert scheduler.report(1).drained
    assert [drain.node for drain in scheduler.fleet().drains] == ["n1"]
    assert done(scheduler, 1, action("release", "aaaa")) == "foreign"
    assert done(scheduler, 1, action("release")) == "done"
    assert (scheduler.report(1).flags, scheduler.fleet().drains) == (("OPEN",), ())
    assert scheduler.foreign_writes == 0


def test_a_persons_drain_is_left_alone() -> None:
    scheduler = Scheduler(1, OPEN)
    assert scheduler.drain_by_hand(0, "bob", "")
    assert not scheduler.drain_by_hand(0, "eve", "again")
    assert done(scheduler, 0, action("drain")) == "foreign"
    assert scheduler.holdings[0].by == "bob"


def test_a_write_that_a_person_was_faster_than_is_counted() -> None:
    scheduler = Scheduler(1, OPEN)
    assert scheduler.begin(0, action("drain"), 1.0) is None
    scheduler.drain_by_hand(0, "bob", "power supply")
    assert scheduler.finish(0, action("drain"), 1.1).result == "foreign"
    assert scheduler.foreign_writes == 1


def test_what_the_book_refuses_is_held_and_a_person_is_not_limited() -> None:
    scheduler = Scheduler(10, Limits(most=1))
    assert done(scheduler, 0, action("drain")) == "done"
    assert done(scheduler, 1, action("drain", "bbbb")) == "held"
    assert done(scheduler, 1, action("drain", "bbbb")) == "held"
    assert done(scheduler, 2, action("drain", "cccc", by="kim")) == "done"


def test_one_that_is_silent_or_sees_the_node_down_asks_for_patience() -> None:
    scheduler = Scheduler(1, OPEN)
    scheduler.silent = True
    assert done(scheduler, 0, action("drain")) == "deferred"
    scheduler.silent = False
    scheduler.goes_down(0)
    assert done(scheduler, 0, action("drain")) == "deferred"
    scheduler.comes_up(0)
    assert done(scheduler, 0, action("drain")) == "done"
    scheduler.resume_by_hand(0, 200.0)
    assert not scheduler.report(0).drained


def test_it_knows_the_drain_alone() -> None:
    what = Action(key="reboot:1:1", verb="reboot", token=TokenId("7f3a"), subject=NODE, reason="", at=AT)
    outcome = Scheduler(1, OPEN).begin(0, what, 1.0)
    assert outcome is not None
    assert outcome.result == "refused"
