"""Who failed stands for all who ask as much and for as long."""

from gpuguard.scheduler.cluster import Ask
from gpuguard.scheduler.hopeless import FEW, MOST, Hopeless
from gpuguard.scheduler.queue import Chunk, Entry, Shape, Terms
from gpuguard.scheduler.request import Job


def entry(gpus: int = 1, milli: int = 0, cpus: int = 0, nodes: int = 1, pool: str = "p", length: int = 3600) -> Entry:
    ask = Ask(gpus, milli, (cpus, 0, 0, 0), 0, (), pool, False, 0)
    terms = Terms((Chunk(nodes, ask),), "rack", False, None, "normal", "training", "")
    return Entry(Job(id="a", gpus=gpus), Shape(terms), 0, length)


def test_who_asks_more_of_anything_is_covered_and_who_asks_less_is_not() -> None:
    failed = Hopeless()
    failed.add(entry(2, cpus=4000), 0)
    assert failed.covers(entry(2, cpus=4000))
    assert failed.covers(entry(3, cpus=5000))
    assert not failed.covers(entry(1, cpus=8000))
    assert not failed.covers(entry(4, cpus=3000))


def test_who_failed_for_its_length_says_nothing_of_shorter_ones() -> None:
    failed = Hopeless()
    day = entry(length=86400)
    failed.add(day, day.step)
    assert failed.covers(entry(length=2 * 86400))
    assert not failed.covers(entry(length=3600))


def test_a_part_of_a_gpu_is_less_than_one() -> None:
    failed = Hopeless()
    failed.add(entry(0, milli=300), 0)
    assert failed.covers(entry(0, milli=500))
    assert failed.covers(entry(1))
    assert not failed.covers(entry(0, milli=200))
    assert not failed.covers(entry(0, cpus=1000))


def test_other_nodes_and_several_nodes_are_looked_at() -> None:
    failed = Hopeless()
    failed.add(entry(1), 0)
    assert not failed.covers(entry(1, pool="q"))
    assert not failed.covers(entry(8, nodes=2))
    failed.add(entry(1, nodes=2, pool="q"), 0)
    assert not failed.covers(entry(1, pool="q"))


def test_what_is_given_back_gives_hope() -> None:
    failed = Hopeless()
    failed.add(entry(1), 0)
    failed.renew(FEW + 1)
    assert not failed.covers(entry(8))
    failed.add(entry(1), 0)
    assert failed.covers(entry(8))


def test_only_so_many_are_kept() -> None:
    failed = Hopeless()
    for number in range(2 * MOST):
        failed.add(entry(1 + number, cpus=1000 * (2 * MOST - number)), 0)
    assert failed.covers(entry(2 * MOST, cpus=1000))
    assert not failed.covers(entry(1, cpus=1000 * 2 * MOST))


def test_few_sorts_are_looked_at_one_by_one() -> None:
    failed = Hopeless()
    failed.renew(FEW)
    failed.add(entry(1), 0)
    assert not failed.covers(entry(8))
