"""One pass and the next: who starts when, who ends, and when the core wants to be asked again."""

import msgspec
import pytest

from gpuguard.scheduler.cycle import AGAIN, cycle
from gpuguard.scheduler.events import (
    AnyEvent,
    Cancelled,
    Checkpointed,
    ConditionMet,
    DrainAsked,
    DrainLifted,
    Ended,
    ExtensionAsked,
    HeartbeatLost,
    NodeJoined,
    NodeLeft,
    NodeLost,
    Submitted,
)
from gpuguard.scheduler.plan import Alert, Extend, Finish, Kill, Requeue, Start
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import DAY, HOUR, Care, Order, Pool, Preemption, Queue, Settings
from gpuguard.scheduler.state import State
from tests.support.scheduler_world import did, starts, told


def node(name: str, gpus: int = 8, at: int = 0, **more: object) -> NodeJoined:
    return NodeJoined(at=at, node=name, gpus=gpus, **more)  # type: ignore[arg-type]


def sub(id: str, gpus: int = 8, walltime: int | None = 1000, *, at: int = 0, **more: object) -> Submitted:
    return Submitted(at=at, job=Job(id=id, gpus=gpus, walltime=walltime, **more))  # type: ignore[arg-type]


def state_of(*events: AnyEvent, settings: Settings | None = None) -> State:
    state = State(settings)
    told(state, *events, now=0)
    return state


def afterok(*parents: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(relation="afterok", name=parent) for parent in parents)


# -- clusters of any kind ---------------------------------------------------------------------------------------------


def test_nothing_at_all() -> None:
    plan = told(State(), now=0)
    assert plan.decisions == ()
    assert plan.wake is None


def test_no_nodes_and_none_any_more() -> None:
    assert did(told(State(), sub("j"), now=0), Start) == []
    state = state_of(node("a"), sub("j"), sub("k"))
    told(state, NodeLeft(at=5, node="a"), now=5)
    assert not state.running
    assert sorted(state.queue.entries) == ["j", "k"]
    # The one that was first of those who had to wait stays first.
    assert starts(told(state, node("b", at=9), now=9)) == {"k": ("b",)}


def test_all_nodes_drained_and_back() -> None:
    drains = [DrainAsked(at=0, id=name, node=name, severity="confirmed", seen=0) for name in "ab"]
    state = state_of(node("a"), node("b"), *drains, sub("j"), sub("wide", 16))
    assert not state.running
    assert state.planned == ()
    lifts = [DrainLifted(at=5, id=name, node=name, by="ann") for name in "ab"]
    assert starts(told(state, *lifts, now=5)) == {"wide": ("a", "b")}


def test_all_jobs_at_once() -> None:
    state = state_of(*(node(f"n{number}") for number in range(20)))
    plan = told(state, *(sub(f"j{number:04}", 1) for number in range(2000)), now=1)
    assert len(starts(plan)) == 160
    assert len(plan.reservations) == Settings().reservations


def test_a_node_that_dies_in_the_instant_of_a_submit_gets_nothing() -> None:
    state = state_of(node("a"))
    assert starts(told(state, sub("j", at=5), NodeLost(at=5, node="a"), now=5)) == {}


# -- time -------------------------------------------------------------------------------------------------------------


def test_time_that_goes_back_stands() -> None:
    state = state_of(node("a"))
    told(state, sub("j"), now=1000)
    plan = told(state, now=10)
    assert plan.at == 1000
    assert plan.wake == 2000


def test_what_is_told_late_is_due_at_once_and_wakes_nobody_in_the_past() -> None:
    state = State(Settings(care=Care(heartbeat=10, dead=100)))
    told(state, node("a"), now=0)
    plan = told(state, HeartbeatLost(at=50, node="a"), now=5000)
    assert plan.wake is None or plan.wake > 5000
    assert state.lives["a"].phase.dead


def test_first_come_first_served_does_not_wake_for_patience() -> None:
    state = state_of(node("a"), settings=Settings(key="fifo", order=Order(patience=10)))
    told(state, sub("j", walltime=100 * DAY, queue="training"), now=1)
    assert not state.running
    told(state, sub("k", walltime=DAY), sub("l", walltime=DAY), now=2)
    plan = told(state, now=1000)
    assert plan.wake == DAY + 2


