"""How long a job may show no progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ConfigInvalid
from gpuguard.jobs.limits import FADES_AT, Limit, Phase, parse_phases
from gpuguard.runtime.assets import read_text

STEP = Phase(first=600.0, floor=30.0, ceiling=1800.0)


def learned(*gaps: float, times: int = 1) -> Limit:
    limit = Limit()
    for gap in gaps:
        limit = limit.learned(gap, times)
    return limit


def test_the_phases_that_ship_can_be_read() -> None:
    phases = parse_phases(read_text("rules", "jobs", "phases.toml"))
    assert phases.samples == 20
    assert {"start", "step", "checkpoint", "evaluation", "compile", "other"} == set(phases.rows)
    assert phases.of("tokenize") is phases.rows["other"]
    assert all(phases.of(name).first >= 1200 for name in ("start", "evaluation", "compile"))


def test_until_there_are_twenty_samples_the_default_counts() -> None:
    assert learned(*[1.0] * 19).seconds(STEP, 20) == 600.0
    assert learned(*[1.0] * 20).seconds(STEP, 20) == 30.0


def test_many_steps_at_once_are_many_samples() -> None:
    assert learned(0.1, times=50).seconds(STEP, 20) == 30.0


def test_five_times_what_is_usual() -> None:
    assert 50.0 <= learned(*[10.0] * 200).seconds(STEP, 20) <= 60.0


def test_three_times_what_was_longest_of_late() -> None:
    limit = learned(*[1.0] * 500, 100.0, times=10)
    assert limit.seconds(STEP, 20) == 300.0
    for _ in range(50):
        limit = limit.learned(1.0, 100)
    assert limit.seconds(STEP, 20) == 30.0, "it was once, and long ago"


def test_floor_and_ceiling() -> None:
    assert learned(*[0.01] * 100).seconds(STEP, 20) == 30.0
    assert learned(*[1500.0] * 100).seconds(STEP, 20) == 1800.0


def test_what_was_long_ago_fades() -> None:
    limit = learned(*[50.0] * 100)
    for _ in range(4 * FADES_AT // 1000):
        limit = limit.learned(1.0, 1000)
    assert limit.quantile(0.999) < 2.0
    assert limit.total <= FADES_AT


@given(st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=20, max_size=300))
def test_a_percentile_is_never_too_short_and_at_most_a_fifth_too_long(gaps: list[float]) -> None:
    limit = learned(*gaps)
    ordered = sorted(gaps)
    exact = ordered[max(0, -(-99 * len(ordered) // 100) - 1)]
    assert max(exact, 0.001) * (1 - 1e-9) <= limit.quantile(0.99) <= max(exact, 0.001) * 1.2 * (1 + 1e-9)
    assert len(limit.counts) <= 115
    assert 30.0 <= limit.seconds(STEP, 20) <= 1800.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[other", "phases.toml"),
        ("samples = 0\n[other]\nfirst=1\nfloor=1\nceiling=1", "samples"),
        ("[step]\nfirst=1\nfloor=1\nceiling=2", "[other] is missing"),
        ("[other]\nfirst=1\nfloor=9\nceiling=2", "floor"),
        ("[other]\nfirst=1\nfloor=1", "ceiling"),
        ("other = 3", "first, floor and ceiling"),
    ],
)
def test_a_mistake_in_the_table_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_phases(text)
    assert says in str(caught.value)
