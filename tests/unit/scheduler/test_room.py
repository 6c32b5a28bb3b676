"""Making room: what is kept for whom, and every way in which it ends."""

import pytest

from gpuguard.scheduler.events import Cancelled, DrainAsked, Ended, NodeJoined, NodeLost, Submitted
from gpuguard.scheduler.plan import Hold, Preempt, Release
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import Pool, Preemption, Queue, Settings
from gpuguard.scheduler.state import State
from tests.support.scheduler_world import did, starts, told

RULES = Preemption(least_run=0, grace=60, hold=100, cooldown=1000)


def node(name: str, gpus: int = 8, **more: object) -> NodeJoined:
    return NodeJoined(at=0, node=name, gpus=gpus, **more)  # type: ignore[arg-type]


def low(id: str, gpus: int = 8, **more: object) -> Submitted:
    """A batch job that may be asked to leave."""
    return Submitted(at=0, job=Job(id=id, gpus=gpus, tier="batch", walltime=5000, checkpoints=True, **more))  # type: ignore[arg-type]


def top(id: str, gpus: int = 8, **more: object) -> Submitted:
    return Submitted(at=10, job=Job(id=id, gpus=gpus, walltime=5000, **more))  # type: ignore[arg-type]


def full(*events: object, settings: Settings | None = None) -> State:
    state = State(settings or Settings(preemption=RULES))
    told(state, *events, now=0)  # type: ignore[arg-type]
    return state


def test_room_is_kept_for_whom_it_was_made() -> None:
    state = full(node("a"), low("low"))
    plan = told(state, top("top"), now=10)
    assert did(plan, Preempt) == ["low"]
    assert did(plan, Hold) == ["top"]
    plan = told(state, Ended(at=20, job="low", code=143), top("other"), now=20)
    assert starts(plan) == {"top": ("a",)}


def test_a_hold_ends_when_the_victim_does_not_leave() -> None:
    state = full(node("a"), low("low"))
    told(state, top("top"), now=10)
    assert did(told(state, now=169), Release) == []
    assert did(told(state, now=170), Release) == ["top"]


def test_the_node_of_a_hold_dies() -> None:
    state = full(node("a"), node("b"), low("low"), low("last", 7))
    told(state, top("top"), now=10)
    told(state, NodeLost(at=15, node="a"), now=15)
    assert [state.cluster.names[place.node] for place in state.holes["top"].places] == ["b"]
    plan = told(state, NodeLost(at=15, node="b"), now=16)
    assert did(plan, Release) == ["top"]
    assert not state.holes


def test_room_that_went_bad_is_given_up_in_the_same_pass() -> None:
    state = full(node("a"), low("low"))
    told(state, top("top", 2), top("next", 2), now=10)
    drain = DrainAsked(at=20, id="d", node="a", gpus=(0,), severity="confirmed", seen=20)
    plan = told(state, drain, Ended(at=20, job="low", code=143), now=20)
    # GPU 0 was kept for the one; both start on what is left.
    assert len(did(plan, Release)) == 1
    assert sorted(starts(plan)) == ["next", "top"]


def test_bandwidth_is_counted_when_room_is_made() -> None:
    """The victim's GPUs are enough, its bandwidth is not: another has it."""
    state = full(node("a", memory_bandwidth=1000.0), low("low", 4, memory_bandwidth=100.0),
                 Submitted(at=0, job=Job(id="stays", gpus=4, walltime=5000, memory_bandwidth=900.0)))  # fmt: skip
    plan = told(state, top("top", 4, memory_bandwidth=500.0), now=10)
    assert did(plan, Preempt) == []


def test_room_on_a_node_that_is_one_jobs_alone_is_no_room() -> None:
    state = full(node("a"), Submitted(at=0, job=Job(id="sole", gpus=2, walltime=5000, exclusive=True)), low("low", 2))
    assert sorted(state.running) == ["sole"]
    plan = told(state, top("top", 2), now=10)
    assert did(plan, Preempt) == []
    assert starts(plan) == {}


