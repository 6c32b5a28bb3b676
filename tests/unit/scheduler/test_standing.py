"""Where a job stands in the queue, and why."""

from math import log2

import pytest

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import NodeJoined, Submitted
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR, Order, Settings
from gpuguard.scheduler.standing import PARTS, compare, position
from gpuguard.scheduler.state import State


def site(*jobs: tuple[int, Job], settings: Settings | None = None) -> State:
    """One node that somebody has, and those who queue for it."""
    state = State(settings)
    first = Job(id="first", gpus=8, walltime=7 * DAY, user="first")
    cycle(state, [NodeJoined(at=0, node="n0", gpus=8), Submitted(at=0, job=first)], 0)
    for at, job in jobs:
        cycle(state, [Submitted(at=at, job=job)], at)
    return state


def test_a_row_adds_up_to_the_place_in_the_queue() -> None:
    order = Order(qos={"gold": 3.0}, most=10.0)
    jobs = [
        Job(
            id=f"j{number}", gpus=1 + number % 8, walltime=HOUR * (1 + number), qos="gold" if number % 2 else "normal",
            queue="urgent" if number == 3 else "training", user=f"u{number % 3}",
            tier="batch" if number % 5 == 0 else "training",
        )
        for number in range(20)
    ]  # fmt: skip
    state = site(*((10 * at, job) for at, job in enumerate(jobs)), settings=Settings(order=order))
    for number, entry in enumerate(state.queue.in_order(), 1):
        found = position(state, entry.job.id)
        assert found is not None
        row = found.row
        assert (row.place, found.ahead) == (number, number - 1)
        hours = sum(getattr(row, name) for name in PARTS)
        assert row.submitted + hours * HOUR == pytest.approx(row.counts_from, abs=0.01 * HOUR)
        assert row.counts_from == entry.key[1]


def test_the_parts_by_hand() -> None:
    state = site((3600, Job(id="a", gpus=4, walltime=6 * HOUR)))
    found = position(state, "a")
    assert found is not None
    row = found.row
    assert (row.size, row.walltime, row.bound) == (-36.0, 18.0 * log2(4), 0.0), (
        "18 h x log2(4), and 18 h x log2(1 + 6/2)"
    )
    assert (row.band, found.why) == ("of level normal", "nobody is before it")


def test_why_somebody_who_came_later_goes_first() -> None:
    state = site((0, Job(id="a", gpus=1, walltime=6 * HOUR)), (3 * HOUR, Job(id="b", gpus=4, walltime=6 * HOUR)))
    found = position(state, "a")
    assert found is not None
    assert (found.ahead, found.gpus, [row.job for row in found.nearest]) == (1, 4, ["b"])
    assert found.why == (
        "1 job with 4 GPUs is before it; job b is before job a: it counts as waiting 33.0 h longer "
        "(submitted 3.0 h later, size -36.0 h against +0.0 h)"
    )
    assert compare(state, "b", "a") == compare(state, "a", "b")


def test_levels_and_fair_share_are_told() -> None:
    state = site(
        (0, Job(id="a", gpus=1, walltime=HOUR, user="first")), (5, Job(id="b", gpus=1, walltime=HOUR, user="new"))
    )
    cycle(state, [], HOUR)
    said = compare(state, "a", "b")
    assert said.startswith("job b is before job a: it counts as waiting 12.0 h longer (share +0.0 h against +12.0 h). ")
    assert "first (all) stands behind new (all)" in said
    cycle(state, [Submitted(at=2 * HOUR, job=Job(id="c", gpus=1, walltime=HOUR, level="low"))], 2 * HOUR)
    assert compare(state, "c", "a") == "job a is before job c: it is of level normal, and job c is of level low"


def test_a_high_job_beyond_the_share_stands_among_the_normal() -> None:
    state = site((0, Job(id="a", gpus=8, walltime=HOUR)), (5, Job(id="b", gpus=8, walltime=HOUR, level="high")))
    found = position(state, "b")
    assert found is not None
    assert (found.row.band, found.ahead) == ("of level high and counts as normal", 1)


def test_who_does_not_queue_has_no_place() -> None:
    state = site((0, Job(id="a", gpus=1, walltime=HOUR)))
    assert position(state, "first") is None
    assert compare(state, "a", "first") == "job first does not queue for room, so it has no place to compare"
