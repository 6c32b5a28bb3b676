"""A loss that is no number, or stands still."""

import pytest

from gpuguard.detectors import job_loss
from tests.support.watched import Watched

JOB = "job:slurm/8123"


def test_it_must_stay_no_number() -> None:
    job = Watched(job_loss, JOB)
    assert job.standing(0.0, job_loss_nan=1) == []
    assert job.standing(59.0, job_loss_nan=1) == []
    found = job.see(60.0, job_loss_nan=1)["job_loss_nan"]
    assert (found.stands, found.severity) == (True, "degraded")
    assert job.standing(61.0, job_loss_nan=0) == []
    assert job.standing(62.0, job_loss_nan=8) == []


def test_a_still_loss_is_told_and_later_a_warning() -> None:
    job = Watched(job_loss, JOB)
    assert job.standing(0.0, job_loss_flat_steps=199) == []
    assert job.see(1.0, job_loss_flat_steps=200)["job_loss_flat"].severity == "info"
    assert job.see(2.0, job_loss_flat_steps=1000)["job_loss_flat"].severity == "degraded"
    assert job.standing(3.0, job_loss_flat_steps=0) == []


def test_a_job_that_is_over_has_no_loss() -> None:
    job = Watched(job_loss, JOB)
    job.see(0.0, job_loss_nan=1)
    assert job.standing(60.0, job_loss_nan=1, job_loss_flat_steps=5000, job_ended=1) == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    assert Watched(job_loss, JOB).see(0.0) == {}
    assert Watched(job_loss, JOB).see(0.0, job_loss_nan=None, job_loss_flat_steps=None) == {}
    assert list(Watched(job_loss, JOB).see(0.0, job_loss_nan=None, job_loss_flat_steps=9)) == ["job_loss_flat"]


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="flat_steps"):
        Watched(job_loss, JOB, flat_steps=500, frozen_steps=400)


def test_a_loss_of_exactly_nothing_is_no_warning() -> None:
    found = Watched(job_loss, JOB).see(0.0, job_loss_flat_steps=5000, job_loss=0.0)["job_loss_flat"]
    assert (found.stands, found.severity) == (True, "info")
    assert "rewards" in found.reason
