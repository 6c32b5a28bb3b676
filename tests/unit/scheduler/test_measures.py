"""What the core measures of itself, by hand."""

import msgspec
import pytest

from gpuguard.scheduler.cluster import Cluster, Place
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import DrainAsked, Ended, NodeJoined, Progressed, Submitted
from gpuguard.scheduler.measures import HOURS, LONG, Measures, look, merged
from gpuguard.scheduler.plan import Alert
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import DAY, HOUR, Settings
from gpuguard.scheduler.state import State
from gpuguard.scheduler.windows import Spread, Window, goodput, power, size_of


def cluster(*free: int, racks: int = 1) -> Cluster:
    """Nodes of 8 GPUs of which so many are free."""
    made = Cluster(
        NodeJoined(at=0, node=f"n{number}", gpus=8, rack=f"r{number % racks}") for number in range(len(free))
    )
    for number, count in enumerate(free):
        node = made.index[f"n{number}"]
        if count < 8:
            made.take(f"j{number}", Place(node, (1 << 8 - count) - 1, WHOLE, (0, 0, 0, 0)), 100)
    return made


def record(queue: str = "training", gpus: int = 1, submitted: int = 0, began: int = 60, end: int = 160) -> Record:
    one = Record(job="a", user="u", account="all", queue=queue, tier="training", gpus=gpus * WHOLE, submitted=submitted)
    one.begins(began, gpus * WHOLE, "node")
    one.ran(end, "completed", None)
    one.ended, one.outcome = end, "completed"
    return one


def test_ten_jobs_of_four_on_eight_nodes_leave_24_gpus_and_no_whole_node() -> None:
    found = look(cluster(0, 0, 4, 4, 4, 4, 4, 4))
    assert (found.idle, found.stranded, found.fragmented_share) == (24, 24, 1.0)
    assert found.slots == (0, 0, 0, 0, 0)


def test_slots_with_and_without_the_rule_of_one_rack() -> None:
    found = look(cluster(8, 8, 8, 8, 0, 8, racks=2))  # racks: n0 n2 n4(full), n1 n3 n5
    assert found.slots == (5, 2, 1, 0, 0)
    assert found.near == (5, 2, 1, 0, 0), "16 GPUs go into each rack once; for 32 no rack is large enough, the pod is"
    found = look(cluster(8, 8, 8, 8, 0, 0, racks=2))
    assert (found.slots[1], found.near[1]) == (2, 2)
    found = look(cluster(8, 8, 8, 0, 0, 0, 0, 8, racks=2))
    assert (found.slots[2], found.near[2]) == (1, 0), "two nodes in each rack, and four in none"


def test_nodes_that_are_out_are_neither_idle_nor_slots() -> None:
    made = cluster(8, 4)
    made.judge(made.index["n0"], False, 0)
    made.judge(made.index["n1"], True, 1 << 7)
    found = look(made)
    assert (found.idle, found.stranded, found.out) == (3, 3, 9)
    assert look(Cluster()).slots == (0, 0, 0, 0, 0)


def test_integrals_are_of_the_time_between_passes() -> None:
    measures, made = Measures(), cluster(8, 8)
    measures.sample(0, made, 4 * WHOLE, 3, 1)
    measures.sample(100, made, 16 * WHOLE, 0, 4)
    measures.sample(200, made, 0, 0, 0)
    window = measures.last(1)
    assert (window.seconds, window.allocated, window.gpus) == (200, 2000 * WHOLE, 3200 * WHOLE)
    assert (window.queued, window.running) == (300, 500)
    assert (window.idle_share, window.queued_share) == (1 - 2000 / 3200, 300 / 800)
    assert window.fragmented_share == 0.0


def test_hours_become_days_and_months_and_old_ones_go() -> None:
    measures, made = Measures(epoch=0), cluster(8)
    for hour in range(100):
        measures.sample(hour * HOUR, made, 8 * WHOLE, 0, 1)
    assert len(measures.hours) == HOURS
    assert measures.day(0).seconds == DAY
    assert measures.day(4 * DAY).seconds == 3 * HOUR, "the open hour is among them"
    assert measures.month(0).seconds == 99 * HOUR
    assert measures.last(10**6).seconds == merged(list(measures.hours.values())).seconds


def test_a_leap_of_ten_years_costs_little_and_loses_no_time() -> None:
    measures, made = Measures(), cluster(8)
    measures.sample(10, made, 8 * WHOLE, 0, 1)
    measures.sample(10 + 3650 * DAY, made, 0, 0, 0)
    assert sum(window.seconds for window in measures.months.values()) + measures.last(1).seconds == 3650 * DAY


