"""GPUs that are used past the scheduler."""

from gpuguard.detectors import gpu_bypass
from tests.support.watched import Watched

GPU = "gpu:0000:4e:00.0"


def test_a_stranger_for_two_minutes_is_a_warning_that_names_him() -> None:
    gpu = Watched(gpu_bypass, GPU)
    strange = {"gpu_unowned_processes": 1, "gpu_strangers": "4711 (python3) of uid 1000, of no job"}
    assert gpu.standing(0.0, **strange) == []
    assert gpu.standing(119.0, **strange) == []
    found = gpu.see(120.0, **strange)["gpu_bypass"]
    assert (found.stands, found.severity, found.blame) == (True, "degraded", "configuration")
    assert "by 1 process: 4711 (python3) of uid 1000, of no job;" in found.reason
    assert gpu.standing(121.0, gpu_unowned_processes=0, gpu_strangers="") == []


def test_a_job_the_scheduler_tells_of_late_is_none() -> None:
    gpu = Watched(gpu_bypass, GPU)
    for mono, count in ((0.0, 4), (90.0, 0), (120.0, 0), (200.0, 1)):
        assert gpu.standing(mono, gpu_unowned_processes=count) == []


def test_without_a_scheduler_or_an_answer_nothing_is_said() -> None:
    gpu = Watched(gpu_bypass, GPU, hold=0.0)
    assert gpu.see(0.0, gpu_jobs=0) == {}
    assert gpu.see(1.0, gpu_unowned_processes=None, gpu_strangers=None) == {}


def test_names_cannot_break_the_line() -> None:
    gpu = Watched(gpu_bypass, GPU, hold=0.0)
    reason = gpu.see(0.0, gpu_unowned_processes=9, gpu_strangers="\x07\n" * 4000)["gpu_bypass"].reason
    assert reason.isprintable()
    assert len(reason) < 600
