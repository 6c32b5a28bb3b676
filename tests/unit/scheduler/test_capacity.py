"""Whether jobs fit nodes that exist, and what is said where they do not."""

import pytest

from gpuguard.scheduler.capacity import Capacity, Kind
from gpuguard.scheduler.layout import Part
from gpuguard.scheduler.request import Job, Wish
from gpuguard.scheduler.settings import Pool, Settings

A100 = Kind(gpus=8, gpu_type="A100", gpu_memory=81920, cpus=64, memory=1000, network_bandwidth=100, count=4)
A10 = Kind(gpus=4, gpu_type="A10", gpu_memory=24576, cpus=32, memory=500, pool="interactive", count=2)
SITE = Capacity(Settings(), (A100, A10))


def lies(capacity: Capacity, job: Job) -> list[tuple[int, int]] | None:
    found = capacity.fitting(job)
    return None if found is None else [(part.nodes, part.gpus) for part in found]


def test_what_exists_holds_it() -> None:
    assert SITE.fitting(Job(id="1", gpus=20)) == (Part(2, 8, 1000, 16000, 0, 0, 0), Part(1, 4, 1000, 8000, 0, 0, 0))
    assert lies(SITE, Job(id="1", gpus=32)) == [(4, 8)]
    assert lies(SITE, Job(id="1", gpus=4, tier="interactive", gpu_types=("A10", "H100"))) == [(1, 4)]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Job(id="1", gpus=33), "It asks 5 nodes with 8 GPUs in pool training; 4 such nodes exist."),
        (Job(id="1", gpus=16, nodes=1), "It asks 1 node with 16 GPUs in pool training; 0 such nodes exist."),
        (Job(id="1", gpu_types=("H100",)), "No node with H100 GPUs is in pool training."),
        (Job(id="1", gpus=4, tier="interactive", gpu_types=("H100",)), "No node with H100 GPUs is in pool interactive"),
        (Job(id="1", gpu_memory=90_000), "No node with GPUs of at least 90000 MiB is in pool training."),
        (Job(id="1", gpus=8, cpus=65), "and 65 cores on each; 0 such nodes exist."),
        (Job(id="1", gpus=8, memory=1001), "and 1001 MiB on each; 0 such nodes exist."),
        (Job(id="1", gpus=8, network_bandwidth=101), "and 101 MiB/s of network bandwidth on each; 0 such nodes exist."),
        (Job(id="1", gpus=0, tier="background", cpus=65), "It asks 1 node in pool training, and 65 cores on each"),
    ],
)
def test_what_nothing_holds_is_told_by_the_first_thing_missing(job: Job, said: str) -> None:
    assert SITE.fitting(job) is None
    why, step = SITE.shortage(job)
    assert said in why
    assert step


def test_the_cores_that_come_with_gpus_count_and_are_named() -> None:
    few = Capacity(Settings(), (Kind(gpus=8, cpus=15),))
    assert few.fitting(Job(id="1", gpus=7)) is not None
    assert few.fitting(Job(id="1", gpus=8)) is None
    assert "16 cores (not said: the least for its GPUs)" in few.shortage(Job(id="1", gpus=8))[0]
    assert few.fitting(Job(id="1", gpus=8, cpus=8)) is not None


def test_where_great_nodes_are_too_few_smaller_ones_do() -> None:
    mixed = Capacity(Settings(), (Kind(gpus=8), Kind(gpus=4, count=5)))
    assert lies(mixed, Job(id="1", gpus=20)) == [(5, 4)]
    assert lies(mixed, Job(id="1", gpus=12)) == [(1, 8), (1, 4)]
    assert lies(mixed, Job(id="1", gpus=28)) is None


def test_nodes_of_no_pool_are_of_every_pool_and_nodes_that_are_not_there_of_none() -> None:
    bare = Capacity(Settings(), (Kind(gpus=8), Kind(gpus=16, count=0)))
    assert lies(bare, Job(id="1", gpus=8, tier="interactive")) == [(1, 8)]
    assert lies(bare, Job(id="1", gpus=16)) is None
    assert Capacity(Settings(), ()).fitting(Job(id="1", gpus=0)) is None


def test_a_wish_that_must_be_met_counts_by_room() -> None:
    racks = tuple(Kind(gpus=8, rack=f"r{number}", pod="a" if number < 2 else "b", count=2) for number in range(4))
    site = Capacity(Settings(), racks)
    assert lies(site, Job(id="1", gpus=32, wish=Wish(within="rack"))) == [(4, 8)]
    assert lies(site, Job(id="1", gpus=32, wish=Wish(within="pod", required=True))) == [(4, 8)]
    job = Job(id="1", gpus=32, wish=Wish(within="rack", required=True))
    assert lies(site, job) is None
    assert "all in one rack; no rack has as many" in site.shortage(job)[0]
    narrow = Capacity(Settings(pools={"training": Pool(spans=False)}), racks)
    assert lies(narrow, Job(id="1", gpus=32)) == [(4, 8)]
    assert lies(narrow, Job(id="1", gpus=40)) is None
