"""Driver and library of different versions, and NVML that refuses."""

from gpuguard.detectors import driver_mismatch
from gpuguard.model.readings import Value
from tests.support.watched import Watched

SUBJECT = "node"


def versions(driver: str, library: str) -> dict[str, Value]:
    return {"driver_version": driver, "driver_library_version": library}


def test_different_for_as_long_as_the_hold() -> None:
    node = Watched(driver_mismatch, SUBJECT, hold=600.0)
    assert node.standing(0.0, **versions("570.1", "570.2")) == []
    assert node.standing(600.0, **versions("570.1", "570.2")) == ["driver_library_mismatch"]
    assert node.standing(601.0, **versions("570.2", "570.2")) == []


def test_nvml_that_refuses_is_believed_at_once() -> None:
    node = Watched(driver_mismatch, SUBJECT)
    found = node.see(0.0, nvml_init_error=18)["driver_library_mismatch"]
    assert found.stands
    assert "NVML's library refuses the driver that is loaded" in found.reason
    assert node.standing(1.0, nvml_init_error=0) == []


def test_what_runs_says_nothing_of_what_starts() -> None:
    node = Watched(driver_mismatch, SUBJECT, hold=0.0)
    assert node.standing(0.0, nvml_init_error=0, **versions("570.1", "570.2")) == ["driver_library_mismatch"]


def test_nothing_is_said_of_what_is_not_known() -> None:
    node = Watched(driver_mismatch, SUBJECT, hold=0.0)
    assert node.see(0.0, driver_version="570.1") == {}
    assert node.see(1.0, driver_version=None, driver_library_version="570.1") == {}
    assert node.see(2.0, nvml_init_error=9) == {}
