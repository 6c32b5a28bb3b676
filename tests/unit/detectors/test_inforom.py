"""A damaged InfoROM asks for a test."""

import pytest

from gpuguard.detectors.inforom import Inforom
from tests.support.looks import Looks


def look() -> Looks:
    return Looks(Inforom())


def test_the_flag_is_told_each_time() -> None:
    looks = look()
    told = [looks.stands(mono, inforom_valid=flag)["inforom_damaged"] for mono, flag in ((1.0, 1), (2.0, 0), (3.0, 1))]
    assert told == [False, True, False]


def test_how_grave_it_is() -> None:
    finding = look()(1.0, inforom_valid=0)["inforom_damaged"]
    assert (finding.severity, finding.advice, finding.remedy) == ("degraded", "test", "test")
    assert (finding.latched, finding.clears) == (False, ("replace", "ack"))
    assert not finding.self_evident


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2)])
def test_what_is_not_known_is_not_judged(bad: object) -> None:
    assert look()(1.0, inforom_valid=bad) == {}
    assert look()(1.0) == {}
