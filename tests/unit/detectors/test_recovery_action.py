"""The driver's own word: a reset or a reboot drains when two looks agree."""

import pytest

from gpuguard.detectors.recovery_action import RecoveryAction, Settings
from gpuguard.model.findings import Finding
from gpuguard.model.ids import BootId
from gpuguard.model.units import Seconds
from tests.support.looks import Looks


def look() -> Looks:
    return Looks(RecoveryAction(Settings()))


def asked(looks: Looks, mono: float, number: float) -> Finding:
    return looks(mono, recovery_action=number)["recovery_action"]


@pytest.mark.parametrize(
    ("number", "severity", "remedy"),
    [
        (1, "critical", "reset"), (2, "critical", "reboot"), (3, "degraded", "none"), (4, "critical", "reset"),
        (5, "degraded", "none"), (6, "critical", "reset"), (7, "critical", "reboot"), (8, "degraded", "none"),
        (15, "degraded", "none"),
    ],
)  # fmt: skip
def test_every_number(number: int, severity: str, remedy: str) -> None:
    looks = look()
    finding = asked(looks, 1.0, number)
    assert (finding.stands, finding.severity, finding.remedy) == (True, severity, remedy)
    assert not finding.self_evident
    again = asked(looks, 100.0, number)
    assert again.self_evident is (severity == "critical")
    assert ("reset" in again.clears) is (remedy != "reboot")


def test_two_looks_must_be_some_time_apart() -> None:
    looks = look()
    assert [asked(looks, mono, 1).self_evident for mono in (1.0, 30.9, 31.0)] == [False, False, True]


def test_a_look_between_that_asks_for_nothing_begins_anew() -> None:
    looks = look()
    asked(looks, 1.0, 1)
    assert not asked(looks, 20.0, 0).stands
    assert not asked(looks, 40.0, 1).self_evident


def test_one_fatal_action_after_another_is_still_two_looks() -> None:
    looks = look()
    asked(looks, 1.0, 1)
    assert asked(looks, 31.0, 2).self_evident


def test_nothing_asked_after_a_sure_reset_proves_it_once() -> None:
    looks = look()
    asked(looks, 1.0, 4)
    asked(looks, 31.0, 4)
    assert asked(looks, 60.0, 0).proves == "reset"
    assert asked(looks, 65.0, 0).proves is None


@pytest.mark.parametrize("numbers", [(1,), (2, 2), (3, 3), (9, 9)])
def test_a_glitch_a_reboot_and_the_mild_ones_prove_no_reset(numbers: tuple[int, ...]) -> None:
    looks = look()
    for place, number in enumerate(numbers):
        asked(looks, 1.0 + 100.0 * place, number)
    assert asked(looks, 500.0, 0).proves is None


def test_after_a_reboot_the_driver_must_ask_again() -> None:
    looks = look()
    asked(looks, 1.0, 1)
    asked(looks, 50.0, 1)
    later = BootId("another")
    assert not looks(5.0, later, recovery_action=1)["recovery_action"].self_evident
    assert looks(8.0, later, recovery_action=0)["recovery_action"].proves is None


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2), -1, 1.5, float("inf"), True])
def test_what_is_not_known_is_not_judged_and_breaks_no_hold(bad: object) -> None:
    looks = look()
    asked(looks, 1.0, 1)
    assert looks(10.0, recovery_action=bad) == {}
    assert looks(11.0, gpu_up=1) == {}
    assert asked(looks, 31.0, 1).self_evident


def test_a_hold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="hold"):
        Settings(hold=Seconds(0.0))
