"""The course of values, a line each."""

import math

from gpuguard.model.samples import Stretch
from gpuguard.runtime.plot import BARS, WIDTH, Course

HOUR = 3600.0
NOON = 1_750_003_200.0


def rising(count: int = 64) -> Course:
    values = tuple(300.0 + n for n in range(count))
    offsets = tuple(n * HOUR / count for n in range(count))
    stretch = Stretch(gpu="G", grain="full", start=NOON, offsets=offsets, columns={"power_watts": values})
    return Course(NOON, NOON + HOUR, (stretch,))


def test_what_rises_is_seen_to_rise() -> None:
    line = list(rising().lines())[-1]
    assert line.startswith("power W")
    assert line.split()[2:5] == ["300", "331.5", "363"]
    bars = line[-WIDTH:]
    assert bars == "".join(sorted(bars))
    assert bars[0] == BARS[0]
    assert bars[-1] == BARS[-1]
    assert len(line) <= 80


def test_a_gap_stays_a_gap_and_nothing_known_is_a_question_mark() -> None:
    stretch = Stretch(
        gpu="G", grain="full", start=NOON, offsets=(0.0, HOUR * 0.99),
        columns={"sm_active_ratio": (0.5, 0.5), "temperature_celsius": (math.nan, math.nan)},
    )  # fmt: skip
    activity, temperature = list(Course(NOON, NOON + HOUR, (stretch,)).lines())[-2:]
    assert activity.split()[2:5] == ["%", "50", "50"]
    assert " " * (WIDTH - 2) in activity
    assert temperature.split()[-3:] == ["?", "?", "?"]


def test_a_minute_shows_its_extremes() -> None:
    columns = {"power_watts": (300.0,), "power_watts.low": (90.0,), "power_watts.high": (710.0,)}
    stretch = Stretch(gpu="G", grain="minute", start=NOON, offsets=(60.0,), columns=columns)
    line = list(Course(NOON, NOON + HOUR, (stretch,)).lines())[-1]
    assert line.split()[2:5] == ["90", "300", "710"]


def test_nothing_measured_is_nothing_shown() -> None:
    assert list(Course(NOON, NOON + HOUR, ()).lines()) == []


def test_facts_have_none_where_nothing_was_known() -> None:
    stretch = Stretch(gpu="G", grain="full", start=NOON, offsets=(1.5,), columns={"power_watts": (math.nan,)})
    facts = Course(NOON, NOON + HOUR, (stretch,)).facts()
    assert facts["values"] == {"power_watts": [[NOON + 1.5, None]]}
