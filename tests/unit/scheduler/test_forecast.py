"""Forecasts, held against what then happens."""

from collections.abc import Iterator, Mapping
from statistics import mean

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, DrainAsked, Ended, NodeJoined, Submitted
from gpuguard.scheduler.forecast import Forecast, forecast
from gpuguard.scheduler.learned import Learned
from gpuguard.scheduler.plan import Start
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import HOUR, Queue, Settings
from gpuguard.scheduler.state import State


def many(count: int, most: int = 16) -> list[Job]:
    """Jobs of many sizes and lengths, with no chance in them."""
    sizes = [size for size in (1, 2, 4, 8, 12, 16) if size <= most]
    return [
        Job(id=f"j{number:03}", gpus=sizes[number * 7 % len(sizes)], walltime=HOUR * (1 + number * 5 % 11))
        for number in range(count)
    ]


def run(
    jobs: list[Job], nodes: int, part: float = 1.0, settings: Settings | None = None
) -> Iterator[tuple[State, dict[str, int]]]:
    """The state after each pass, and who has started when; jobs run for this part of their walltimes."""
    state = State(settings)
    first: list[AnyEvent] = [NodeJoined(at=0, node=f"n{number}", gpus=8) for number in range(nodes)]
    ends: dict[int, list[AnyEvent]] = {0: [*first, *(Submitted(at=0, job=job) for job in jobs)]}
    begun: dict[str, int] = {}
    while ends:
        now = min(ends)
        _, plan = cycle(state, ends.pop(now), now)
        for decision in plan.decisions:
            if isinstance(decision, Start):
                job = state.running[decision.job].job
                begun[decision.job] = now
                at = now + max(1, round((job.walltime or 0) * part))
                ends.setdefault(at, []).append(Ended(at=at, job=decision.job))
        yield state, begun


def outcome(
    jobs: list[Job], nodes: int, part: float = 1.0, after: int = 0
) -> tuple[Mapping[str, Forecast], dict[str, int]]:
    """What was foretold after so many passes, and when each job started."""
    told: Mapping[str, Forecast] = {}
    begun: dict[str, int] = {}
    for number, (state, starts) in enumerate(run(jobs, nodes, part)):
        if number == after:
            told = forecast(state)
        begun = starts
    return told, begun


def test_with_exact_walltimes_the_head_starts_when_it_was_foretold() -> None:
    heads: dict[str, int] = {}
    begun: dict[str, int] = {}
    for state, starts in run(many(60), 4):
        begun = starts
        if state.reserved and (job := state.reserved[0][1]) not in heads:
            told = forecast(state)[job]
            assert told.how == "reserved"
            assert told.start is not None
            heads[job] = told.start
    assert len(heads) > 10
    assert all(begun[job] == start for job, start in heads.items())


def test_those_behind_are_foretold_to_within_a_part_of_their_wait() -> None:
    told, begun = outcome(many(80, most=8), 3)
    planned = {job: one.start for job, one in told.items() if one.start is not None}
    assert len(planned) == len(told) > 60
    errors = [start - begun[job] for job, start in planned.items()]
    waits = [begun[job] for job in planned]
    assert mean(abs(error) for error in errors) < 0.15 * mean(waits)
    assert mean(errors) > -0.02 * mean(waits), "it errs to the late side"


def test_what_the_site_has_learned_makes_the_expected_start_nearer() -> None:
    told, begun = outcome(many(160, most=8), 3, part=0.5, after=45)
    errors = {"start": [], "expected": []}  # type: dict[str, list[int]]
    for job, one in told.items():
        assert one.start is not None
        assert one.expected is not None
        assert one.expected <= one.start
        errors["start"].append(abs(one.start - begun[job]))
        errors["expected"].append(abs(one.expected - begun[job]))
    assert len(told) > 50
    assert mean(errors["expected"]) < 0.4 * mean(errors["start"])


def test_nothing_of_the_state_is_changed() -> None:
    state, _ = next(run(many(60), 4))
    before = (
        [(entry.key, entry.could_since) for entry in state.queue.in_order()], state.bookings.start.tolist(),
        state.bookings.taken.tolist(), state.reserved, state.cluster.frees.tolist(), state.learned.queues.copy(),
    )  # fmt: skip
    first = forecast(state)
    assert before == (
        [(entry.key, entry.could_since) for entry in state.queue.in_order()], state.bookings.start.tolist(),
        state.bookings.taken.tolist(), state.reserved, state.cluster.frees.tolist(), state.learned.queues.copy(),
    )  # fmt: skip
    assert forecast(state) == first
    assert list(first) == [entry.job.id for entry in state.queue.in_order()]