def test_nobody_comes_beside_room_that_is_kept_for_one_alone() -> None:
    state = full(node("a"), low("low", 2))
    plan = told(state, top("sole", 4, exclusive=True), now=10)
    assert did(plan, Preempt) == ["low"]
    assert starts(told(state, top("small", 1), now=15)) == {}
    assert starts(told(state, Ended(at=20, job="low", code=143), now=20)) == {"sole": ("a",)}


def test_a_singleton_does_not_start_in_its_room_beside_another_of_its_name() -> None:
    state = full(node("a"), low("low"))
    one = Dependency(relation="singleton", name="n")
    told(state, top("first", name="n", after=(one,)), now=10)
    told(state, node("b", gpus=1), Submitted(at=11, job=Job(id="z", gpus=1, walltime=9, name="n")), now=11)
    plan = told(state, Ended(at=20, job="low", code=143), now=20)
    running = [run for run in state.running.values() if run.job.name == "n"]
    assert len(running) == 1, plan


def test_the_cap_of_a_queue_holds_for_whom_room_was_made_too() -> None:
    queues = {"training": Queue(), "capped": Queue(gpus=8)}
    state = full(node("a"), node("b", gpus=4), low("low"), settings=Settings(preemption=RULES, queues=queues))
    told(state, top("top", queue="capped"), now=10)
    told(state, top("quick", 4, queue="capped"), now=11)
    told(state, Ended(at=20, job="low", code=143), now=20)
    assert state.by_queue["capped"] <= 8000


def test_a_cancelled_victim_is_over_and_its_room_is_used() -> None:
    state = full(node("a"), low("low"))
    told(state, top("top"), now=10)
    told(state, Cancelled(at=11, job="low"), now=11)
    assert starts(told(state, Ended(at=12, job="low", code=1), now=12)) == {"top": ("a",)}


@pytest.mark.parametrize("extra", [{"tier": "training"}, {"checkpoints": False}])
def test_who_does_not_resume_or_is_an_equal_stays(extra: dict[str, object]) -> None:
    fields: dict[str, object] = {"tier": "batch", "checkpoints": True, **extra}
    state = full(node("a"), Submitted(at=0, job=Job(id="stays", gpus=8, walltime=5000, **fields)))  # type: ignore[arg-type]
    assert did(told(state, top("top"), now=10), Preempt) == []


def test_others_are_planned_behind_room_that_is_kept() -> None:
    """Else the wide one had no reservation as long as the room is kept, and one of 25 hours went before it."""
    state = full(node("a"), node("b"), low("low"), Submitted(at=0, job=Job(id="run", gpus=8, walltime=700)))
    told(state, top("top"), now=10)
    plan = told(state, top("wide", 16), now=11)
    assert [one.job for one in plan.reservations] == ["wide"]
    start = plan.reservations[0].start
    long = Submitted(at=12, job=Job(id="long", gpus=8, walltime=90_000))
    plan = told(state, Ended(at=12, job="run"), long, now=12)
    assert starts(plan) == {}
    assert plan.reservations[0].start == start


def test_a_victim_takes_less_when_it_comes_back() -> None:
    state = full(node("a"), node("b", 4), low("low", least_gpus=4))
    told(state, top("top"), now=10)
    plan = told(state, Ended(at=20, job="low", code=143), now=20)
    assert starts(plan) == {"top": ("a",), "low": ("b",)}


def test_a_pool_that_is_full_of_power_stays_so() -> None:
    pools = {"training": Pool(watts=800.0), "interactive": Pool()}
    state = full(node("a", watts=800.0), node("b", watts=800.0), low("low"), settings=Settings(pools=pools))
    assert starts(told(state, low("more"), now=5)) == {}
    assert state.watts == {"training": 800.0}


def test_who_may_ask_again_is_asked_again_though_nothing_else_happens() -> None:
    """The victim has run too short; when it has not any more, the pass wakes for it."""
    state = full(node("a"), low("low"), settings=Settings(preemption=Preemption(least_run=1000)))
    plan = told(state, top("top"), now=10)
    assert did(plan, Preempt) == []
    assert plan.wake == 1000
    assert did(told(state, now=1000), Preempt) == ["low"]
