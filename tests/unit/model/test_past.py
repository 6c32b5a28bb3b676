"""How a remembered fault fades, also by what a damaged memory says."""

import math

import pytest

from gpuguard.model.past import decay


def test_half_is_left_after_each_half_life_and_never_more_than_all() -> None:
    assert [decay(seconds, 10.0) for seconds in (-5.0, 0.0, 10.0, 30.0)] == [1.0, 1.0, 0.5, 0.125]


@pytest.mark.parametrize("half_life", [0.0, -0.0, -10.0, math.nan, -math.inf])
def test_by_a_half_life_that_is_none_all_is_forgotten(half_life: float) -> None:
    assert [decay(seconds, half_life) for seconds in (-5.0, 0.0, 10.0)] == [0.0, 0.0, 0.0]