def test_beyond_the_limit_it_is_a_division() -> None:
    jobs = [Job(id=f"j{number}", gpus=8, walltime=HOUR) for number in range(10)]
    state, _ = next(run(jobs, 2))
    told = forecast(state, limit=3)
    hows = [one.how for one in told.values()]
    assert hows == ["reserved"] * 3 + ["throughput"] * 5
    assert [one.start for one in told.values()][3:] == [round(HOUR * ahead / 2) for ahead in (5, 6, 7, 8, 9)]


def test_who_waits_for_others_is_told_when_these_have_ended() -> None:
    after = (Dependency(relation="afterok", name="b"),)
    word = (Dependency(relation="condition", name="model"),)
    jobs = [
        Job(id="a", gpus=8, walltime=HOUR), Job(id="b", gpus=8, walltime=2 * HOUR),
        Job(id="c", gpus=8, walltime=HOUR, after=after), Job(id="d", gpus=8, walltime=HOUR, after=word),
    ]  # fmt: skip
    state, _ = next(run(jobs, 1))
    told = forecast(state)
    assert told["b"] == Forecast(start=HOUR, expected=HOUR, how="reserved")
    assert told["c"] == Forecast(start=3 * HOUR, expected=3 * HOUR, how="parents")
    assert told["d"] == Forecast(start=None, expected=None, how="unknown")


def test_a_place_that_is_planned_for_a_job_that_waits_is_kept() -> None:
    after = (Dependency(relation="afterok", name="a"),)
    jobs = [Job(id="a", gpus=8, walltime=HOUR), Job(id="b", gpus=16, walltime=HOUR, after=after)]
    state, _ = next(run(jobs, 2))
    cycle(state, [NodeJoined(at=0, node="n1", gpus=8)], 0)  # a pass over all
    cycle(state, [Submitted(at=0, job=Job(id="z", gpus=8, walltime=30 * HOUR, tier="batch"))], 0)
    told = forecast(state)
    assert told["b"] == Forecast(start=HOUR, expected=HOUR, how="reserved")
    assert told["z"].start is not None
    assert told["z"].expected is not None
    assert min(told["z"].start, told["z"].expected) >= 2 * HOUR, "it would run into that place"


def test_a_full_queue_a_drained_node_and_a_job_without_end() -> None:
    jobs = [Job(id="a", gpus=8, walltime=HOUR, queue="small"), Job(id="b", gpus=8, walltime=HOUR, queue="small")]
    state, _ = next(run(jobs, 2, settings=Settings(queues={"small": Queue(gpus=8)})))
    assert forecast(state)["b"].start == HOUR, "a node is free, and the queue is full until then"
    state, _ = next(run([Job(id="a", gpus=8, tier="batch")], 1, settings=Settings(queues={"training": Queue()})))
    cycle(state, [Submitted(at=1, job=Job(id="b", gpus=8, walltime=HOUR))], 1)
    assert forecast(state)["b"] == Forecast(start=None, expected=None, how="unknown")
    state, _ = next(run(many(9, most=8), 1))
    cycle(state, [DrainAsked(at=1, id="d", node="n0", severity="confirmed", seen=1)], 1)
    assert {one.how for one in forecast(state).values()} == {"unknown"}


def ended(queue: str, walltime: int | None, ran: int, at: int, how: str = "completed") -> Record:
    record = Record(
        job="a", user="u", account="all", queue=queue, tier="training", gpus=1, submitted=0, walltime=walltime
    )
    record.begins(at - ran, 1, "node")
    record.ran(at, how, None)
    return record


def test_learning_starts_at_the_whole_walltime_and_forgets() -> None:
    learned = Learned()
    assert learned.ratio("q", 0) == 1.0
    for at in range(100, 1100, 100):
        learned.fold(ended("q", 100, 20, at))
    assert 0.25 < learned.ratio("q", 1000) < 0.3, "(10 x 0.2 + 1) / 11"
    assert learned.ratio("q", 1000 + 365 * 86400) > 0.99
    for at in range(1100, 5100, 100):
        learned.fold(ended("q", 100, 90, at))
    assert learned.ratio("q", 5000) > 0.7
    before = learned.ratio("q", 5000)
    learned.fold(ended("q", None, 1, 5000))
    learned.fold(ended("q", 100, 1, 5000, "preempted"))
    assert learned.ratio("q", 5000) == before
