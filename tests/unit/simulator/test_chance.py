"""Draws that hang on names and the seed alone."""

import random

import pytest

from gpuguard.simulator.chance import Stream, chance, seed_of, stream


def test_the_first_draws_are_splitmix64s() -> None:
    """Source: the reference implementation, seed 1234567."""
    drawn = Stream(1234567)
    assert [drawn._next() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_names_and_seeds_part_streams() -> None:
    seen = {chance(seed, *names) for seed in (1, 2) for names in (("a", "b"), ("ab",), ("a",), ("b", "a"), ("a", 1))}
    assert len(seen) == 10
    assert chance(1, "job", 7) == chance(1, "job", "7")


@pytest.mark.parametrize("word", ["j", "node-000"])
def test_draws_by_name_are_even(word: str) -> None:
    drawn = [chance(3, "over", f"{word}{at}") for at in range(2000)]
    for part in (0.1, 0.5, 0.9):
        assert sum(one < part for one in drawn) / 2000 == pytest.approx(part, abs=0.035)


def test_the_means_are_those_asked_for() -> None:
    drawn = stream(5, "means")
    assert sum(drawn.exponential(3.0) for _ in range(4000)) / 4000 == pytest.approx(3.0, abs=0.2)
    assert sum(drawn.poisson(0.4) for _ in range(4000)) / 4000 == pytest.approx(0.4, abs=0.04)
    assert sorted(drawn.lognormal(20.0, 1.9) for _ in range(4001))[2000] == pytest.approx(20.0, abs=2.0)
    whole = [drawn.whole(1, 3) for _ in range(300)]
    assert {min(whole), max(whole)} == {1, 3}


def test_any_dice_give_a_seed() -> None:
    assert seed_of(random.Random(1)) == seed_of(random.Random(1)) != seed_of(random.Random(2))
