"""Some ranks are gone and others wait."""

from gpuguard.detectors import job_half_dead
from tests.support.watched import Watched

JOB = "job:slurm/8123"


def test_some_gone_for_a_minute_is_a_warning_that_names_them() -> None:
    job = Watched(job_half_dead, JOB)
    assert job.standing(0.0, job_ranks=8, job_ranks_gone=2, job_gone_ranks="3 5") == []
    assert job.standing(59.0, job_ranks=8, job_ranks_gone=2, job_gone_ranks="3 5") == []
    found = job.see(60.0, job_ranks=8, job_ranks_gone=2, job_gone_ranks="3 5")["job_half_dead"]
    assert (found.stands, found.severity) == (True, "degraded")
    assert "2 of its 8 ranks here (3 5)" in found.reason


def test_none_or_all_gone_is_no_half() -> None:
    job = Watched(job_half_dead, JOB)
    for mono, gone in ((0.0, 1), (50.0, 8), (70.0, 8), (200.0, 0)):
        assert job.standing(mono, job_ranks=8, job_ranks_gone=gone) == []
    assert job.standing(300.0, job_ranks=0, job_ranks_gone=0) == []


def test_when_the_job_is_over_it_stands_no_longer() -> None:
    job = Watched(job_half_dead, JOB, hold=0.0)
    assert job.standing(0.0, job_ranks=8, job_ranks_gone=2) == ["job_half_dead"]
    assert job.standing(1.0, job_ranks=8, job_ranks_gone=2, job_ended=1) == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    job = Watched(job_half_dead, JOB, hold=0.0)
    for values in ({}, {"job_ranks": None, "job_ranks_gone": 2}, {"job_ranks_gone": 2}, {"job_ranks": 8}):
        assert job.see(0.0, **values) == {}


def test_where_the_others_get_on_nothing_is_said() -> None:
    job = Watched(job_half_dead, JOB, hold=0.0)
    assert job.standing(0.0, job_ranks=8, job_ranks_gone=2, job_verdict="") == []
    assert job.standing(1.0, job_ranks=8, job_ranks_gone=2, job_verdict="hung") == ["job_half_dead"]
    assert job.standing(2.0, job_ranks=8, job_ranks_gone=2, job_verdict="paused") == []
