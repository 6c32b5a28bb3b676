"""The life-cycle of a job, as the core stamps it."""

import pytest

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import (
    AnyEvent,
    Cancelled,
    Checkpointed,
    ConditionMet,
    Ended,
    NodeJoined,
    NodeLost,
    Prepared,
    Progressed,
    Submitted,
)
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE, Dependency, Job
from gpuguard.scheduler.state import State


def told(state: State, now: int, *events: AnyEvent) -> None:
    cycle(state, events, now)


def begun(job: Job, nodes: int = 1) -> State:
    state = State()
    told(state, 0, *(NodeJoined(at=0, node=f"n{number}", gpus=8) for number in range(nodes)))
    told(state, 10, Submitted(at=10, job=job))
    return state


def test_a_run_from_submit_to_end() -> None:
    state = begun(Job(id="a", gpus=4, walltime=1000, after=(Dependency(relation="condition", name="model"),)))
    told(state, 20, ConditionMet(at=20, name="model"))
    told(state, 25, Prepared(at=25, job="a"))
    told(state, 30, Progressed(at=30, job="a"))
    told(state, 31, Progressed(at=31, job="a"))
    told(state, 130, Ended(at=130, job="a"))
    (record,) = state.ended
    stamps = (record.submitted, record.eligible, record.allocated, record.started, record.progressed, record.ended)
    assert stamps == (10, 20, 20, 25, 30, 130)
    assert (record.outcome, record.walltime, record.wait) == ("completed", 1000, 10)
    assert (record.idle, record.used) == (10 * 4 * WHOLE, 100 * 4 * WHOLE)
    assert record.apart == {"node": 100 * 4 * WHOLE}


def test_each_run_has_its_own_stamps() -> None:
    state = begun(Job(id="a", gpus=8, walltime=1000, checkpoints=True), nodes=2)
    told(state, 20, Prepared(at=20, job="a"), Progressed(at=40, job="a"))
    told(state, 60, Checkpointed(at=60, job="a"))
    told(state, 100, NodeLost(at=100, node="n0"))
    told(state, 105, Prepared(at=90, job="a"))  # of the run before: it says nothing of this one
    told(state, 110, Prepared(at=110, job="a"))
    told(state, 200, Ended(at=200, job="a"))
    (record,) = state.ended
    first, second = record.stretches
    assert (first.allocated, first.prepared, first.progressed, first.until, first.how) == (10, 20, 40, 100, "lost")
    assert (second.allocated, second.prepared, second.progressed, second.until) == (100, 110, None, 200)
    assert (record.prepared, record.progressed) == (20, 40), "the record's own are of the first run"
    gpus = 8 * WHOLE
    assert (record.idle, record.used, record.lost_failure) == ((30 + 10) * gpus, (20 + 90) * gpus, 40 * gpus)


@pytest.mark.parametrize(
    ("how", "saved", "used", "failure", "preemption"),
    [
        ("completed", None, 90, 0, 0), ("timeout", None, 90, 0, 0), ("cancelled", 50, 90, 0, 0),
        ("failed", None, 0, 90, 0), ("failed", 50, 40, 50, 0), ("lost", 5, 0, 90, 0), ("hung", 200, 90, 0, 0),
        ("preempted", 60, 50, 0, 40),
    ],
)  # fmt: skip
def test_every_second_is_counted_once(how: str, saved: int | None, used: int, failure: int, preemption: int) -> None:
    record = Record(job="a", user="u", account="all", queue="training", tier="training", gpus=1, submitted=0)
    record.begins(0, 1, "rack")
    record.progresses(10)
    record.ran(100, how, saved)
    assert (record.used, record.lost_failure, record.lost_preemption) == (used, failure, preemption)
    assert record.idle + used + failure + preemption == 100
    assert record.yielded == ((100,) if how == "preempted" else ())
    record.ran(200, how, saved)
    assert record.used == used, "what is over does not end again"


def test_progress_told_after_the_end_of_its_run_leaves_no_negative_time() -> None:
    record = Record(job="a", user="u", account="all", queue="training", tier="training", gpus=1, submitted=0)
    record.begins(0, 1, "node")
    record.progresses(120)
    record.ran(100, "completed", None)
    assert (record.idle, record.used) == (100, 0)


def test_a_job_that_never_ran() -> None:
    state = begun(Job(id="a", gpus=1, walltime=60, after=(Dependency(relation="condition", name="model"),)))
    told(state, 30, Cancelled(at=30, job="a"))
    (record,) = state.ended
    assert (record.eligible, record.allocated, record.started, record.wait) == (None, None, None, None)
    assert (record.ended, record.outcome, record.stretches) == (30, "cancelled", [])