def test_records_by_queue_and_size() -> None:
    measures = Measures()
    for gpus, wait in ((1, 30), (8, 90), (9, 600), (64, 6000)):
        measures.ended(record(gpus=gpus, began=wait, end=wait + 10))
    waits = measures.last(9).waits["training"]
    assert {size: spread.total for size, spread in waits.items()} == {"1-8": 120, "9-63": 600, "64+": 6000}
    assert (waits["1-8"].mean, waits["1-8"].most, waits["1-8"].below(0.5)) == (60.0, 90, 60)
    assert [size_of(milli) for milli in (0, 500, 8000, 8001, 64000)] == ["0", "1-8", "1-8", "9-63", "64+"]
    assert measures.last(9).ended == {"completed": 4}


def test_quantiles_are_bounds_by_doublings() -> None:
    spread = Spread()
    for seconds in (1, 60, 61, 120, 121, 4000):
        spread.add(seconds)
    assert spread.steps == [2, 2, 1, 0, 0, 0, 0, 1]
    assert [spread.below(share) for share in (0.3, 0.5, 0.8, 1.0)] == [60, 120, 240, 4000]
    assert Spread().below(0.5) is None


def test_two_windows_together_are_as_if_it_had_been_one() -> None:
    one, two, both = Window(), Window(), Window()
    for number in range(10):
        fresh = record(queue=f"q{number % 3}", gpus=number * 9, began=number * 100, end=number * 1000 + 100)
        (one if number % 2 else two).fold(fresh)
        both.fold(fresh)
    assert merged([one, two]) == both
    assert merged([one, two]) == merged([two, one])


def test_goodput_and_effective_power_by_hand() -> None:
    window = Window(
        seconds=100, gpus=1000 * WHOLE, allocated=800 * WHOLE, used=600 * WHOLE, unproductive=40 * WHOLE,
        lost_failure=60 * WHOLE, lost_preemption=100 * WHOLE, apart={"rack": 400 * WHOLE, "core": 200 * WHOLE},
    )  # fmt: skip
    parts = goodput(window, {"core": 0.3})
    assert (parts.used, parts.distance) == (540.0, 60.0)
    assert parts.used + parts.distance + parts.failure + parts.preemption + parts.idling == 800.0
    found = power(window, {"core": 0.3})
    assert (found.cards, found.time, found.parallel, found.useful) == (10.0, 0.8, 0.9, 0.75)
    assert found.effective == pytest.approx(5.4), "10 cards do the work of 5.4"
    assert power(Window()).effective is None


def test_the_queued_share_is_told_once_until_it_was_well_below_for_as_long() -> None:
    measures, made = Measures(), cluster(8)
    told: list[int] = []
    for now, queued in ((0, 40), (LONG - 1, 40), (LONG, 40), (2 * LONG, 40), (3 * LONG, 25), (4 * LONG, 40),
                        (5 * LONG, 15), (6 * LONG, 15), (6 * LONG + 1, 40), (7 * LONG + 1, 40)):  # fmt: skip
        measures.sample(now, made, 0, queued, 60)
        if measures.warn(now, 0.3) is not None:
            told.append(now)
    assert told == [LONG, 7 * LONG + 1]
    few = Measures()
    for now in (0, 2 * LONG):
        few.sample(now, made, 0, 4, 1)
        assert few.warn(now, 0.3) is None


def test_the_cycle_measures_and_warns() -> None:
    state = State(Settings(), epoch=1_700_000_000)
    jobs = [Job(id=f"j{number}", gpus=8, walltime=10 * HOUR) for number in range(20)]
    cycle(state, [NodeJoined(at=0, node="n0", gpus=8), *(Submitted(at=0, job=job) for job in jobs)], 0)
    first = next(iter(state.running))
    cycle(state, [Progressed(at=30, job=first)], 30)
    _, plan = cycle(state, [Ended(at=LONG, job=first)], LONG)
    (alert,) = [decision for decision in plan.decisions if isinstance(decision, Alert)]
    assert (alert.rule, alert.about) == ("queued_share", "queue")
    assert alert.why.startswith("95% of 19 jobs have queued for over 60 min (more than 30%)")
    assert plan.counts == {"queued": 18, "waiting": 0, "running": 1, "allocated_milli": 8 * WHOLE}
    cycle(state, [DrainAsked(at=LONG + 1, id="d", node="n0", severity="confirmed", seen=0)], LONG + 1)
    cycle(state, [], LONG + 11)
    window = state.measures.last(9)
    assert (window.submitted, window.ended, window.ran) == (20, {"completed": 1}, 1)
    assert window.out == 8 * WHOLE * 10
    assert (window.warming.count, window.warming.total, window.unproductive) == (1, 30, 30 * 8 * WHOLE)


def test_measures_go_through_json() -> None:
    measures, made = Measures(), cluster(8, 4)
    measures.sample(0, made, 4 * WHOLE, 1, 1)
    measures.ended(record())
    measures.sample(2 * HOUR, made, 4 * WHOLE, 1, 1)
    assert msgspec.json.decode(msgspec.json.encode(measures), type=Measures) == measures
