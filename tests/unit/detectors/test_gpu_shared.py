"""Two jobs on one card."""

from gpuguard.detectors import gpu_shared
from tests.support.watched import Watched

GPU = "gpu:0000:4e:00.0"


def test_two_jobs_for_two_minutes_are_told() -> None:
    gpu = Watched(gpu_shared, GPU)
    two = {"gpu_jobs": 2, "gpu_job": "slurm/1,slurm/2", "mig_mode": 0, "gpu_mps": 0}
    assert gpu.standing(0.0, **two) == []
    assert gpu.standing(119.0, **two) == []
    found = gpu.see(120.0, **two)["gpu_shared"]
    assert (found.stands, found.severity, found.blame) == (True, "info", "configuration")
    assert found.reason == "2 jobs share it without MIG or MPS and slow each other: slurm/1 slurm/2"
    assert gpu.standing(121.0, gpu_jobs=1, gpu_job="slurm/1") == []


def test_where_sharing_is_meant_nothing_stands() -> None:
    gpu = Watched(gpu_shared, GPU, hold=0.0)
    assert gpu.standing(0.0, gpu_jobs=7, mig_mode=1) == []
    assert gpu.standing(1.0, gpu_jobs=4, mig_mode=0, gpu_mps=1) == []


def test_a_site_may_have_it_a_warning() -> None:
    found = Watched(gpu_shared, GPU, hold=0.0, warn=True).see(0.0, gpu_jobs=2)["gpu_shared"]
    assert (found.stands, found.severity, found.advice) == (True, "degraded", "watch")


def test_of_what_is_not_known_nothing_is_said() -> None:
    assert Watched(gpu_shared, GPU).see(0.0) == {}
    assert Watched(gpu_shared, GPU).see(0.0, gpu_jobs=None, gpu_job="slurm/1,slurm/2") == {}
