"""At the limit for how long; which limit; what is no limit."""

import pytest

from gpuguard.detectors.thermal import Settings
from gpuguard.model.units import Celsius
from tests.support.stories import told

ONLY = "only=thermal"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def test_it_counts_from_the_limit_itself_on() -> None:
    hot = "temperature_celsius=89 slowdown_temperature_celsius=89"
    assert looked(f"0 {hot}", f"59.9 {hot}") == []
    assert "89 degrees" in looked(f"0 {hot}", f"60 {hot}")[0]
    below = hot.replace("=89 ", "=88.9 ")
    assert looked(f"0 {below}", f"600 {below}") == []


def test_a_break_begins_the_hold_anew() -> None:
    hot, cool = (f"temperature_celsius={n} slowdown_temperature_celsius=89" for n in (90, 80))
    assert looked(f"0 {hot}", f"50 {cool}", f"55 {hot}", f"110 {hot}") == []
    assert looked(f"0 {hot}", "50 temperature_celsius=?", f"60 {hot}") != []


def test_above_normal_operation_it_takes_longer() -> None:
    warm = "temperature_celsius=86 slowdown_temperature_celsius=89 operating_temperature_limit_celsius=85"
    assert looked(f"0 {warm}", f"299 {warm}") == []
    assert "85 is the most" in looked(f"0 {warm}", f"300 {warm}")[0]


@pytest.mark.parametrize("margin", ["0", "-1", "-8", "?"])
def test_a_margin_of_nothing_is_unknown(margin: str) -> None:
    row = f"temperature_celsius=95 temperature_margin_celsius={margin}"
    assert looked(f"0 {row}", f"9000 {row}") == []


def test_a_small_margin_for_long_is_hot() -> None:
    row = "temperature_celsius=87 temperature_margin_celsius=2"
    assert "2 degrees to the most" in looked(f"0 {row}", f"300 {row}")[0]
    row = "temperature_celsius=87 temperature_margin_celsius=3"
    assert looked(f"0 {row}", f"300 {row}") == []


@pytest.mark.parametrize("limit", ["0", "-2", "1", "59", "?"])
def test_what_can_be_no_limit_is_none(limit: str) -> None:
    row = f"temperature_celsius=70 slowdown_temperature_celsius={limit} operating_temperature_limit_celsius={limit}"
    assert looked(f"0 {row}", f"9000 {row}") == []


def test_a_margin_setting_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        Settings(margin=Celsius(0.0))
