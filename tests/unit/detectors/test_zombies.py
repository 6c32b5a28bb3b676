"""Dead processes of the GPU stack."""

from gpuguard.detectors import zombies
from tests.support.watched import Watched

SUBJECT = "node"


def test_few_are_told_and_many_are_a_warning() -> None:
    node = Watched(zombies, SUBJECT, longest=600.0, many=10)
    assert node.standing(0.0, gpu_stack_zombies=9, gpu_stack_zombies_oldest_seconds=599.0) == []
    few = node.see(1.0, gpu_stack_zombies=9, gpu_stack_zombies_oldest_seconds=600.0)["gpu_stack_zombies"]
    assert (few.stands, few.severity, few.advice) == (True, "info", "none")
    many = node.see(2.0, gpu_stack_zombies=10, gpu_stack_zombies_oldest_seconds=600.0, gpu_stack_zombie_names="a(1)")
    assert (many["gpu_stack_zombies"].severity, many["gpu_stack_zombies"].advice) == ("degraded", "watch")
    assert many["gpu_stack_zombies"].reason == "10 dead and not gone: a(1)"
    assert node.standing(3.0, gpu_stack_zombies=0, gpu_stack_zombies_oldest_seconds=0.0) == []


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert Watched(zombies, SUBJECT).see(0.0, gpu_stack_zombies=None, gpu_stack_zombies_oldest_seconds=None) == {}
    assert Watched(zombies, SUBJECT).see(0.0, gpu_stack_zombies=5000) == {}
