"""The driver's limit, else the usual one; no sensor is no temperature."""

import pytest

from gpuguard.detectors.memory_temperature import Settings
from gpuguard.model.units import Celsius
from tests.support.stories import told

ONLY = "only=memory_temperature"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def test_it_counts_from_the_limit_itself_on_and_after_the_hold() -> None:
    assert looked("0 memory_temperature_celsius=95", "119 memory_temperature_celsius=95") == []
    assert "95 degrees" in looked("0 memory_temperature_celsius=95", "120 memory_temperature_celsius=95")[0]
    assert looked("0 memory_temperature_celsius=94", "500 memory_temperature_celsius=94") == []


def test_the_drivers_limit_goes_before_ours() -> None:
    row = "memory_temperature_celsius=100 memory_temperature_limit_celsius=105"
    assert looked(f"0 {row}", f"500 {row}") == []


@pytest.mark.parametrize("limit", ["0", "-1", "?"])
def test_a_limit_that_can_be_none_is_ours(limit: str) -> None:
    row = f"memory_temperature_celsius=96 memory_temperature_limit_celsius={limit}"
    assert "95 is the most" in looked(f"0 {row}", f"120 {row}")[0]


@pytest.mark.parametrize("celsius", ["0", "-4", "?"])
def test_no_sensor_is_no_temperature(celsius: str) -> None:
    hot = "memory_temperature_celsius=99"
    assert looked(f"0 {hot}", f"120 {hot}", f"130 memory_temperature_celsius={celsius}")[1:] == []


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        Settings(limit=Celsius(0.0))
