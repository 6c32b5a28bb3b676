"""The order of those who wait, and the walk over their lines."""

from itertools import pairwise

import pytest

from gpuguard.scheduler.cluster import NOTHING, Ask
from gpuguard.scheduler.queue import OVERDUE, UNBOUNDED, Chunk, Entry, Queue, Shape, Terms, line_of
from gpuguard.scheduler.request import Job, Level
from gpuguard.scheduler.settings import DAY, HOUR, Order, Settings


def shape(queue: Queue, gpus: int = 1, level: Level = "normal") -> Shape:
    ask = Ask(gpus, 0, NOTHING, 0, (), "training", False, 0)
    return queue.shape(Terms((Chunk(1, ask),), "rack", False, None, level, "training", ""))


def entry(queue: Queue, id: str, at: int = 0, gpus: int = 1, walltime: int | None = HOUR, **more: object) -> Entry:
    job = Job(id=id, gpus=gpus, walltime=walltime, **more)  # type: ignore[arg-type]
    one = Entry(job, shape(queue, gpus, job.level), at, UNBOUNDED if walltime is None else walltime)
    queue.add(one, 1.0, at)
    return one


def walked(queue: Queue) -> list[str]:
    walk, found = queue.walk(), []
    while (one := walk.next()) is not None:
        found.append(one.job.id)
        walk.go_on()
    return found


def test_levels_come_before_all_else_and_interactive_first_in_its_level() -> None:
    queue = Queue(Settings())
    entry(queue, "low", level="low")
    entry(queue, "normal", at=5 * DAY)
    entry(queue, "session", at=5 * DAY, tier="interactive")
    entry(queue, "high", at=6 * DAY, level="high")
    assert walked(queue) == ["high", "session", "normal", "low"] == [one.job.id for one in queue.in_order()]
    first = queue.first()
    assert first is not None
    assert first.job.id == "high"


def test_wide_is_earlier_and_long_later_by_hours_of_age() -> None:
    queue = Queue(Settings(order=Order(size=10.0, length=4.0)))
    one = entry(queue, "one", walltime=2 * HOUR)
    wide = entry(queue, "wide", gpus=8, walltime=2 * HOUR)
    long = entry(queue, "long", walltime=14 * HOUR)
    assert one.key[1] - wide.key[1] == 30 * HOUR
    assert long.key[1] - one.key[1] == 8 * HOUR


def test_no_job_is_moved_further_than_the_most() -> None:
    queue = Queue(Settings(order=Order(most=5.0)))
    wide, forever = entry(queue, "wide", gpus=10_000), entry(queue, "forever", walltime=None)
    assert wide.key[1] == -5 * HOUR
    assert forever.key[1] == 5 * HOUR


def test_who_waited_beyond_patience_goes_before_all() -> None:
    queue = Queue(Settings(order=Order(patience=100)))
    old, high = entry(queue, "old", level="low"), entry(queue, "high", at=50, level="high")
    assert queue.next_overdue() == 101
    assert list(queue.overdue(100)) == []
    queue.rekey([(one, 1.0) for one in list(queue.overdue(101))], 101)
    assert old.key[0] == OVERDUE
    assert walked(queue) == ["old", "high"]
    assert queue.next_overdue() == 151
    queue.remove("old")
    queue.reshare(lambda holder: 0.0)
    assert walked(queue) == ["high"]
    assert high.key[0] != OVERDUE


def test_ties_are_broken_by_id() -> None:
    queue = Queue(Settings())
    for id in ("b", "a", "c"):
        entry(queue, id)
    assert walked(queue) == ["a", "b", "c"]


def test_a_line_that_cannot_fit_is_left_out_as_a_whole() -> None:
    queue = Queue(Settings(key="fifo"))
    for number in range(6):
        entry(queue, f"j{number}", at=number, gpus=1 + number % 2)
    walk, found = queue.walk(), []
    while (one := walk.next()) is not None:
        found.append(one.job.id)
        if one.gpus == 1:
            walk.go_on()
    assert found == ["j0", "j1", "j2", "j4"]


def test_who_takes_less_stands_in_a_line_of_its_own() -> None:
    queue = Queue(Settings())
    plain, less = entry(queue, "plain"), entry(queue, "less")
    assert line_of(plain) == line_of(less)
    queue.remove("less")
    less.runs, less.smaller = 1, ((1, less.shape),)
    queue.add(less, 1.0, 0)
    assert line_of(plain) != line_of(less)
    assert len(queue.lines()) == 2
    assert queue.remove("less") is less
    assert len(queue.lines()) == 1


@pytest.mark.parametrize("many", [100_000])
def test_a_hundred_thousand_that_wait(many: int) -> None:
    queue = Queue(Settings())
    shapes = [shape(queue, gpus) for gpus in (1, 2, 4, 8)]
    for number in range(many):
        job = Job(id=f"j{number:06}", gpus=1, walltime=HOUR)
        queue.add(Entry(job, shapes[number % 4], number, HOUR), 1.0, 0)
    assert len(queue) == queue.gpus == many
    assert len(queue.lines()) == 4
    walk = queue.walk()
    found = [one.key for one in iter(walk.next, None)]
    assert len(found) == 4
    assert all(one < other for one, other in pairwise(found))
    for number in range(0, many, 1000):
        queue.remove(f"j{number:06}")
    assert len(queue) == many - many // 1000
