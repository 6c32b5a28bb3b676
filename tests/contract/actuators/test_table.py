"""The same call table holds at each target: every state that a target can be in, every verb."""

import pytest

from gpuguard.actuators import TARGETS
from gpuguard.custody.ownership import TABLE, VERBS, Call, Condition, Holder
from gpuguard.model.actions import DrainVerb
from gpuguard.ports import Actuator
from tests.support.custody_world import OURS, REASONS, World
from tests.support.custody_worlds import WORLDS
from tests.support.wishes import wish

RESULTS: dict[Call, str] = {"write": "done", "done": "done", "wait": "deferred", "never": "foreign"}
CELLS = sorted((name, *state, verb) for name, world in WORLDS.items() for state in world.states for verb in VERBS)


def expected(condition: Condition, holder: Holder, verb: DrainVerb) -> Call:
    """What the table says, read as it is printed."""
    row = next(
        row for row in TABLE if condition in (row.conditions or (condition,)) and holder in (row.holders or (holder,))
    )
    call: Call = getattr(row, verb).call
    return call


def put(name: str, condition: Condition, holder: Holder) -> World:
    world = WORLDS[name]()
    world.put(condition, holder)
    world.count_anew()
    return world


def test_each_target_has_a_world() -> None:
    assert {*WORLDS, "dry_run"} == set(TARGETS)


@pytest.mark.parametrize("name", WORLDS)
def test_each_target_can_be_in_each_state_that_is_written_to(name: str) -> None:
    assert {("settled", holder) for holder in REASONS} <= WORLDS[name].states
    assert isinstance(WORLDS[name]().actuator, Actuator)


@pytest.mark.parametrize(("name", "condition", "holder", "verb"), CELLS)
def test_the_table_holds(name: str, condition: Condition, holder: Holder, verb: DrainVerb) -> None:
    world, call, action = put(name, condition, holder), expected(condition, holder, verb), wish(verb)
    for again in (False, True):
        outcome = world.perform(action)
        assert outcome.result == RESULTS[call]
        assert outcome.message.isprintable()
        assert len(outcome.message) > 10
        assert (outcome.retry_after is not None) == (call == "wait")
        if call == "write":
            assert world.standing() == (None if verb == "release" else action.reason)
            assert len(world.writes) == 1, f"sent {'twice' if again else 'once'}"
        else:
            assert world.standing() == REASONS[holder]
            assert world.writes == []
    assert world.trampled == []


@pytest.mark.parametrize(("name", "condition", "holder"), sorted({cell[:3] for cell in CELLS}))
def test_the_report_says_who_holds_the_node(name: str, condition: Condition, holder: Holder) -> None:
    world = put(name, condition, holder)
    report = world.actuator.read_state()
    assert report.target == name
    if condition == "unreadable":
        assert report.error
        return
    reason = REASONS[holder]
    assert report.error is None
    assert (report.drained, report.reason) == (reason is not None, reason or "")
    assert report.ours == {"ours": OURS, "sibling": "0b0b"}.get(holder)


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_so_already_is_not_written_again(name: str, verb: DrainVerb) -> None:
    """Our own reason stands, word for word as wished."""
    world = put(name, "settled", "nobody")
    assert world.perform(wish("drain")).result == "done"
    world.count_anew()
    assert world.perform(wish(verb)).result == "done"
    assert len(world.writes) == (verb == "release")


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("reason", [f"{REASONS['ours']} Bob: keep", "gpuguard: x", "gpuguard:7F3A gpu3 lost xid79"])
def test_a_reason_with_one_more_word_is_a_persons(name: str, reason: str) -> None:
    world = put(name, "settled", "nobody")
    world.drain(reason)
    for verb in VERBS:
        assert world.perform(wish(verb)).result == "foreign"
    assert (world.standing(), world.writes) == (reason, [])
