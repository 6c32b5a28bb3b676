"""A lowered limit is told, as somebody's choice; power far above it is a fault."""

import pytest

from gpuguard.detectors.power_cap import Settings
from tests.support.stories import told

ONLY = "only=power_cap"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


def test_a_lowered_limit_is_information() -> None:
    row = "power_limit_watts=664 power_default_limit_watts=700"
    assert looked(f"0 {row}", f"59 {row}") == []
    assert looked(f"0 {row}", f"60 {row}")[0].startswith("power_limit_lowered stands: info, advice none")


@pytest.mark.parametrize("limit", [665, 700, 750])
def test_a_little_lower_and_higher_is_not(limit: int) -> None:
    row = f"power_limit_watts={limit} power_default_limit_watts=700"
    assert looked(f"0 {row}", f"900 {row}") == []


def test_power_far_above_the_limit_for_long_is_a_fault() -> None:
    row = "power_limit_watts=400 power_watts=481"
    assert looked(f"0 {row}", f"899 {row}") == []
    assert looked(f"0 {row}", f"900 {row}")[0].startswith("power_above_limit stands: degraded, advice test")
    row = "power_limit_watts=400 power_watts=480"
    assert looked(f"0 {row}", f"900 {row}") == []


@pytest.mark.parametrize("limit", ["0", "-1", "9.9", "?"])
def test_a_limit_of_nothing_is_none(limit: str) -> None:
    row = f"power_limit_watts={limit} power_default_limit_watts=700 power_watts=600"
    assert looked(f"0 {row}", f"2000 {row}") == []
    row = f"power_limit_watts=300 power_default_limit_watts={limit} power_watts=300"
    assert looked(f"0 {row}", f"2000 {row}") == []


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="lowest_limit"):
        Settings(lowest_limit=0.0)
