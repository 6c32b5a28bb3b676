"""One number for level and tier, and the cap on the top."""

import pytest

from gpuguard.scheduler.ranks import high_allowed, may_preempt, rank
from gpuguard.scheduler.request import LEVELS, TIERS, Job, Level, Tier
from gpuguard.scheduler.settings import Preemption, Settings

SETTINGS = Settings()


def job(tier: Tier = "training", level: Level = "normal", gpus: int = 8) -> Job:
    return Job(id="j", tier=tier, level=level, gpus=gpus)


def test_the_level_rules_and_the_tier_decides_within_it() -> None:
    ranks = [rank(job(tier, level), SETTINGS) for level in LEVELS for tier in TIERS]
    assert ranks == sorted(set(ranks))
    assert ranks[0] == 0


def test_batch_yields_to_training_of_its_level() -> None:
    assert rank(job("training"), SETTINGS) < rank(job("batch"), SETTINGS) < rank(job("background"), SETTINGS)
    assert rank(job("batch", "high"), SETTINGS) < rank(job("training", "normal"), SETTINGS)


def test_a_job_over_the_cap_ranks_as_what_it_counts_as() -> None:
    assert rank(job(level="high"), SETTINGS, "normal") == rank(job(), SETTINGS)


@pytest.mark.parametrize(
    ("tier", "gpus", "may"),
    [
        ("training", 8, True),
        ("batch", 1, True),
        ("interactive", 1, False),
        ("background", 0, False),
        ("batch", 0, False),
    ],
)
def test_who_may_ask_others_to_leave(tier: Tier, gpus: int, may: bool) -> None:
    assert may_preempt(job(tier, gpus=gpus), SETTINGS) is may
    assert not may_preempt(job(tier, gpus=gpus), Settings(preemption=Preemption(enabled=False)))


@pytest.mark.parametrize(
    ("high", "allocated", "asked", "share", "allowed"),
    [
        (0, 992, 8, 0.2, True),
        (192, 992, 8, 0.2, True),
        (193, 992, 8, 0.2, False),
        # On an empty cluster nothing has to be pushed aside, so nothing is high.
        (0, 0, 8, 0.2, False),
        (0, 0, 8, 1.0, True),
        (0, 1000, 1, 0.0, False),
        (0, 0, 0, 0.2, True),
        # 0.29 * 100 is 28.999999999999996 in floating point.
        (28, 99, 1, 0.29, True),
    ],
)
def test_the_cap_on_high(high: int, allocated: int, asked: int, share: float, allowed: bool) -> None:
    assert high_allowed(high, allocated, asked, share) is allowed


def test_with_everybody_at_the_top_a_fifth_is_high() -> None:
    high = other = 0
    for _ in range(500):
        if high_allowed(high, high + other, 8, SETTINGS.high_share):
            high += 8
        else:
            other += 8
    assert high / (high + other) == pytest.approx(0.2, abs=0.003)
    assert high * 5 <= high + other
