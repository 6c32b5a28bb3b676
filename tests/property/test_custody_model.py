"""Agent, actuator, target and people against each other, each of them free to act, fail or die at any instant.

The agent's core and its owed actions, each real actuator over its target in memory; administrators who drain, write
another reason, lift and reboot; a target that is away, answers nonsense or hangs; agent and actuator killed between any
two calls. Held at each step: no write over what somebody else holds, none twice, no release without proof. Held in the
end, some rounds after the target answers again: drained where something is unfit, and nothing of ours left elsewhere.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuguard.custody.ownership import CONDITIONS, Condition
from gpuguard.custody.token import parse_reason
from tests.support.acting_agent import Agent
from tests.support.custody_world import HOWS, Failure, How, World
from tests.support.custody_worlds import WORLDS

ADDRESSES = ("0000:5e:00", "0000:0f:00", "0000:aa:00")
CODES = (79, 119, 62, 95, 48)
WORDS = st.sampled_from(("bob: power supply", "", "gpuguard:7f3a gpu3 lost xid79 bob: keep", "gpuguard: x"))


class Model(RuleBasedStateMachine):
    """One node at one target."""

    target: type[World]

    @initialize()
    def begin(self) -> None:
        self.world = self.target()
        self.agent = Agent(self.world)
        self.agent.watch()

    @rule(address=st.sampled_from(ADDRESSES), code=st.sampled_from(CODES), carried=st.booleans())
    def fault(self, address: str, code: int, carried: bool) -> None:
        self.agent.pass_time(0.5)
        self.agent.fault(address, code)
        if carried:
            self.agent.carry()

    @rule(address=st.sampled_from(ADDRESSES))
    def reset(self, address: str) -> None:
        self.agent.reset(address)

    @precondition(lambda self: bool(self.agent.unfit()))
    @rule(acknowledged=st.booleans(), carried=st.booleans())
    def everything_is_mended(self, acknowledged: bool, carried: bool) -> None:
        """All GPUs are reset, or a person takes every finding back: the beginning of the way back, not its end."""
        self.agent.pass_time(0.5)
        if acknowledged:
            self.agent.acknowledge(*CODES, 154)
        for address in ADDRESSES:
            self.agent.reset(address)
        if carried:
            self.agent.carry()

    @rule(seconds=st.sampled_from((0.5, 5.0, 40.0, 700.0)))
    def pass_time(self, seconds: float) -> None:
        self.agent.pass_time(seconds)

    @rule(clock=st.sampled_from((0.0, 300.0, -86_400.0)))
    def reboot(self, clock: float) -> None:
        self.agent.reboot(clock)

    @rule(wish=st.sampled_from(("drain", "release")))
    def somebody_asks(self, wish: str) -> None:
        self.agent.ask(wish)

    @precondition(lambda self: parse_reason(self.world.standing() or "") is not None)
    @rule()
    def somebody_adopts(self) -> None:
        self.agent.ask("adopt", parse_reason(self.world.standing() or ""))

    @rule(reason=WORDS)
    def an_administrator_drains(self, reason: str) -> None:
        if self.world.standing() is None:
            self.agent.touch(lambda: self.world.drain(reason))

    @precondition(lambda self: self.world.standing() is not None)
    @rule(reason=WORDS)
    def an_administrator_writes_another_reason(self, reason: str) -> None:
        self.agent.take_over(reason)

    @rule()
    def an_administrator_lifts(self) -> None:
        self.agent.lift()

    @rule()
    def another_node_agent_left_a_token(self) -> None:
        if self.world.standing() is None:
            self.agent.touch(lambda: self.world.drain("gpuguard:abcd gpu3 lost xid79"))

    @rule(condition=st.sampled_from(CONDITIONS))
    def the_node_is(self, condition: Condition) -> None:
        if (condition, "ours") in self.target.states:
            self.agent.touch(lambda: self.world.be(condition))

    @rule()
    def the_node_settles(self) -> None:
        self.world.away = None
        self.agent.touch(self.world.settle)

    @rule(how=st.sampled_from(HOWS), before=st.booleans())
    def the_target_fails(self, how: How, before: bool) -> None:
        self.world.away = Failure(how, before)

    @rule()
    def the_target_answers(self) -> None:
        self.world.away = None

    @rule()
    def carry(self) -> None:
        self.agent.carry()

    @rule(number=st.integers(0, 4), how=st.sampled_from(HOWS), before=st.booleans())
    def carry_with_one_call_failing(self, number: int, how: How, before: bool) -> None:
        self.world.failing[number] = Failure(how, before)
        self.agent.carry()
        self.world.failing.clear()

    @rule()
    def carry_and_die_before_the_answer_is_written_down(self) -> None:
        self.agent.carry(die=True)

    @rule(number=st.integers(0, 4), before=st.booleans())
    def both_die_at_once(self, number: int, before: bool) -> None:
        self.world.failing[number] = Failure("killed", before)
        self.agent.carry(die=True)
        self.world.failing.clear()

    @rule()
    def the_agent_starts_anew(self) -> None:
        self.agent.restart()

    @invariant()
    def nothing_of_others_was_written_over(self) -> None:
        if hasattr(self, "world"):
            assert self.world.trampled == []

    def teardown(self) -> None:
        if hasattr(self, "agent"):
            self.agent.come_to_rest()
            self.agent.check()


@pytest.mark.parametrize("name", WORLDS)
def test_whatever_happens_in_between_nobody_is_written_over_and_it_ends_well(name: str) -> None:
    machine = type(f"Model{name.title()}", (Model,), {"target": WORLDS[name]})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=30))
