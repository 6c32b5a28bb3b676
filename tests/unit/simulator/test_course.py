"""What a run writes down."""

from gpuguard.simulator.course import Course, JobRecord
from tests.support.courses import share, small


def test_a_job_that_was_preempted_has_not_ended() -> None:
    job = JobRecord(id="a", gpus=1, submit=0)
    job.ran(5, 10, share("n", 1), "preempted")
    assert (job.first_start, job.end) == (5, None)
    job.ran(20, 30, share("n", 1))
    assert (job.first_start, job.end) == (5, 30)


def test_records_do_not_share_their_lists() -> None:
    JobRecord(id="a", gpus=1, submit=0).ran(0, 1, ())
    assert JobRecord(id="b", gpus=1, submit=0).segments == []
    assert Course(policy="a", nodes=(), start=0, end=1).jobs == []


def test_what_was_held_is_what_the_shares_say() -> None:
    assert [gpus for _, _, gpus in small().held()] == [8.0, 8.0, 0.5, 0.0]
    job = JobRecord(id="a", gpus=4, submit=0)
    job.ran(0, 1, share("n", 0b11))  # started again on fewer
    job.ran(1, 2, ())  # shares were not kept
    course = Course(policy="a", nodes=(("n", 4),), start=0, end=1)
    course.jobs.append(job)
    assert [gpus for _, _, gpus in course.held()] == [2.0, 4.0]


def test_capacity_and_the_last_end() -> None:
    assert (small().capacity, small().last) == (10, 160)
    assert Course(policy="a", nodes=(), start=0, end=7).last == 7
