"""Sessions with a limit and without."""

import pytest

from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.course import JobRecord
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.models.sessions import Sessions, Settings
from tests.support.worlds import nodes, ran, traced


def run(settings: Settings) -> tuple[Engine, list[JobRecord]]:
    jobs = [traced("a", 1, 60), traced("b", 1, 60, at=4 * DAY)]
    engine = ran(jobs, [Sessions(settings, 2)], nodes(8))
    return engine, [job for job in engine.course.jobs if job.id.startswith("session-")]


def test_without_a_limit_they_last_as_long_as_they_like() -> None:
    _, sessions = run(Settings(per_day=3.0, cap=0))
    assert len(sessions) >= 4
    for job in sessions:
        (segment,) = job.segments
        assert DAY <= segment.end - segment.start <= 3 * DAY
        assert (job.outcome, job.use, job.gpus in {1, 2, 4, 8}) == ("completed", 0.1, True)


def test_with_one_they_end_after_an_hour_and_come_back() -> None:
    _, sessions = run(Settings(per_day=3.0, returns=2, gap=600.0))
    first = [job for job in sessions if "." not in job.id]
    assert {job.id for job in sessions} >= {f"{job.id}.1" for job in first if job.submit < 3 * DAY}
    assert not any(job.id.endswith(".3") for job in sessions)
    for job in sessions:
        (segment,) = job.segments
        # A kill is seen to be done after 10 s.
        assert (segment.end - segment.start, job.outcome) == (HOUR + 10, "timeout")


def test_the_same_people_come_under_either_rule() -> None:
    _, free = run(Settings(per_day=3.0, cap=0))
    _, capped = run(Settings(per_day=3.0))
    assert [(job.id, job.submit, job.gpus) for job in free] == [
        (job.id, job.submit, job.gpus) for job in capped if "." not in job.id
    ]


@pytest.mark.parametrize("most", [1, 5])
def test_no_more_gpus_than_said(most: int) -> None:
    _, sessions = run(Settings(per_day=5.0, most=most))
    assert max(job.gpus for job in sessions) <= most
