"""Persistence mode that stays off is a matter of configuration."""

import pytest

from gpuguard.detectors.persistence_mode import PersistenceMode, Settings
from gpuguard.model.units import Seconds
from tests.support.looks import Looks

OFF = "persistence_off"


def look() -> Looks:
    return Looks(PersistenceMode(Settings()))


def test_it_is_told_after_the_hold_and_until_it_is_on() -> None:
    looks = look()
    modes = ((1.0, 0), (300.9, 0), (301.0, 0), (302.0, 1))
    assert [looks.stands(mono, persistence_mode=mode)[OFF] for mono, mode in modes] == [False, False, True, False]


def test_an_update_of_the_driver_begins_the_hold_anew() -> None:
    looks = look()
    modes = ((1.0, 0), (200.0, 1), (201.0, 0), (450.0, 0))
    assert not any(looks.stands(mono, persistence_mode=mode)[OFF] for mono, mode in modes)


def test_without_a_hold_it_is_told_at_once_and_never_while_it_is_on() -> None:
    looks = Looks(PersistenceMode(Settings(hold=Seconds(0.0))))
    assert [looks.stands(mono, persistence_mode=mode)[OFF] for mono, mode in ((1.0, 1), (2.0, 0))] == [False, True]


def test_a_site_that_does_not_want_it_hears_nothing() -> None:
    looks = Looks(PersistenceMode(Settings(expected="any")))
    assert [looks.stands(mono, persistence_mode=0)[OFF] for mono in (1.0, 1000.0)] == [False, False]


def test_it_is_configuration() -> None:
    finding = look()(1.0, persistence_mode=0)[OFF]
    assert (finding.severity, finding.blame, finding.advice) == ("degraded", "configuration", "watch")


@pytest.mark.parametrize("bad", [None, "N/A", (1, 2)])
def test_what_is_not_known_is_not_judged(bad: object) -> None:
    looks = look()
    looks(1.0, persistence_mode=0)
    assert looks(400.0, persistence_mode=bad) == {}
