"""Slow at work without a reason, and only then."""

import pytest

from gpuguard.detectors.clocks_below_expected import Settings
from tests.support.stories import told

ONLY = "only=clocks_below_expected"
GPU = "gpu:0000:1b:00.0"


def looked(*rows: str) -> list[str]:
    """What is told of one GPU after these looks, each `SECONDS COLUMN=VALUE ...`."""
    lines = [f"{row.partition(' ')[0]} sweep nvml/fast {GPU} {row.partition(' ')[2]}" for row in rows]
    return [line.partition(": ")[2] for line in told(*lines, given=ONLY)[1]]


SLOW = "sm_clock_hertz=660e6 sm_clock_limit_hertz=1980e6 utilization_ratio=1.0 performance_state=0 clock_events=0"


def test_slow_at_work_without_a_reason_for_the_hold() -> None:
    assert looked(f"0 {SLOW}", f"119 {SLOW}") == []
    assert "660 MHz, 1980 are to be expected" in looked(f"0 {SLOW}", f"120 {SLOW}")[0]


def test_half_the_clock_is_no_fault() -> None:
    row = SLOW.replace("660e6", "990e6")
    assert looked(f"0 {row}", f"900 {row}") == []
    row = SLOW.replace("660e6", "989e6")
    assert looked(f"0 {row}", f"900 {row}") != []


def test_the_lower_of_both_clocks_is_expected() -> None:
    row = SLOW.replace("660e6", "600e6") + " sm_application_clock_hertz=1095e6"
    assert looked(f"0 {row}", f"900 {row}") == []


@pytest.mark.parametrize("events", [1, 2, 4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100])
def test_any_reason_explains_it(events: int) -> None:
    row = SLOW.replace("clock_events=0", f"clock_events={events}")
    assert looked(f"0 {row}", f"900 {row}") == []


@pytest.mark.parametrize(
    ("known", "otherwise"),
    [("utilization_ratio=1.0", "utilization_ratio=0.79"), ("performance_state=0", "performance_state=2"),
     ("utilization_ratio=1.0", "utilization_ratio=?"), ("performance_state=0", "performance_state=?"),
     ("clock_events=0", "clock_events=?"), ("sm_clock_limit_hertz=1980e6", "sm_clock_limit_hertz=0"),
     ("sm_clock_hertz=660e6", "sm_clock_hertz=?")],
)  # fmt: skip
def test_a_gpu_at_rest_or_unknown_tells_nothing(known: str, otherwise: str) -> None:
    row = SLOW.replace(known, otherwise)
    assert looked(f"0 {row}", f"900 {row}") == []
    # Neither does it take back what stands.
    assert len(looked(f"0 {SLOW}", f"120 {SLOW}", f"125 {row}")) == 1


def test_one_look_at_speed_begins_anew() -> None:
    fast = SLOW.replace("660e6", "1900e6")
    assert looked(f"0 {SLOW}", f"100 {fast}", f"105 {SLOW}", f"220 {SLOW}") == []


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Settings(share=share)
