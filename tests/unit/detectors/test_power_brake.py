"""Short brakes are noise; long ones, and many, are told."""

import pytest

from gpuguard.detectors.power_brake import Settings
from gpuguard.model.units import Seconds
from tests.support.stories import told

ONLY = "only=power_brake"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def test_the_bit_counts_after_its_hold_whatever_else_is_set() -> None:
    assert looked("0 clock_events=128", "299 clock_events=128") == []
    assert "for 300 s" in looked("0 clock_events=128", "150 clock_events=236", "300 clock_events=128")[0]


@pytest.mark.parametrize("events", [0, 1, 4, 8, 0x40, 0x48])
def test_other_reasons_are_not_the_brake(events: int) -> None:
    assert looked(f"0 clock_events={events}", f"900 clock_events={events}") == []


def test_one_look_without_it_begins_anew() -> None:
    assert looked("0 clock_events=128", "290 clock_events=8", "295 clock_events=128", "590 clock_events=128") == []


def test_many_short_ones_are_told_by_the_drivers_counter() -> None:
    rows = [f"{t} hw_power_brake_seconds_total={5000 + t // 5}" for t in range(0, 3601, 300)]
    assert looked(*rows[:-3]) == []
    rows = [f"{t} hw_power_brake_seconds_total={5000 + t // 4}" for t in range(0, 3601, 300)]
    assert "held it down for 600 s" in looked(*rows)[0]


def test_what_the_counter_showed_first_and_a_reset_are_nothing() -> None:
    assert looked("0 hw_power_brake_seconds_total=130000", "5 hw_power_brake_seconds_total=0") == []


def test_without_the_bit_a_brake_that_was_held_says_nothing_more() -> None:
    told_of = looked("0 clock_events=128", "300 clock_events=128", "305 clock_events=?")
    assert len(told_of) == 1


@pytest.mark.parametrize("braked", [0.0, 4000.0])
def test_settings_that_cannot_be_are_refused(braked: float) -> None:
    with pytest.raises(ValueError, match="braked"):
        Settings(braked=Seconds(braked))
