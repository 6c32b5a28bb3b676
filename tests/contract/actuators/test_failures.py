"""Each single call to a target fails, before or after it took effect, or somebody else acts at that moment.

Sent again, the wish comes to the same end; nothing is written twice, and nothing over what somebody else holds.
"""

from collections.abc import Callable

import msgspec
import pytest

from gpuguard.custody.ownership import Holder
from gpuguard.model.actions import Action, Outcome, Verb
from gpuguard.model.ids import TokenId
from tests.support.custody_world import HOWS, OURS, REASONS, Failure, How, World
from tests.support.custody_worlds import WORLDS
from tests.support.wishes import wish

# The holder over whom each verb writes; an adoption finds its token or does not, and writes nothing.
OVER: dict[Verb, Holder] = {
    "drain": "nobody",
    "update_reason": "ours",
    "release": "ours",
    "evict": "ours",
    "reboot": "ours",
}
WRITES = [
    (name, verb)
    for name, world in WORLDS.items()
    for verb in OVER
    if verb not in ("evict", "reboot") or verb in world.remedies
]
TRIES = 4


def wished(verb: Verb) -> Action:
    action = wish(verb)
    return msgspec.structs.replace(action, drain=TokenId(OURS)) if verb in ("evict", "reboot") else action


def begun(name: str, verb: Verb) -> World:
    world = WORLDS[name]()
    world.put("settled", OVER[verb])
    world.count_anew()
    return world


def smooth(name: str, verb: Verb) -> World:
    """How it ends where nothing goes wrong."""
    world = begun(name, verb)
    assert world.perform(wished(verb)).result == "done"
    assert len(world.writes) == 1
    return world


def calls_of(name: str, verb: Verb) -> range:
    return range(smooth(name, verb).calls)


def until_done(world: World, action: Action) -> Outcome:
    for _ in range(TRIES):
        outcome = world.perform(action)
        if outcome.result != "deferred":
            return outcome
        world.time.sleep(outcome.retry_after or 0.0)
    raise AssertionError(f"it does not come to an end: {outcome}")


CASES = [
    pytest.param(name, verb, number, how, before, id=f"{name}-{verb}-{number}-{how}-{'before' if before else 'after'}")
    for name, verb in WRITES
    for number in calls_of(name, verb)
    for how in HOWS
    for before in (True, False)
]


@pytest.mark.parametrize(("name", "verb", "number", "how", "before"), CASES)
def test_after_a_failure_it_comes_to_the_same_end(name: str, verb: Verb, number: int, how: How, before: bool) -> None:
    world, action, end = begun(name, verb), wished(verb), smooth(name, verb)
    world.failing[number] = Failure(how, before)
    first = world.perform(action)
    assert first.result in ("done", "deferred"), first
    if first.result == "done":
        assert world.standing() == end.standing(), "it says done of what is not so"
    world.failing.clear()
    assert until_done(world, action).result == "done"
    assert world.standing() == end.standing()
    assert len(world.writes) == len(end.writes)
    assert world.perform(action).result == "done"
    assert len(world.writes) == len(end.writes)
    assert world.beside() == end.beside()


@pytest.mark.parametrize(("name", "verb"), WRITES)
@pytest.mark.parametrize("how", [how for how in HOWS if how != "killed"])
def test_a_target_that_is_away_is_waited_for_and_nothing_is_written(name: str, verb: Verb, how: How) -> None:
    world, action = begun(name, verb), wished(verb)
    world.away = Failure(how, before=True)
    for _ in range(3):
        outcome = world.perform(action)
        assert outcome.result == "deferred"
        assert outcome.retry_after is not None
        assert outcome.message.isprintable()
        assert world.actuator.read_state().error
    assert world.writes == []
    world.away = None
    assert until_done(world, action).result == "done"


Deed = Callable[[World], None]
DEEDS: dict[str, tuple[Deed, str | None]] = {
    "drains": (lambda world: world.drain("bob: fan"), "bob: fan"),
    "leaves no reason": (lambda world: world.drain(""), ""),
    "adds a word": (lambda world: world.drain(f"{REASONS['ours']} keep"), f"{REASONS['ours']} keep"),
    "lifts": (lambda world: world.lift(), None),
}


@pytest.mark.parametrize(("name", "verb"), WRITES)
@pytest.mark.parametrize("deed", DEEDS)
def test_who_acts_in_between_is_not_written_over(name: str, verb: Verb, deed: str) -> None:
    """At any moment: before the first call, between two, after the last."""
    act, left = DEEDS[deed]
    for number in [*calls_of(name, verb), None]:
        world, action = begun(name, verb), wished(verb)
        if number is not None:
            world.meanwhile[number] = lambda world=world: act(world)  # type: ignore[misc]
        writing = not world.compare_and_set and _writes_at(name, verb) == number
        world.perform(action)
        if number is None:
            act(world)
        if writing:
            continue  # its target has no compare-and-set: this moment is left, and the second reading tells
        for _ in range(3):
            world.perform(action)
        assert world.trampled == [], f"at call {number}"
        if left is not None:
            assert world.standing() == left, f"at call {number}"


def _writes_at(name: str, verb: Verb) -> int | None:
    """The number of the call that writes, where nothing goes wrong."""
    world = begun(name, verb)
    for number in range(10):
        world = begun(name, verb)
        world.failing[number] = Failure("killed", before=False)
        world.perform(wished(verb))
        if world.writes:
            return number
    return None
