"""Where a job goes: on which GPUs, on which nodes, how near to each other."""

import pytest

from gpuguard.scheduler.events import DrainAsked, Ended, NodeJoined, Submitted
from gpuguard.scheduler.plan import Plan, Start
from gpuguard.scheduler.request import Job, Wish
from gpuguard.scheduler.settings import Pool, Settings
from gpuguard.scheduler.state import State
from gpuguard.scheduler.wiring import two_sockets
from tests.support.scheduler_world import starts, told


def node(name: str, gpus: int = 8, rack: str = "", pod: str = "", **more: object) -> NodeJoined:
    fields: dict[str, object] = {"placement": two_sockets(gpus) if gpus in {2, 4, 8} else None, **more}
    return NodeJoined(at=0, node=name, gpus=gpus, rack=rack, pod=pod, **fields)  # type: ignore[arg-type]


def sub(id: str, gpus: int, walltime: int = 1000, *, at: int = 0, **more: object) -> Submitted:
    return Submitted(at=at, job=Job(id=id, gpus=gpus, walltime=walltime, **more))  # type: ignore[arg-type]


def state_of(*events: object, settings: Settings | None = None) -> State:
    state = State(settings)
    told(state, *events, now=0)  # type: ignore[arg-type]
    return state


def masks(plan: Plan) -> dict[str, list[int]]:
    return {one.job: [share.mask for share in one.shares] for one in plan.decisions if isinstance(one, Start)}


def drain(name: str, *gpus: int) -> DrainAsked:
    return DrainAsked(at=0, id=f"{name}{gpus}", node=name, gpus=gpus, severity="confirmed", seen=0)


def test_two_gpus_are_a_pair_while_there_is_one_anywhere() -> None:
    """On a only one GPU of each socket is free, on b one pair, on c two of one socket: b, then c, then a."""
    state = state_of(
        node("a"), node("b"), node("c"), drain("a", 1, 2, 3, 5, 6, 7), drain("b", 0, 1, 2, 3, 4, 5),
        drain("c", 1, 3, 4, 5, 6, 7),
    )  # fmt: skip
    plan = told(state, *(sub(id, 2) for id in "xyz"), now=1)
    assert starts(plan) == {"x": ("b",), "y": ("c",), "z": ("a",)}
    assert masks(plan) == {"x": [0b11000000], "y": [0b101], "z": [0b10001]}


def test_all_or_nothing() -> None:
    state = state_of(node("a"), node("b"), sub("small", 1))
    assert starts(told(state, sub("wide", 16), now=1)) == {}
    assert starts(told(state, Ended(at=2, job="small"), now=2)) == {"wide": ("a", "b")}


def test_what_is_left_of_a_wide_job_goes_on_one_more_node() -> None:
    plan = told(state_of(node("a"), node("b"), node("c")), sub("wide", 20), now=1)
    assert [mask.bit_count() for mask in masks(plan)["wide"]] == [8, 8, 4]


@pytest.mark.parametrize(("size", "gpus"), [(1, 1), (2, 2), (16, 16), (64, 64), (64, 3)])
def test_nodes_of_any_size(size: int, gpus: int) -> None:
    plan = told(state_of(node("a", size)), sub("j", gpus), now=1)
    assert masks(plan)["j"][0].bit_count() == gpus


def test_ten_thousand_gpus() -> None:
    state = state_of(*(node(f"n{number:04}", rack=f"r{number // 16:03}") for number in range(1250)))
    plan = told(state, sub("all", 10_000), sub("none", 0), now=1)
    assert sum(mask.bit_count() for mask in masks(plan)["all"]) == 10_000
    assert masks(plan)["none"] == [0]


def test_a_wide_job_goes_to_the_tightest_rack_that_holds_it() -> None:
    nodes = [node(f"a{n}", rack="a") for n in range(4)] + [node(f"b{n}", rack="b") for n in range(2)]
    assert starts(told(state_of(*nodes), sub("wide", 16), now=1)) == {"wide": ("b0", "b1")}


def test_a_wide_job_waits_for_its_rack_as_long_as_it_said() -> None:
    nodes = [node("a0", rack="a"), node("a1", rack="a"), node("b0", rack="b")]
    state = state_of(*nodes, sub("first", 8))
    plan = told(state, sub("wide", 16, at=1, wish=Wish(wait=60)), now=1)
    assert starts(plan) == {}
    assert plan.wake == 61
    plan = told(state, now=61)
    assert sorted(starts(plan)["wide"]) in (["a0", "b0"], ["a1", "b0"])


def test_one_that_requires_its_rack_waits_for_it() -> None:
    nodes = [node("a0", rack="a"), node("a1", rack="a"), node("b0", rack="b")]
    state = state_of(*nodes, sub("first", 8))
    where = state.running["first"].places[0].node
    assert starts(told(state, sub("wide", 16, wish=Wish(required=True)), now=1)) == {} or where == 2
    assert told(state, Ended(at=5, job="first"), now=5).decisions[-1] == state_start(state, "wide")


def state_start(state: State, job: str) -> Start:
    run = state.running[job]
    assert sorted(state.cluster.names[place.node] for place in run.places) == ["a0", "a1"]
    return Start(rule="order", job=job, shares=state.shares(run.places), network="rack")


def test_no_pool_spans_pods_that_shall_not() -> None:
    pools = {"training": Pool(spans=False), "interactive": Pool()}
    nodes = [node("a", pod="a"), node("b", pod="a"), node("c", pod="b")]
    state = state_of(*nodes, sub("first", 8, pool="training"), settings=Settings(pools=pools))
    first = state.running["first"].places[0].node
    plan = told(state, sub("wide", 16), now=1)
    assert starts(plan) == ({} if first < 2 else {"wide": ("a", "b")})


def test_shares_fill_a_card_before_they_break_another() -> None:
    pools = {"interactive": Pool(), "training": Pool()}
    state = state_of(node("a", 2), node("b", 2), settings=Settings(pools=pools))
    shares = [sub(f"s{n}", 1, tier="interactive", gpu_milli=500) for n in range(3)]
    told(state, *shares, now=1)
    cards = [(place.node, place.mask) for run in state.running.values() for place in run.places]
    assert len(set(cards)) == 2


def test_a_share_never_goes_on_a_gpu_of_training() -> None:
    state = state_of(node("a", 1), sub("whole", 1))
    assert starts(told(state, sub("part", 1, tier="interactive", gpu_milli=100), now=1)) == {}


def test_alone_is_alone() -> None:
    state = state_of(node("a"), sub("alone", 2, exclusive=True))
    assert starts(told(state, sub("x", 1), sub("cpus", 0, tier="background"), now=1)) == {}
    plan = told(state, Ended(at=2, job="alone"), now=2)
    assert sorted(starts(plan)) == ["cpus", "x"]
    assert starts(told(state, sub("again", 1, exclusive=True), now=3)) == {}


def test_nodes_that_do_not_tell_their_cores_stand_beside_nodes_that_do() -> None:
    state = state_of(node("told", 2, cpus=1.0), node("silent", 2))
    assert starts(told(state, sub("j", 2), now=1)) == {"j": ("silent",)}
    assert starts(told(state, sub("k", 1, cpus=1.0), now=2)) == {"k": ("told",)}
