"""Who leaves when told, and with what."""

import pytest

from gpuguard.simulator.engine import Engine
from gpuguard.simulator.models.preempting import Preempting, Settings
from gpuguard.simulator.policies import policies
from tests.support.worlds import nodes, record, traced

ALL = {"checkpoint": 1.0, "least": 30.0, "most": 30.0}


def run(**settings: float) -> Engine:
    model = Preempting(Settings(**{**ALL, "ignore": 0.0, **settings}), 1)
    low, high = traced("low", 16, 9000, tier="batch"), traced("high", 16, 100, at=4000, level="high")
    engine = Engine(nodes(2), [low, high], policies()["gpuguard"], models=[model], saves=600)
    for _ in engine.run():
        pass
    return engine


def test_a_job_that_hears_saves_all_and_leaves() -> None:
    first, second = record(run(), "low").segments
    assert (first.end, first.how, first.kept) == (4030, "preempted", 4030.0)
    assert second.end - second.start == 9000 - 4030


@pytest.mark.parametrize("settings", [{"ignore": 1.0}, {"least": 200.0, "most": 200.0}])
def test_a_job_that_does_not_or_is_too_slow_is_killed_after_its_grace(settings: dict[str, float]) -> None:
    first, second = record(run(**settings), "low").segments
    # What it saved at 3,600 is kept, and not what it did in the 120 s of grace.
    assert (first.end, first.how, first.kept) == (4120, "preempted", 3600.0)
    assert second.end - second.start == 9000 - 3600


def test_nobody_who_does_not_checkpoint_is_preempted() -> None:
    engine = run(checkpoint=0.0)
    assert [segment.how for segment in record(engine, "low").segments] == ["ended"]
    assert record(engine, "high").first_start == 9000


def test_so_many_checkpoint() -> None:
    model = Preempting(Settings(checkpoint=0.3), 1)
    saves = [model.submits(traced(f"j{at}", 1, 10)).job.checkpoints for at in range(1000)]
    assert 260 <= sum(saves) <= 340
    assert model.submits(traced("cpu", 0, 10, tier="batch")).job.checkpoints is False
