"""What is told: once, twice, too late, at the same instant, and of jobs that are on their way out."""

from itertools import permutations

import msgspec
import pytest

from gpuguard.scheduler.events import (
    AnyEvent,
    Cancelled,
    ConditionMet,
    Ended,
    ExtensionAsked,
    Hung,
    NodeJoined,
    NodeLeft,
    NodeLost,
    Submitted,
)
from gpuguard.scheduler.plan import Finish, Kill, Preempt, Refuse, Release, Requeue, Start
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import HOUR, Preemption, Settings
from gpuguard.scheduler.state import State
from tests.support.scheduler_world import did, starts, told

GRACE = 120


def node(name: str, gpus: int = 8, at: int = 0, **more: object) -> NodeJoined:
    return NodeJoined(at=at, node=name, gpus=gpus, **more)  # type: ignore[arg-type]


def job(id: str, gpus: int = 8, walltime: int | None = 1000, **more: object) -> Job:
    return Job(id=id, gpus=gpus, walltime=walltime, **more)  # type: ignore[arg-type]


def sub(*jobs: Job, at: int = 0) -> list[Submitted]:
    return [Submitted(at=at, job=one) for one in jobs]


def cluster(*events: AnyEvent, settings: Settings | None = None) -> State:
    state = State(settings)
    told(state, *events, now=0)
    return state


def outcome(plan: object) -> list[tuple[str, str]]:
    return [(one.job, one.outcome) for one in plan.decisions if isinstance(one, Finish)]  # type: ignore[attr-defined]


def test_an_end_that_is_told_again_does_not_end_the_run_after_it() -> None:
    state = cluster(node("a"), *sub(job("j", checkpoints=True)))
    failed = Ended(at=10, job="j", code=1)
    assert starts(told(state, failed, now=11)) == {"j": ("a",)}
    plan = told(state, failed, now=20)
    assert plan.decisions == ()
    assert "j" in state.running


@pytest.mark.parametrize("late", [Hung(at=10, job="j"), ExtensionAsked(at=10, job="j", seconds=60)])
def test_what_was_said_of_the_run_before_says_nothing_of_this_one(late: AnyEvent) -> None:
    state = cluster(node("a"), *sub(job("j", checkpoints=True, extends=True)))
    told(state, Ended(at=10, job="j", code=1), now=11)
    assert told(state, late, now=20).decisions == ()


def test_an_end_counts_where_the_clock_was_set_back_behind_the_start() -> None:
    state = cluster(node("a"))
    told(state, *sub(job("j")), now=1000)
    assert outcome(told(state, Ended(at=500, job="j"), now=500)) == [("j", "completed")]


# -- on their way out -------------------------------------------------------------------------------------------------


def preempting() -> State:
    """A batch job was told to make room for a training job."""
    rules = Preemption(least_run=0, grace=60, hold=100)
    state = cluster(node("a"), settings=Settings(preemption=rules))
    told(state, *sub(job("low", tier="batch", checkpoints=True)), now=10)
    plan = told(state, *sub(job("top"), at=20), now=20)
    assert did(plan, Preempt) == ["low"]
    return state


def test_a_job_that_is_cancelled_while_it_makes_room_does_not_come_back() -> None:
    state = preempting()
    told(state, Cancelled(at=25, job="low"), now=25)
    plan = told(state, Ended(at=30, job="low", code=143), now=30)
    assert outcome(plan) == [("low", "cancelled")]
    assert starts(plan) == {"top": ("a",)}


def test_a_job_that_was_told_to_end_for_good_is_not_started_again_when_its_node_dies() -> None:
    state = cluster(node("a"), *sub(job("cut"), job("over", walltime=50)), node("b"))
    told(state, Cancelled(at=49, job="cut"), now=49)
    told(state, now=50)
    plan = told(state, NodeLost(at=55, node="a"), NodeLost(at=55, node="b"), now=55)
    assert outcome(plan) == [("over", "timeout"), ("cut", "cancelled")] or outcome(plan) == [
        ("cut", "cancelled"),
        ("over", "timeout"),
    ]
    assert did(plan, Requeue) == []


def test_the_preemptor_is_cancelled_while_victims_leave() -> None:
    state = preempting()
    plan = told(state, Cancelled(at=25, job="top"), now=25)
    assert did(plan, Release) == ["top"]
    assert outcome(plan) == [("top", "cancelled")]
    plan = told(state, Ended(at=30, job="low", code=143), now=30)
    assert did(plan, Requeue) == ["low"]
    assert starts(plan) == {"low": ("a",)}


def test_a_victim_that_ends_by_itself_with_a_proof_is_done() -> None:
    state = preempting()
    plan = told(state, Ended(at=30, job="low", code=0, proof=True), now=30)
    assert outcome(plan) == [("low", "completed")]
    assert starts(plan) == {"top": ("a",)}