@pytest.mark.parametrize("walltime", [1, 7 * DAY])
def test_the_walltime_ends_a_job_and_what_does_not_go_is_told_of(walltime: int) -> None:
    state = state_of(node("a"), sub("j", walltime=walltime))
    assert did(told(state, now=walltime - 1), Kill) == []
    plan = told(state, now=walltime)
    assert did(plan, Kill) == ["j"]
    assert plan.wake == walltime + 120
    plan = told(state, now=walltime + 120)
    assert [one.rule for one in plan.decisions if isinstance(one, Alert)] == ["does_not_end"]
    assert plan.wake == walltime + 120 + AGAIN
    assert "j" in state.running
    plan = told(state, Ended(at=walltime + 200, job="j", code=143), now=walltime + 200)
    assert [(one.job, one.outcome) for one in plan.decisions if isinstance(one, Finish)] == [("j", "timeout")]


def test_ten_years() -> None:
    settings = Settings(queues={"training": Queue()})
    state = state_of(node("a"), sub("j", walltime=3650 * DAY), settings=settings)
    plan = told(state, sub("k"), now=5)
    assert plan.wake == 14 * DAY + 1
    assert plan.reservations[0].start == 3650 * DAY
    assert did(told(state, now=3650 * DAY), Kill) == ["j"]


def test_a_session_ends_after_an_hour_however_long_it_asked_and_however_it_extends() -> None:
    state = state_of(node("a"), sub("s", 1, 9000, tier="interactive", checkpoints=True, extends=True))
    saved = Checkpointed(at=3000, job="s")
    plan = told(state, saved, ExtensionAsked(at=3000, job="s", seconds=HOUR), now=3000)
    assert did(plan, Extend) == []
    plan = told(state, now=HOUR)
    assert [one.rule for one in plan.decisions if isinstance(one, Kill)] == ["session"]


# -- extensions -------------------------------------------------------------------------------------------------------


def extended(state: State, seconds: int, at: int, *more: AnyEvent) -> list[str]:
    saved = Checkpointed(at=at, job="j")
    return did(told(state, saved, ExtensionAsked(at=at, job="j", seconds=seconds), *more, now=at), Extend)


def test_an_extension_where_nobody_waits() -> None:
    state = state_of(node("a"), sub("j", checkpoints=True, extends=True))
    assert extended(state, 500, 900) == ["j"]
    assert did(told(state, now=1000), Kill) == []
    assert did(told(state, now=1500), Kill) == ["j"]


@pytest.mark.parametrize("joins", [False, True])
def test_no_extension_past_a_reservation_though_the_cluster_changes_in_the_same_pass(joins: bool) -> None:
    state = state_of(node("a"), sub("j", checkpoints=True, extends=True))
    told(state, sub("next"), now=10)
    assert extended(state, 500, 900, *([node("a", at=900)] if joins else [])) == []


def test_no_extension_past_the_second_reservation_of_the_node() -> None:
    """Half of the node is reserved before the job ends, the other half from its end."""
    fifo = Settings(key="fifo")
    state = state_of(node("a"), sub("j", 4, 1000, checkpoints=True, extends=True), sub("h", 4, 500), settings=fifo)
    told(state, sub("n1", 4, 9000, at=1), sub("n2", 4, 9000, at=2), now=10)
    assert [one.start for one in state.planned] == [500, 1000]
    assert extended(state, 500, 400) == []


def test_an_extension_beside_a_reservation_that_does_not_need_its_gpus() -> None:
    state = state_of(node("a"), sub("j", 4, 1000, checkpoints=True, extends=True), sub("h", 4, 500))
    told(state, sub("n1", 4, 9000), now=10)
    assert extended(state, 500, 400) == ["j"]


# -- what failed and comes again --------------------------------------------------------------------------------------


