"""What is planned, by hand: it comes true or comes earlier."""

from gpuguard.scheduler.events import Ended, NodeJoined, NodeLeft, Submitted
from gpuguard.scheduler.plan import Plan
from gpuguard.scheduler.queue import UNBOUNDED, stepped
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Queue, Settings
from gpuguard.scheduler.state import State
from tests.support.scheduler_world import starts, told

FIFO = Settings(key="fifo", reservations=3, queues={"training": Queue()})


def node(name: str, gpus: int = 8, **more: object) -> NodeJoined:
    return NodeJoined(at=0, node=name, gpus=gpus, **more)  # type: ignore[arg-type]


def sub(id: str, gpus: int, walltime: int | None = 1000, *, at: int = 0, **more: object) -> Submitted:
    tier = "training" if walltime is not None else "batch"
    fields: dict[str, object] = {"tier": tier, **more}
    return Submitted(at=at, job=Job(id=id, gpus=gpus, walltime=walltime, **fields))  # type: ignore[arg-type]


def planned(plan: Plan) -> dict[str, int]:
    return {one.job: one.start for one in plan.reservations}


def state_of(*events: object, settings: Settings = FIFO) -> State:
    state = State(settings)
    told(state, *events, now=0)  # type: ignore[arg-type]
    return state


def test_the_head_is_planned_for_the_end_of_whom_it_waits_for() -> None:
    state = state_of(node("a"), node("b"), sub("one", 8, 500), sub("two", 8, 900))
    plan = told(state, sub("wide", 16, at=1), sub("next", 8, at=2), now=10)
    assert planned(plan)["wide"] == 900


def test_who_is_gone_before_the_head_starts_and_who_fits_beside_it_goes_first() -> None:
    state = state_of(node("a"), node("b", 4), sub("long", 5, 600))
    plan = told(state, sub("head", 8, 600), sub("short", 3, 400), sub("longer", 3, 700), sub("beside", 4, 9000), now=10)
    assert starts(plan) == {"short": ("a",), "beside": ("b",)}
    assert planned(plan)["head"] == 600


def test_a_job_without_walltime_has_no_end_in_the_plan() -> None:
    state = state_of(node("a"), sub("forever", 4, None))
    plan = told(state, sub("wide", 8), sub("more", 4, None), now=10)
    assert planned(plan) == {}
    assert starts(plan) == {"more": ("a",)}
    assert stepped(UNBOUNDED)[1] > 1 << 50


def test_one_that_is_to_be_alone_is_not_planned_beside_one_that_never_ends() -> None:
    state = state_of(node("a", cpus=32.0), sub("forever", 0, None))
    plan = told(state, sub("alone", 8, exclusive=True), now=10)
    assert planned(plan) == {}


def test_nobody_is_planned_beside_one_that_is_to_be_alone() -> None:
    state = state_of(node("a"), sub("first", 8, 100))
    plan = told(state, sub("alone", 1, 100, exclusive=True), sub("other", 1, 100, at=1), now=10)
    assert planned(plan)["alone"] == 100
    assert planned(plan)["other"] > 200
    told(state, Ended(at=100, job="first"), now=100)
    assert sorted(state.running) == ["alone"]
    assert starts(told(state, sub("late", 1, 10, at=101), now=101)) == {}


def test_work_for_cpus_is_not_planned_where_free_gpus_need_the_cores() -> None:
    """8 GPUs keep 16 cores: while they are busy the job would fit, when they are free it does not."""
    state = state_of(node("a", cpus=20.0), sub("gpus", 8, 500, cpus=16.0))
    plan = told(state, sub("cpus", 0, 100, cpus=6.0, tier="background"), now=10)
    assert planned(plan) == {}
    assert starts(plan) == {}


def test_no_node_no_plan() -> None:
    state = state_of(node("a"), sub("first", 8))
    plan = told(state, sub("next", 8), now=1)
    assert planned(plan)["next"] == 1000
    assert told(state, NodeLeft(at=2, node="a"), now=2).reservations == ()


def test_steps_round_up() -> None:
    assert stepped(1) == (0, 60)
    assert stepped(60) == (0, 60)
    for length in (61, 100, 3600, 7200, 86400, 10 * 365 * 86400):
        step, span = stepped(length)
        assert span >= length
        assert span <= length * 1.2
        assert stepped(span)[0] <= step + 1