@pytest.mark.parametrize(("at", "word"), [(30, "preempted"), (19, "nonzero_exit")])
def test_an_exit_in_the_grace_is_ours_and_one_before_the_signal_its_own(at: int, word: str) -> None:
    state = preempting()
    plan = told(state, Ended(at=at, job="low", code=1), now=30)
    assert [one.rule for one in plan.decisions if isinstance(one, Requeue)] == [word]


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_a_job_over_two_nodes_is_gone_when_both_are() -> None:
    state = cluster(node("a"), node("b"), *sub(job("wide", 16)))
    plan = told(state, NodeLost(at=5, node="a"), now=5)
    assert did(plan, Kill) == ["wide"]
    assert "wide" in state.running
    plan = told(state, NodeLost(at=6, node="b"), now=6)
    assert did(plan, Requeue) == ["wide"]
    assert not state.running


def test_a_node_that_leaves_and_joins_in_one_pass_is_there_without_its_jobs() -> None:
    state = cluster(node("a"), *sub(job("j")))
    plan = told(state, NodeLeft(at=5, node="a"), node("a", at=6), now=10)
    assert did(plan, Requeue) == ["j"]
    assert starts(plan) == {"j": ("a",)}
    told(state, node("a", at=11), NodeLeft(at=12, node="a"), now=15)
    assert not state.joined


# -- one order --------------------------------------------------------------------------------------------------------

TIES: dict[str, list[AnyEvent]] = {
    "two ends": [Ended(at=5, job="j", code=0), Ended(at=5, job="j", code=1)],
    "hung and ended": [Hung(at=5, job="j", culprit="a"), Ended(at=5, job="j", code=1), Hung(at=5, job="j")],
    "met and not": [ConditionMet(at=5, name="w", met=False), ConditionMet(at=5, name="w")],
    "one id": [Submitted(at=5, job=job("k", 1)), Submitted(at=5, job=job("k", 2))],
    "one node": [node("b", 4, at=5), node("b", 8, at=5), NodeLeft(at=5, node="b")],
}


@pytest.mark.parametrize("name", TIES)
def test_events_of_one_instant_mean_the_same_in_any_order(name: str) -> None:
    word = Dependency(relation="condition", name="w")
    plans = set()
    for events in permutations(TIES[name]):
        state = cluster(node("a"), *sub(job("j", checkpoints=True), job("waits", 1, after=(word,))))
        first = told(state, *events, now=5)
        plans.add(msgspec.json.encode([first, told(state, now=6), sorted(state.queue.entries), sorted(state.joined)]))
    assert len(plans) == 1


def test_a_job_lies_as_it_fits_the_nodes_that_there_are() -> None:
    """Two nodes of 8 are exchanged for four of 4."""
    state = cluster(node("a"), node("b"), *sub(job("runs", 16), job("waits", 16)))
    small = [node(name, 4, at=5) for name in "abcd"]
    plan = told(state, Ended(at=4, job="runs"), *small, now=5)
    assert starts(plan) == {"waits": ("a", "b", "c", "d")}


def test_a_queues_limit_ends_who_said_no_walltime() -> None:
    state = State()
    plan = told(state, node("a"), *sub(job("b", walltime=None, tier="batch", queue="trial")), now=0)
    assert plan.wake == state.running["b"].end == 2 * HOUR
    plan = told(state, now=2 * HOUR)
    assert [(one.job, one.rule) for one in plan.decisions if isinstance(one, Kill)] == [("b", "walltime")]


def test_an_end_of_another_run_ends_nothing() -> None:
    """The first run is lost and the job starts again in the same second: the late word is of run 0."""
    state = cluster(node("a"), node("b"), *sub(job("j", checkpoints=True)))
    on = state.cluster.names[state.running["j"].places[0].node]
    plan = told(state, NodeLost(at=10, node=on), now=10)
    assert [decision.run for decision in plan.decisions if isinstance(decision, Start)] == [1]
    told(state, Ended(at=10, job="j", code=1, run=0), Hung(at=10, job="j", run=0), now=10)
    assert state.running["j"].signalled is None
    told(state, Ended(at=11, job="j", run=1, proof=True), now=11)
    assert "j" not in state.running


def test_a_job_that_is_submitted_twice_is_the_same_job() -> None:
    state = cluster(node("a"), *sub(job("runs"), job("waits")))
    plan = told(state, *sub(job("runs"), job("waits"), at=5), now=5)
    assert plan.decisions == ()
    plan = told(state, *sub(job("runs", 4), at=6), now=6)
    assert [(decision.job, decision.rule) for decision in plan.decisions if isinstance(decision, Refuse)] == [
        ("runs", "duplicate")
    ]