def test_it_starts_again_on_fewer_nodes() -> None:
    state = state_of(node("a"), node("b"), sub("j", 16, least_gpus=8, checkpoints=True))
    told(state, NodeLost(at=5, node="b"), now=5)
    plan = told(state, Ended(at=6, job="j", signal=9), now=6)
    assert did(plan, Requeue) == ["j"]
    assert [(one.rule, [share.node for share in one.shares]) for one in plan.decisions if isinstance(one, Start)] == [
        ("elastic", ["a"])
    ]


def test_one_that_takes_less_is_looked_at_though_another_of_its_line_does_not_fit() -> None:
    """No reservation is left, and the first of the same shape and length takes only all."""
    settings = Settings(reservations=0)
    state = state_of(node("a"), node("b"), node("c"), sub("j", 24, least_gpus=8, checkpoints=True), settings=settings)
    told(state, sub("i", 24, at=1), now=1)
    told(state, NodeLost(at=5, node="b"), NodeLost(at=5, node="c"), now=5)
    plan = told(state, Ended(at=6, job="j", signal=9), now=6)
    assert starts(plan) == {"j": ("a",)}


def test_a_requeued_job_keeps_its_age_also_where_it_waits_for_its_name() -> None:
    one = (Dependency(relation="singleton", name="n"),)
    state = state_of(node("a"), sub("j", checkpoints=True, name="n", after=one))
    told(state, Ended(at=100, job="j", code=1), node("b", at=100), now=100)
    assert state.running["j"].entry.submitted == 0


def test_age_stands_while_a_job_waits_for_others_and_goes_on_after() -> None:
    word = (Dependency(relation="condition", name="w"),)
    state = state_of(node("a"), sub("first"))
    told(state, sub("j", at=10, after=word), ConditionMet(at=10, name="w"), now=10)
    told(state, ConditionMet(at=500, name="w", met=False), now=500)
    told(state, ConditionMet(at=600, name="w"), now=600)
    assert state.queue.entries["j"].submitted == 110


# -- dependencies, caps, pools ----------------------------------------------------------------------------------------


def test_a_parent_that_failed_takes_its_children_along() -> None:
    state = state_of(node("a"), sub("p"))
    told(state, sub("c", after=afterok("p")), sub("g", after=afterok("c")), now=1)
    plan = told(state, Ended(at=5, job="p", code=1), now=5)
    ends = [(one.job, one.outcome) for one in plan.decisions if isinstance(one, Finish)]
    assert ends == [("p", "failed"), ("c", "cancelled"), ("g", "cancelled")]
    assert not state.waiting


def test_a_child_starts_in_the_pass_in_which_its_parent_ends() -> None:
    state = state_of(node("a"), sub("p"))
    assert starts(told(state, sub("c", after=afterok("p")), now=1)) == {}
    assert starts(told(state, Ended(at=5, job="p"), now=5)) == {"c": ("a",)}


def test_one_of_a_name_at_a_time() -> None:
    one = (Dependency(relation="singleton", name=""),)
    state = state_of(node("a"), sub("x", 1, name="n", after=one), sub("y", 1, name="n", after=one))
    assert sorted(state.running) == ["x"]
    assert starts(told(state, Ended(at=5, job="x", code=1), now=5)) == {"y": ("a",)}


def test_a_queue_holds_no_more_gpus_than_its_cap() -> None:
    state = state_of(node("a"), settings=Settings(queues={"training": Queue(gpus=4), "other": Queue()}))
    plan = told(state, sub("x", 3), sub("y", 2), sub("z", 1), sub("o", 4, queue="other"), now=1)
    assert sorted(starts(plan)) in (["o", "x", "z"], ["o", "y", "z"])
    assert state.by_queue["training"] <= 4000


def test_a_pool_draws_no_more_than_its_watts() -> None:
    pools = {"training": Pool(watts=500.0), "interactive": Pool()}
    state = state_of(node("a", watts=800.0), settings=Settings(pools=pools))
    assert starts(told(state, sub("x", 4), sub("y", 2), sub("z", 1), now=1)).keys() == {"x", "z"}
    told(state, node("a", at=2, watts=400.0), now=2)
    assert state.watts["training"] == 350.0
    assert "y" in state.running


