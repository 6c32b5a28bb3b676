"""Held down by its own hardware for long; the server's brake is somebody else's to tell."""

import pytest

from gpuguard.detectors.hw_slowdown import Settings
from gpuguard.model.units import Seconds
from tests.support.stories import told

ONLY = "only=hw_slowdown"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


@pytest.mark.parametrize("events", [0x8, 0x40, 0x48, 0x68, 0xC8, 0x4C])
def test_the_hardwares_bits_count_after_the_hold(events: int) -> None:
    assert looked(f"0 clock_events={events}", f"119 clock_events={events}") == []
    assert "degraded" in looked(f"0 clock_events={events}", f"120 clock_events={events}")[0]


@pytest.mark.parametrize("events", [0, 1, 2, 4, 0x10, 0x20, 0x80, 0x88, 0x100])
def test_other_reasons_do_not(events: int) -> None:
    assert looked(f"0 clock_events={events}", f"900 clock_events={events}") == []


def test_one_look_without_it_begins_anew_and_ends_it() -> None:
    assert looked("0 clock_events=8", "110 clock_events=0", "115 clock_events=8", "230 clock_events=8") == []
    assert looked("0 clock_events=8", "120 clock_events=8", "125 clock_events=1")[-1].endswith("stands no longer")


def test_on_and_off_is_told_by_the_drivers_counter() -> None:
    assert looked("0 hw_thermal_slowdown_seconds_total=10", "900 hw_thermal_slowdown_seconds_total=609") == []
    assert looked("0 hw_thermal_slowdown_seconds_total=10", "900 hw_thermal_slowdown_seconds_total=610") != []


@pytest.mark.parametrize("mask", ["?", "-1", "none"])
def test_what_is_no_mask_is_unknown(mask: str) -> None:
    assert looked(f"0 clock_events={mask}", f"900 clock_events={mask}") == []


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="slowed"):
        Settings(slowed=Seconds(0.0))
