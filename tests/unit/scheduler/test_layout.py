"""How jobs lie on nodes, and what they take there."""

import pytest

from gpuguard.scheduler.layout import Part, layout, parts, resized, sizes
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings

SITE = Settings()


@pytest.mark.parametrize(
    ("gpus", "nodes", "node_gpus", "lies"),
    [
        (20, None, (8,), ((2, 8), (1, 4))),
        (16, None, (8, 4), ((2, 8),)),
        (8, None, (4, 16), ((1, 8),)),
        (1, None, (8,), ((1, 1),)),
        (8, 4, (8,), ((4, 2),)),
        (0, None, (8,), ((1, 0),)),
        (0, 3, (0,), ((3, 0),)),
        (10_000, None, (8,), ((1250, 8),)),
        (4, None, (), ((1, 4),)),
        (4, None, (0,), ((1, 4),)),
    ],
)
def test_as_few_nodes_as_hold_it_or_as_many_as_it_says(
    gpus: int, nodes: int | None, node_gpus: tuple[int, ...], lies: tuple[tuple[int, int], ...]
) -> None:
    assert layout(Job(id="1", gpus=gpus, nodes=nodes), node_gpus) == lies


def amounts(job: Job, *, cores_told: bool = True) -> list[tuple[int, int]]:
    return [(part.cpus, part.memory) for part in parts(job, layout(job, (8,)), SITE, cores_told=cores_told)]


def test_two_cores_come_with_a_gpu_unless_the_job_says_otherwise() -> None:
    assert amounts(Job(id="1", gpus=20)) == [(16_000, 0), (8_000, 0)]
    assert amounts(Job(id="1", gpus=8, cpus=4)) == [(4_000, 0)]
    assert amounts(Job(id="1", gpus=1, gpu_milli=301)) == [(602, 0)]
    assert amounts(Job(id="1", gpus=0)) == [(1_000, 0)]
    assert amounts(Job(id="1", gpus=8), cores_told=False) == [(0, 0)]


def test_what_is_said_for_the_job_is_split_by_gpus_and_rounded_up() -> None:
    assert amounts(Job(id="1", gpus=20, cpus=10, memory=101)) == [(4_000, 41), (2_000, 21)]
    assert amounts(Job(id="1", gpus=0, nodes=3, cpus=1, memory=10)) == [(334, 4)]


def test_what_is_said_for_a_node_or_a_gpu_is_taken_as_said() -> None:
    assert amounts(Job(id="1", gpus=20, per="node", cpus=0.1, memory=0.3)) == [(100, 1), (100, 1)]
    assert amounts(Job(id="1", gpus=20, per="gpu", cpus=0.1, memory=1.5)) == [(800, 12), (400, 6)]


def test_bandwidths_are_in_the_ledger_too() -> None:
    job = Job(id="1", gpus=16, cpus=1, memory_bandwidth=11, network_bandwidth=7)
    assert parts(job, ((2, 8),), SITE) == (Part(2, 8, 1000, 500, 0, 6, 4),)


@pytest.mark.parametrize(
    ("job", "node_gpus", "found"),
    [
        (Job(id="1", gpus=8), (8,), (8,)),
        (Job(id="1", gpus=32, nodes=4, least_gpus=8), (), (32, 24, 16, 8)),
        (Job(id="1", gpus=20, least_gpus=2), (8,), (20, 16, 8, 4, 2)),
        (Job(id="1", gpus=20, least_gpus=10), (8,), (20, 16, 10)),
        (Job(id="1", gpus=20, least_gpus=20), (8,), (20,)),
        (Job(id="1", gpus=8, least_gpus=3), (8,), (8, 4, 3)),
        (Job(id="1", gpus=6, least_gpus=1), (), (6, 3, 1)),
        (Job(id="1", gpus=0), (8,), (0,)),
    ],
)
def test_a_restart_takes_fewer_nodes_and_then_halves(job: Job, node_gpus: tuple[int, ...], found: object) -> None:
    assert sizes(job, node_gpus) == found


def test_a_smaller_job_has_nodes_as_full_and_its_part_of_the_rest() -> None:
    job = Job(id="1", gpus=32, nodes=4, least_gpus=4, cpus=64, memory=3200)
    less = resized(job, 24)
    assert (less.nodes, less.gpus, less.cpus, less.memory) == (3, 24, 48, 2400)
    assert resized(job, 4).nodes is None
    assert resized(job, 32) is job
    assert resized(Job(id="1", gpus=8, per="gpu", cpus=2), 4).cpus == 2