@pytest.mark.parametrize("limit", ["queue", "power"])
def test_who_waits_beyond_patience_for_a_limit_is_not_starved_by_those_who_ask_less(limit: str) -> None:
    pools = {"training": Pool(watts=800.0 if limit == "power" else None), "interactive": Pool()}
    queues = {"training": Queue(gpus=8 if limit == "queue" else None)}
    settings = Settings(pools=pools, queues=queues, order=Order(patience=300, size=0.0))
    state = state_of(node("a", watts=800.0), node("b", watts=800.0), sub("s", 4, 100), settings=settings)
    told(state, sub("big", 8, 100, at=1), now=1)
    for at in range(10, 1000, 40):
        over = [Ended(at=at, job=job) for job, run in state.running.items() if run.end <= at]
        plan = told(state, sub(f"s{at}", 2, 100, at=at), *over, now=at)
        if "big" in starts(plan):
            break
    assert 300 < at < 450


def test_high_jobs_hold_a_fifth() -> None:
    state = state_of(node("a"), node("b"), sub("n", 8))
    told(state, sub("h1", 2, level="high"), sub("h2", 1, level="high"), now=1)
    assert [state.running[job].level for job in ("h1", "h2")] in (["high", "normal"], ["normal", "high"])


def test_data_are_prepared_on_cores_that_free_gpus_would_keep() -> None:
    state = state_of(node("a", 2, cpus=4.0))
    assert starts(told(state, sub("cpus", 0, tier="background"), now=1)) == {}
    assert starts(told(state, sub("data", 0, tier="background", prepares=True), now=2)) == {"data": ("a",)}


# -- order and bounds -------------------------------------------------------------------------------------------------


def test_without_backfill_nobody_passes_the_first_nor_a_head_that_waits() -> None:
    state = state_of(node("a"), node("b"), sub("runs", 8), settings=Settings(backfill=False))
    told(state, sub("wide", 16, at=1), now=1)
    assert starts(told(state, sub("later", 1, at=2), now=2)) == {}
    assert starts(told(state, sub("earlier", 16, 10, at=2), node("c", 4, at=3), now=3)) == {}


def test_a_wide_job_is_not_starved_by_a_stream_of_small_ones() -> None:
    state = state_of(node("a"), *(sub(f"s{n}", 2, 100) for n in range(4)))
    told(state, sub("wide", 8, 100, at=1), now=1)
    for at in range(10, 100, 10):
        told(state, sub(f"t{at}", 2, 100, at=at), now=at)
    ends = [Ended(at=100, job=f"s{n}") for n in range(4)]
    assert starts(told(state, *ends, now=100)) == {"wide": ("a",)}


def test_the_same_events_give_the_same_bytes() -> None:
    def play() -> bytes:
        state, plans = State(), []
        for at in range(0, 300, 10):
            events: list[AnyEvent] = [sub(f"j{at}{n}", 1 + n, 50, at=at, user=f"u{n % 3}") for n in range(5)]
            if not at:
                events += [node("a"), node("b", 4)]
            events += [Ended(at=at, job=job) for job, run in state.running.items() if run.end <= at]
            state, plan = cycle(state, events, at)
            plans.append(plan)
        return msgspec.json.encode(plans)

    assert play() == play()


def test_cancelled_in_any_place() -> None:
    state = state_of(node("a"), sub("runs"))
    told(state, sub("queued"), sub("waits", after=afterok("queued")), now=1)
    plan = told(state, Cancelled(at=2, job="queued", by="ann"), Cancelled(at=2, job="nobody"), now=2)
    assert did(plan, Finish) == ["queued", "waits"]
    assert did(told(state, Cancelled(at=3, job="runs"), now=3), Kill) == ["runs"]
    assert did(told(state, Cancelled(at=4, job="runs"), now=4), Kill) == []


def test_preemption_can_be_switched_off() -> None:
    settings = Settings(preemption=Preemption(enabled=False))
    state = state_of(node("a"), sub("low", tier="batch", checkpoints=True), settings=settings)
    assert told(state, sub("top"), now=5 * HOUR // 2).decisions[:1] != ()
    assert "top" in state.queue
