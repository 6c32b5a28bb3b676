"""Fewer GPUs than the profile says, after a hold; never from yesterday."""

from gpuguard.detectors.gpu_count import GpuCount, Settings
from gpuguard.model.ids import BootId
from tests.support.looks import Looks


def look() -> Looks:
    return Looks(GpuCount(Settings()))


def test_what_is_missing_is_told_after_the_hold() -> None:
    looks = look()
    short = {"gpus_expected": 8, "gpus_visible": 7, "gpus_on_bus": 8}
    assert [looks.stands(mono, **short)["gpu_count"] for mono in (10.0, 129.9, 130.0)] == [False, False, True]
    assert looks.stands(131.0, gpus_expected=8, gpus_visible=8, gpus_on_bus=8) == {"gpu_count": False}


def test_a_reload_within_the_hold_begins_the_hold_anew() -> None:
    looks = look()
    for mono, visible in ((10.0, 0), (100.0, 8), (110.0, 7), (229.0, 7)):
        assert looks.stands(mono, gpus_expected=8, gpus_visible=visible) == {"gpu_count": False}


def test_a_reboot_begins_the_hold_anew() -> None:
    looks = look()
    looks(10.0, gpus_expected=8, gpus_visible=7)
    assert not looks(5.0, BootId("another"), gpus_expected=8, gpus_visible=0)["gpu_count"].stands


def test_without_an_expectation_nothing_is_missing() -> None:
    looks = look()
    for mono in (1.0, 500.0):
        assert looks.stands(mono, gpus_visible=0, gpus_on_bus=0) == {}
        assert looks.stands(mono, gpus_expected=None, gpus_visible=0) == {}


def test_a_full_bus_says_nothing_of_what_the_driver_sees() -> None:
    looks = look()
    looks(1.0, gpus_expected=8, gpus_visible=7, gpus_on_bus=8)
    assert looks.stands(500.0, gpus_expected=8, gpus_visible=None, gpus_on_bus=8) == {}
    assert looks.stands(501.0, gpus_expected=8, gpus_visible=None, gpus_on_bus=7) == {"gpu_count": True}


def test_it_drains_nothing() -> None:
    finding = look()(1.0, gpus_expected=8, gpus_visible=7)["gpu_count"]
    assert (finding.severity, finding.advice, finding.self_evident) == ("degraded", "watch", False)
