"""Rates of corrected errors, over an hour and in a storm."""

import pytest

from gpuguard.detectors.ecc_corrected_rate import EccCorrectedRate, Settings
from tests.support.looks import Looks

OFTEN, STORM = "ecc_corrected_rate", "ecc_corrected_storm"


def look() -> Looks:
    return Looks(EccCorrectedRate(Settings()))


def test_the_limit_of_an_hour_is_reached_exactly() -> None:
    looks = look()
    looks(0.0, ecc_corrected_volatile=1000)
    assert looks.stands(60.0, ecc_corrected_volatile=30_999) == {OFTEN: False, STORM: False}
    assert looks.stands(120.0, ecc_corrected_volatile=31_000) == {OFTEN: True, STORM: False}


def test_growth_of_more_than_an_hour_ago_is_forgotten() -> None:
    looks = look()
    looks(0.0, ecc_corrected_volatile=0)
    assert looks.stands(60.0, ecc_corrected_volatile=40_000)[OFTEN]
    assert looks.stands(3660.0, ecc_corrected_volatile=40_000)[OFTEN]
    assert not looks.stands(3661.0, ecc_corrected_volatile=40_000)[OFTEN]


@pytest.mark.parametrize("per_second", [4_647, 17_657])
def test_the_storms_of_the_field_report_are_told_within_ten_minutes(per_second: int) -> None:
    looks = look()
    told = [looks.stands(mono, ecc_corrected_volatile=per_second * mono)[STORM] for mono in range(0, 601, 60)]
    assert not told[0]
    assert told[-1]
    finding = looks(660, ecc_corrected_volatile=per_second * 660)[STORM]
    assert (finding.severity, finding.advice, finding.remedy) == ("degraded", "test", "test")


def test_the_limit_of_a_storm_is_reached_exactly() -> None:
    looks = look()
    looks(0.0, ecc_corrected_volatile=0)
    assert not looks.stands(60.0, ecc_corrected_volatile=599_999)[STORM]
    assert looks.stands(61.0, ecc_corrected_volatile=600_000)[STORM]
    assert not looks.stands(662.0, ecc_corrected_volatile=600_000)[STORM]


def test_a_slow_trickle_is_no_storm() -> None:
    looks = look()
    for mono in range(0, 7200, 60):
        assert looks.stands(mono, ecc_corrected_volatile=5 * mono) == {OFTEN: False, STORM: False}


def test_a_reset_is_no_growth() -> None:
    looks = look()
    looks(0.0, ecc_corrected_volatile=0)
    assert looks.stands(60.0, ecc_corrected_volatile=29_000) == {OFTEN: False, STORM: False}
    assert looks.stands(120.0, ecc_corrected_volatile=10) == {OFTEN: False, STORM: False}


def test_counters_of_two_kinds_are_not_mixed() -> None:
    looks = look()
    looks(0.0, ecc_corrected_volatile=0)
    assert looks.stands(60.0, ecc_corrected_aggregate=5_000_000) == {OFTEN: False, STORM: False}


@pytest.mark.parametrize("values", [{}, {"ecc_corrected_volatile": None, "ecc_corrected_aggregate": 10**9}])
def test_what_is_not_known_is_not_judged(values: dict[str, object]) -> None:
    looks = look()
    assert looks.stands(0.0, **values) == {}
    assert looks.stands(60.0, **values) == {}


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="per_hour"):
        Settings(per_hour=0.0)
