"""Skipped looks change nothing: a week of busy nodes with every tick and every sweep comes to the same decisions, at
the same instants, as one without those that can find nothing new."""

import pytest

from tests.support.fleet import ran


@pytest.mark.parametrize("seed", [11])
def test_a_week_of_all_looks_and_one_of_few_are_the_same(seed: int) -> None:
    whole, few = (ran(nodes=3, days=7.0, seed=seed, gpus=1, whole=every) for every in (True, False))
    assert whole.journal
    assert few.journal == whole.journal
    assert few.figures() == whole.figures()
    for one, other in zip(few.agents, whole.agents, strict=True):
        assert {name: s.state for name, s in one.health.subjects.items()} == {
            name: s.state for name, s in other.health.subjects.items()
        }
        assert one.health.tokens == other.health.tokens
