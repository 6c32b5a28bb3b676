"""What happens on healthy nodes too, as often as the recipe says."""

from itertools import pairwise

import pytest

from gpuguard.simulator.fleet.faults import DAY, HOUR
from gpuguard.simulator.fleet.noise import RATES, Kind, noise, silences

NODES, DAYS = 300, 60
FOUND = noise(1, NODES, DAYS * DAY)


@pytest.mark.parametrize("kind", RATES)
def test_the_rate(kind: Kind) -> None:
    count = sum(1 for event in FOUND if event.kind == kind)
    expected = RATES[kind] * NODES * DAYS / 1000
    assert abs(count - expected) <= 4 * expected**0.5


def test_logs_are_rotated_once_a_day_at_the_same_time() -> None:
    turns = [event.at for event in FOUND if event.kind == "rotation" and event.node == 7]
    assert len(turns) == DAYS
    assert {round(after - before, 3) for before, after in pairwise(turns)} == {DAY}


def test_how_long_it_lasts() -> None:
    lasts = {kind: [event.lasts for event in FOUND if event.kind == kind] for kind in RATES}
    assert all(5.0 <= value <= 60.0 for value in lasts["slow_call"])
    assert all(value < 1.0 for value in lasts["flap"])
    assert all(600.0 <= value <= 12 * HOUR for value in lasts["config_error"])


def test_the_scheduler_is_silent_each_week_and_for_hours_each_month() -> None:
    found = silences(3, 360 * DAY)
    short = [silence for silence in found if silence.lasts <= 120.0]
    assert len(short) in (51, 52)
    assert len(found) - len(short) == 12
    assert all(HOUR <= silence.lasts <= 6 * HOUR for silence in found if silence not in short)


def test_the_same_seed_is_the_same_noise_and_order() -> None:
    assert noise(1, NODES, DAYS * DAY) == FOUND
    assert [event.at for event in FOUND] == sorted(event.at for event in FOUND)
    assert noise(2, NODES, DAYS * DAY) != FOUND
    assert noise(1, 3, DAY, dict.fromkeys(RATES, 0.0)) == ()
