"""MIG is held to what the site wants, and a change that waits is told."""

from typing import Literal

import pytest

from gpuguard.detectors.mig_drift import MigDrift, Settings
from tests.support.looks import Looks


def look(expected: Literal["on", "off", "any"]) -> Looks:
    return Looks(MigDrift(Settings(expected=expected)))


@pytest.mark.parametrize(
    ("mode", "expected", "stands"), [(1, "on", False), (0, "on", True), (1, "off", True), (0, "off", False)]
)
def test_it_is_held_to_what_the_site_wants(mode: int, expected: Literal["on", "off"], stands: bool) -> None:
    assert look(expected).stands(1.0, mig_mode=mode) == {"mig_mode": stands}
    finding = look(expected)(1.0, mig_mode=mode)["mig_mode"]
    assert (finding.severity, finding.blame) == ("degraded", "configuration")


def test_where_nothing_is_expected_only_a_change_that_waits_is_told() -> None:
    looks = look("any")
    assert [looks.stands(mono, mig_mode=mode, mig_mode_pending=1) for mono, mode in ((1.0, 1), (2.0, 0))] == [
        {"mig_mode_pending": False}, {"mig_mode_pending": True},
    ]  # fmt: skip
    assert looks(3.0, mig_mode=1, mig_mode_pending=0)["mig_mode_pending"].severity == "info"


def test_the_default() -> None:
    assert Settings().expected == "any"


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2)])
def test_what_is_not_known_is_not_judged(bad: object) -> None:
    assert look("on")(1.0, mig_mode=bad, mig_mode_pending=1) == {}
    assert look("on")(1.0, mig_mode_pending=0) == {}
    assert look("any")(1.0, mig_mode=0, mig_mode_pending=bad) == {}
