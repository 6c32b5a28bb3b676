"""More GPUs or bigger cards than a job uses."""

import pytest

from gpuguard.detectors import job_oversized
from tests.support.watched import Watched

JOB = "job:slurm/8123"
GIB = 2**30


def test_gpus_that_do_nothing_for_an_hour_are_told_to_the_owner() -> None:
    job = Watched(job_oversized, JOB)
    held = {"job_gpus_asked": 8, "job_gpus_held": 3, "job_gpus_working": 3}
    assert job.standing(0.0, **held, job_seen_seconds=5000.0) == []
    assert job.standing(3599.0, **held, job_seen_seconds=8599.0) == []
    found = job.see(3600.0, **held, job_seen_seconds=8600.0)["job_oversized_gpus"]
    assert (found.stands, found.severity, found.blame, found.advice) == (True, "info", "program", "none")
    assert "8 GPUs here and works on 3" in found.reason
    assert job.standing(3700.0, job_gpus_asked=8, job_gpus_working=8, job_seen_seconds=8700.0) == []


def test_without_a_scheduler_it_is_what_it_holds() -> None:
    job = Watched(job_oversized, JOB, window=0.0)
    assert job.standing(0.0, job_gpus_held=4, job_gpus_working=1, job_seen_seconds=1.0) == ["job_oversized_gpus"]


@pytest.mark.parametrize("working", [0, 8])
def test_a_job_that_works_on_all_or_none_is_not_meant(working: int) -> None:
    job = Watched(job_oversized, JOB, window=0.0)
    assert job.standing(0.0, job_gpus_asked=8, job_gpus_working=working, job_seen_seconds=1.0) == []


def test_a_corner_of_a_big_card() -> None:
    job = Watched(job_oversized, JOB)
    used = {"job_gpus_held": 1, "job_gpus_working": 1, "job_gpu_memory_peak_ratio": 0.25}
    assert job.standing(0.0, **used, job_gpu_memory_peak_bytes=20 * GIB, job_seen_seconds=3599.0) == []
    found = job.see(1.0, **used, job_gpu_memory_peak_bytes=20 * GIB, job_seen_seconds=3600.0)["job_oversized_memory"]
    assert found.stands
    assert "20.0 GiB of a card of 80.0 GiB" in found.reason
    assert job.standing(2.0, **used, job_gpu_memory_peak_bytes=4 * GIB, job_seen_seconds=3601.0) == []
    assert job.standing(
        3.0, job_gpus_held=1, job_gpus_working=1, job_gpu_memory_peak_ratio=0.3, job_gpu_memory_peak_bytes=24 * GIB,
        job_seen_seconds=3602.0,
    ) == []  # fmt: skip


def test_a_job_that_is_over_need_not_be_smaller() -> None:
    job = Watched(job_oversized, JOB, window=0.0)
    job.see(0.0, job_gpus_asked=8, job_gpus_working=1, job_seen_seconds=1.0)
    assert set(job.see(1.0, job_ended=1)) == {"job_oversized_gpus", "job_oversized_memory"}
    assert job.standing(2.0, job_ended=1) == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    job = Watched(job_oversized, JOB, window=0.0)
    assert job.see(0.0, job_gpus_asked=8, job_gpus_working=None, job_seen_seconds=9.0) == {}
    assert job.see(0.0, job_gpus_asked=8, job_gpus_working=3) == {}
    assert job.see(0.0, job_gpus_working=3, job_seen_seconds=9.0, job_gpu_memory_peak_ratio=0.1) == {}
    assert job.see(0.0, job_gpus_working=3, job_seen_seconds=9.0, job_gpu_memory_peak_ratio=0.0,
                   job_gpu_memory_peak_bytes=0) == {}  # fmt: skip


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_ratio"):
        Watched(job_oversized, JOB, memory_ratio=1.0)
