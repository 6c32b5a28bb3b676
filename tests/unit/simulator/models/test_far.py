"""What far places cost: only what could have been nearer, by the wiring and by the rooms."""

import msgspec
import pytest

from gpuguard.scheduler.plan import Share, Start
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.course import JobRecord
from gpuguard.simulator.engine import Engine, Life
from gpuguard.simulator.models.far import Far, Settings
from gpuguard.simulator.policies import policies
from tests.support.worlds import nodes, ran, record, traced


def speed(masks: dict[str, int], network: str = "node", wires: bool = False, settings: Settings | None = None) -> float:
    """Of a job with these GPUs of three nodes in two racks."""
    where = nodes(2, 1)
    if wires:
        mesh = {**two_sockets(8), "wires": [[int(one != other) for other in range(8)] for one in range(8)]}
        where = [msgspec.structs.replace(node, placement=mesh) for node in where]
    engine = Engine(where, [], policies()["gpuguard"])
    engine.state.joined = {node.node: node for node in where}
    shares = tuple(Share(node, mask, 1000, 0, 0) for node, mask in masks.items())
    gpus = sum(mask.bit_count() for mask in masks.values())
    life = Life(Job(id="j", gpus=gpus), 1.0, JobRecord(id="j", gpus=gpus, submit=0))
    life.shares = shares
    return Far(settings or Settings()).speed(engine, life, Start(rule="order", job="j", shares=shares, network=network))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0b1, 1.0), (0b11, 1.0), (0b101, 0.9), (0b10000001, 0.5), (0b1111, 1.0), (0b11000011, 0.5 / 0.9),
        (0b11111111, 1.0), (0b00111111, 1.0),
    ],
)  # fmt: skip
def test_in_a_node(mask: int, expected: float) -> None:
    """Two GPUs: one switch, one socket, both. Four fit a socket, so both sockets cost; six and eight do not fit one."""
    assert speed({"r0n0": mask}) == pytest.approx(expected)


def test_nvlink_joins_across_sockets() -> None:
    assert speed({"r0n0": 0b10000001}, wires=True) == 1.0


@pytest.mark.parametrize(("network", "expected"), [("rack", 1.0), ("pod", 0.85), ("core", 0.7)])
def test_across_nodes(network: str, expected: float) -> None:
    assert speed({"r0n0": 0xFF, "r1n0": 0xFF}, network) == expected


def test_a_job_over_more_nodes_than_it_needs_loses_30_percent() -> None:
    assert speed({"r0n0": 0x0F, "r0n1": 0x0F}, "rack") == 0.7


def test_never_slower_than_a_third() -> None:
    assert speed({"r0n0": 0b10000001}, settings=Settings(sockets=0.1)) == pytest.approx(1 / 3)


def test_a_run_is_stretched_and_says_by_what() -> None:
    # Two nodes in two racks of one pod: the only places for 16 GPUs are a pod apart. 850 s of work take 1,000.
    engine = ran([traced("wide", 16, 850)], [Far(Settings())], nodes(1, 1))
    job = record(engine, "wide")
    assert (job.first_start, job.end) == (0, 1000)
    assert dict(job.segments[0].slow) == pytest.approx({"far": 150.0})
    assert job.segments[0].done == pytest.approx(850.0)
