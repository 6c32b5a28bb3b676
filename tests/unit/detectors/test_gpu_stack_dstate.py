"""Processes of the GPU stack that hang."""

from gpuguard.detectors import gpu_stack_dstate
from tests.support.watched import Watched

SUBJECT = "node"


def test_longer_than_the_limit() -> None:
    node = Watched(gpu_stack_dstate, SUBJECT, longest=240.0)
    assert node.standing(0.0, gpu_stack_dstate_oldest_seconds=239.0) == []
    found = node.see(1.0, gpu_stack_dstate_oldest_seconds=240.0, gpu_stack_dstate_names="nvidia-smi(7) 240 s")
    assert found["gpu_stack_dstate"].stands
    assert found["gpu_stack_dstate"].reason == "hangs in the kernel: nvidia-smi(7) 240 s"
    assert node.standing(2.0, gpu_stack_dstate_oldest_seconds=0.0) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert Watched(gpu_stack_dstate, SUBJECT).see(0.0, gpu_stack_dstate_oldest_seconds=None) == {}
    assert Watched(gpu_stack_dstate, SUBJECT).see(0.0, dstate_processes=100) == {}
