"""What models may do to a run, each by hand."""

from collections.abc import Callable

import pytest

from gpuguard.scheduler.events import DrainAsked, DrainLifted, NodeLost
from gpuguard.simulator.engine import Engine, Model, World
from tests.support.worlds import nodes, ran, record, traced


class Hand(Model):
    """Does these things at these instants."""

    name = "hand"

    def __init__(self, *acts: tuple[int, Callable[[World], None]]) -> None:
        self._acts = acts

    def begin(self, world: World, start: int, end: int) -> None:
        for at, act in self._acts:
            world.call(at, lambda _, act=act: act(world))  # type: ignore[misc] # mypy sees no default of a lambda


def run(*acts: tuple[int, Callable[[World], None]], checkpoints: bool = False) -> Engine:
    return ran([traced("job", 8, 1000, checkpoints=checkpoints)], [Hand(*acts)], nodes(1))


def test_a_pace_counts_from_when_it_is_set() -> None:
    engine = run((400, lambda world: world.pace("job", "far", 0.5)), (600, lambda world: world.pace("job", "far", 1.0)))
    job = record(engine, "job")
    # 400 + 100 of 200 + 500
    assert (job.end, job.segments[0].slow, job.segments[0].done) == (1100, (("far", 100.0),), 1000.0)


def test_each_cause_takes_its_part_of_what_others_left() -> None:
    def slow(world: World) -> None:
        world.pace("job", "far", 0.5)
        world.pace("job", "saving", 0.8)

    job = record(run((200, slow)), "job")
    assert job.end == 2200
    assert dict(job.segments[0].slow) == pytest.approx({"far": 1000.0, "saving": 200.0})


def test_a_job_that_stands_does_not_end_by_itself() -> None:
    engine = run(
        (400, lambda world: world.pace("job", "data", 0.0)), (5000, lambda world: world.pace("job", "data", 1))
    )
    assert record(engine, "job").end == 5600


@pytest.mark.parametrize(("at", "end", "how"), [(600, 600, "failed"), (1000, 1000, "ended"), (1001, 1000, "ended")])
def test_an_end_that_is_told_counts_unless_the_job_ends_before(at: int, end: int, how: str) -> None:
    segment = record(run((500, lambda world: world.end("job", at, 1))), "job").segments[0]
    assert (segment.end, segment.how) == (end, how)


def test_an_end_that_is_told_stays_when_the_pace_changes() -> None:
    engine = run(
        (100, lambda world: world.end("job", 700, 1)), (200, lambda world: world.pace("job", "far", 0.5))
    )  # fmt: skip
    assert record(engine, "job").segments[0].end == 700


def test_gpus_that_cannot_be_given_are_outages_until_they_can() -> None:
    def drain(world: World) -> None:
        for id, gpu in (("a", 0), ("b", 3)):
            world.later(
                world.now, DrainAsked(at=world.now, id=id, node="r0n0", gpus=(gpu,), severity="confirmed", seen=0)
            )

    def lift(world: World) -> None:
        world.later(world.now, DrainLifted(at=world.now, id="a", node="r0n0"))

    engine = run((100, drain), (300, lift))
    assert [(outage.start, outage.end, outage.mask) for outage in engine.course.outages] == [
        (100, 300, 0b1001), (300, 1000, 0b1000),
    ]  # fmt: skip


def test_a_smaller_allocation_does_less_and_loses_nothing() -> None:
    """One of its two nodes is lost; it goes on on the other at half its speed, and all that it held was work."""
    lose = (4000, lambda world: world.later(4000, NodeLost(at=4000, node="r0n1")))
    low = record(ran([traced("low", 16, 9000, checkpoints=True, least_gpus=8)], [Hand(lose)], nodes(2)), "low")
    first, second = low.segments
    assert (first.how, first.kept, first.end) == ("lost", 4010.0, 4010)
    assert sum(share.mask.bit_count() for share in second.shares) == 8
    assert (second.end - second.start, second.done, second.slow) == (2 * (9000 - 4010), 2.0 * (9000 - 4010), ())


def test_a_job_that_is_lost_for_good_has_ended() -> None:
    lose = (400, lambda world: world.later(400, NodeLost(at=400, node="r0n0")))
    job = record(ran([traced("job", 8, 1000, requeues=0)], [Hand(lose)], nodes(1)), "job")
    assert (job.outcome, job.end, job.segments[0].how, job.segments[0].kept) == ("node_lost", 400, "lost", 0.0)
