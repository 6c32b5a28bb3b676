"""GPUs that are held and rest."""

import pytest

from gpuguard.detectors import job_low_activity
from tests.support.watched import Watched


def watched(job: str = "job:slurm/8123", **settings: float) -> Watched:
    return Watched(job_low_activity, job, **settings)


def test_half_an_hour_below_a_fifth_is_advice() -> None:
    job = watched()
    idle = {"job_gpus_held": 8, "job_gpu_activity_ratio": 0.19, "job_name": "finetune"}
    assert job.standing(0.0, **idle) == []
    assert job.standing(1799.0, **idle) == []
    found = job.see(1800.0, **idle)["job_low_activity"]
    assert (found.stands, found.severity, found.advice, found.remedy) == (True, "info", "none", "none")
    assert found.reason.startswith("active 19% of the time on 8 GPUs, for 30 min; see whether it waits for data")
    assert job.standing(1801.0, job_gpus_held=8, job_gpu_activity_ratio=0.2) == []


def test_a_moment_of_work_begins_the_half_hour_anew() -> None:
    job = watched()
    for mono, ratio in ((0.0, 0.1), (1700.0, 0.5), (1800.0, 0.1), (3500.0, 0.1)):
        assert job.standing(mono, job_gpus_held=1, job_gpu_activity_ratio=ratio) == []


@pytest.mark.parametrize(
    "name", ["bash", "sh", "interactive", "interactive-ana", "jupyter-lab", "sys/dashboard/sys/vscode"]
)
def test_a_person_who_types_is_no_waste(name: str) -> None:
    job = watched(limit=0.0)
    assert job.standing(0.0, job_gpus_held=1, job_gpu_activity_ratio=0.0, job_name=name) == []


@pytest.mark.parametrize("name", ["shard_data", "bashful", "train-interactive", ""])
def test_a_name_that_only_sounds_like_it_is_none(name: str) -> None:
    job = watched(limit=0.0)
    assert job.standing(0.0, job_gpus_held=1, job_gpu_activity_ratio=0.0, job_name=name) == ["job_low_activity"]


@pytest.mark.parametrize("job", ["job:docker/0123456789ab", "job:systemd/vllm.service", "job:claimed/1000-x"])
def test_what_no_scheduler_started_keeps_nobody_waiting(job: str) -> None:
    assert watched(job, limit=0.0).see(0.0, job_gpus_held=1, job_gpu_activity_ratio=0.0) == {}


def test_without_a_gpu_or_after_its_end_nothing_rests() -> None:
    job = watched(limit=0.0)
    assert job.standing(0.0, job_gpus_held=0, job_gpu_activity_ratio=0.0) == []
    job.see(1.0, job_gpus_held=1, job_gpu_activity_ratio=0.0)
    assert job.standing(2.0, job_gpus_held=1, job_gpu_activity_ratio=0.0, job_ended=1) == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    for values in ({}, {"job_gpus_held": 1}, {"job_gpus_held": 1, "job_gpu_activity_ratio": None},
                   {"job_gpu_activity_ratio": 0.0}):  # fmt: skip
        assert watched(limit=0.0).see(0.0, **values) == {}


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="ratio"):
        watched(ratio=0.0)


def test_what_is_stopped_is_not_idle() -> None:
    job = Watched(job_low_activity, "job:slurm/8123", limit=0.0)
    assert job.standing(0.0, job_gpus_held=8, job_gpu_activity_ratio=0.0, job_verdict="paused") == []
    assert job.standing(1.0, job_gpus_held=8, job_gpu_activity_ratio=0.0, job_verdict="") == ["job_low_activity"]


def test_before_the_first_step_another_remedy_is_named() -> None:
    job = Watched(job_low_activity, "job:slurm/8123", limit=0.0)
    found = job.see(0.0, job_gpus_held=8, job_gpu_activity_ratio=0.0, job_phase="start")["job_low_activity"]
    assert "needs no GPU" in found.reason
