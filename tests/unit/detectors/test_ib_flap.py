"""Ports that go down again and again."""

import pytest

from gpuguard.detectors import ib_flap
from tests.support.watched import Watched

SUBJECT = "port:mlx5_0/1"


def test_so_many_times_within_the_window() -> None:
    port = Watched(ib_flap, SUBJECT, times=3, within=1000.0)
    assert port.standing(0.0, ib_link_downed_total=100) == []
    assert port.standing(10.0, ib_link_downed_total=102) == []
    found = port.see(500.0, ib_link_downed_total=103)["ib_flap"]
    assert found.stands
    assert "3 times" in found.reason
    assert port.standing(1400.0, ib_link_downed_total=103) == []


def test_counters_that_begin_anew_are_no_flap() -> None:
    port = Watched(ib_flap, SUBJECT, times=1)
    assert port.standing(0.0, ib_link_downed_total=100) == []
    assert port.standing(1.0, ib_link_downed_total=0) == []
    assert port.standing(2.0, ib_link_downed_total=1) == ["ib_flap"]


def test_nothing_is_said_of_what_is_not_known() -> None:
    port = Watched(ib_flap, SUBJECT, times=1)
    assert port.see(0.0, ib_link_downed_total=None) == {}
    assert port.see(0.0, ib_state=4) == {}
    with pytest.raises(ValueError, match="at least 1"):
        ib_flap.Settings(times=0)
