"""A call that hangs is a finding at once, and names itself."""

import pytest

from gpuguard.detectors.nvml_unresponsive import NvmlUnresponsive, Settings
from tests.support.looks import Looks


def look() -> Looks:
    return Looks(NvmlUnresponsive(Settings()))


def test_it_stands_as_soon_as_a_call_hangs_and_until_the_library_answers() -> None:
    looks = look()
    assert looks.stands(1.0, nvml_hung=0) == {"nvml_unresponsive": False}
    assert looks.stands(2.0, nvml_hung=1) == {"nvml_unresponsive": True}
    assert looks.stands(3.0, nvml_hung=0) == {"nvml_unresponsive": False}


def test_it_names_the_call_and_the_time() -> None:
    finding = look()(1.0, nvml_hung=1, nvml_hung_call="nvmlInit", nvml_hung_for_seconds=7.6)["nvml_unresponsive"]
    assert finding.reason.endswith("nvmlInit hangs for 8 s")
    bare = look()(1.0, nvml_hung=1, nvml_hung_call=None, nvml_hung_for_seconds=None)["nvml_unresponsive"]
    assert bare.reason.endswith(": a call hangs")


def test_it_drains_nothing_and_accuses_the_driver() -> None:
    finding = look()(1.0, nvml_hung=1)["nvml_unresponsive"]
    assert (finding.severity, finding.advice, finding.remedy, finding.blame) == (
        "degraded",
        "watch",
        "reboot",
        "driver",
    )
    assert not finding.silent


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2)])
def test_what_is_not_known_is_not_judged(bad: object) -> None:
    assert look()(1.0, nvml_hung=bad) == {}
    assert look()(1.0, nvml_hung_call="nvmlInit") == {}


def test_who_asks_and_fails_for_half_a_minute_is_told_and_once_is_not() -> None:
    looks = look()
    assert looks.stands(1.0, nvml_failing=1) == {"nvml_blind": False}
    assert looks.stands(2.0, nvml_failing=0) == {"nvml_blind": False}
    for second, stands in ((10.0, False), (25.0, False), (41.0, True), (100.0, True)):
        assert looks.stands(second, nvml_failing=1) == {"nvml_blind": stands}
    assert looks(101.0, nvml_failing=1, nvml_failure="ended by SIGSEGV")["nvml_blind"].reason.endswith("by SIGSEGV")
    assert looks(102.0, nvml_failing=1)["nvml_blind"].advice == "watch"
    assert looks.stands(103.0, nvml_failing=0) == {"nvml_blind": False}
    assert looks.stands(104.0, nvml_failing=None) == {}
