"""How near the GPUs of each job were: small clusters, each start looked at by hand."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.nearness import Nearness
from gpuguard.simulator.policies import policies
from gpuguard.simulator.trace import TraceJob

HOUR, DAY = 3600, 86400


def node(name: str, rack: str = "", **given: Any) -> NodeJoined:
    return NodeJoined(at=0, node=name, gpus=8, rack=rack, placement=two_sockets(8), **given)


def job(name: str, gpus: int, at: int = 0, hours: int = 1, **given: Any) -> TraceJob:
    return TraceJob(job=Job(id=name, gpus=gpus, walltime=hours * HOUR, **given), submit_s=at, duration_s=hours * HOUR)


def figures(
    nodes: Sequence[NodeJoined], jobs: Sequence[TraceJob], policy: str = "gpuguard", wait: int = DAY
) -> dict[str, Any]:
    seen = Nearness(nodes)
    settings = policies()[policy]
    pools = {**settings.pools, "training": msgspec.structs.replace(settings.pools["training"], wait=wait)}
    settings = msgspec.structs.replace(settings, pools=pools)
    for _ in Engine(nodes, jobs, settings, models=(seen,)).run():
        pass
    return seen.figures()


def test_a_job_on_two_nodes_of_one_rack() -> None:
    found = figures([node("a", "r1"), node("b", "r1"), node("c", "r2")], [job("x", 16)])
    assert (found["multi_node_jobs"], found["one_rack_share"]) == (1, 1.0)


def test_a_job_that_had_to_be_spread() -> None:
    nodes = [node("a", "r1"), node("b", "r1"), node("c", "r2"), node("d", "r2")]
    full = [job(name, 8, at, 9) for at, name in enumerate("abcd")]  # one a node, in their order
    free = [_ends_early(one) if one.job.id in {"b", "c"} else one for one in full]
    wide = job("wide", 16, 2 * HOUR, 20)
    assert figures(nodes, [*free, wide])["one_rack_share"] == 1.0
    found = figures(nodes, [*free, wide], wait=0)
    assert (found["multi_node_jobs"], found["one_rack_share"]) == (1, 0.0)


def test_a_job_wider_than_any_rack_says_nothing_of_nearness() -> None:
    found = figures([node("a", "r1"), node("b", "r2")], [job("x", 16)])
    assert (found["multi_node_jobs"], found["one_rack_share"]) == (1, None)


def test_where_no_racks_are_known_there_is_no_share() -> None:
    found = figures([node("a"), node("b")], [job("x", 16)])
    assert (found["multi_node_jobs"], found["one_rack_share"]) == (1, None)


def test_a_pair_on_one_socket() -> None:
    found = figures([node("a")], [job("x", 2)])
    assert (found["pairs"], found["pairs_across_sockets"]) == (1, 0)


def test_a_pair_across_sockets_that_could_not_be_helped() -> None:
    """Eight jobs fill the node GPU by GPU; one of each socket leaves."""
    jobs = [*(job(str(at), 1, at, 9) for at in range(8)), job("pair", 2, 100)]
    short = [_ends_early(one) if one.job.id in {"3", "7"} else one for one in jobs]
    found = figures([node("a")], short)
    assert (found["pairs"], found["pairs_across_sockets"], found["pairs_across_sockets_avoidable"]) == (1, 1, 0)


def _ends_early(traced: TraceJob) -> TraceJob:
    return msgspec.structs.replace(traced, duration_s=HOUR)


def test_a_pair_across_sockets_while_another_node_was_free() -> None:
    """A policy without the wiring's tables fills the fuller node."""
    jobs = [*(job(str(at), 1, at, 9) for at in range(8)), job("pair", 2, 2 * HOUR)]
    short = [_ends_early(one) if one.job.id in {"3", "7"} else one for one in jobs]
    found = figures([node("a"), node("b")], short, "fifo-pack")
    assert (found["pairs_across_sockets"], found["pairs_across_sockets_avoidable"]) == (1, 1)
    kind = [node("a", gpu_type="A100"), node("b", gpu_type="V100")]
    bound = [_of_type(one) for one in short]
    assert figures(kind, bound, "fifo-pack")["pairs_across_sockets_avoidable"] == 0


def _of_type(traced: TraceJob) -> TraceJob:
    return msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, gpu_types=("A100",)))


def test_ours_takes_the_nearer_pair() -> None:
    jobs = [*(job(str(at), 1, at, 9) for at in range(8)), job("pair", 2, 2 * HOUR)]
    short = [_ends_early(one) if one.job.id in {"3", "7"} else one for one in jobs]
    assert figures([node("a"), node("b")], short)["pairs_across_sockets"] == 0


def test_a_node_of_unknown_wiring_has_no_sockets() -> None:
    found = figures([NodeJoined(at=0, node="a", gpus=8)], [job("x", 2)])
    assert (found["pairs"], found["pairs_across_sockets"]) == (0, 0)
