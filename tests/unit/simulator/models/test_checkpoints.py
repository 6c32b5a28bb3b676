"""What saving costs and what it keeps."""

import pytest

from gpuguard.scheduler.events import NodeLost
from gpuguard.simulator.engine import Engine, Model, World
from gpuguard.simulator.models.checkpoints import Checkpoints, Settings
from tests.support.worlds import nodes, ran, record, traced


class Loss(Model):
    """The node dies at this instant; there is another."""

    name = "loss"

    def __init__(self, at: int) -> None:
        self._at = at

    def begin(self, world: World, start: int, end: int) -> None:
        world.call(self._at, lambda now: self._lose(world, now))

    def _lose(self, world: World, now: int) -> None:
        node = world.lives["job"].shares[0].node
        world.later(now, NodeLost(at=now, node=node))


def lost(settings: Settings, checkpoints: bool = True) -> Engine:
    return ran([traced("job", 8, 3000, checkpoints=checkpoints)], [Loss(1450), Checkpoints(settings)], nodes(2))


@pytest.mark.parametrize(
    ("settings", "kept", "end"),
    [
        # Two saves were begun, at 600 and 1,200, and the second was complete at 1,260.
        (Settings(), 1200, 1450 + 1800),
        # It was still being written.
        (Settings(write=300), 600, 1450 + 2400),
        (Settings(interval=0), 0, 1450 + 3000),
        # 500 s of work take 600 with the stall: two turns are 1,200 s and 1,000 of work; 2,000 more take 2,400.
        (Settings(interval=500, stall=100.0), 1000, 1450 + 2400),
    ],
)
def test_the_job_goes_on_from_its_last_complete_save(settings: Settings, kept: int, end: int) -> None:
    job = record(lost(settings), "job")
    first, second = job.segments
    assert (first.end, first.how, second.start, second.end) == (1450, "lost", 1450, end)
    assert first.kept == pytest.approx(kept)


def test_who_does_not_checkpoint_begins_anew_and_is_not_stalled() -> None:
    first, second = record(lost(Settings(stall=100.0), checkpoints=False), "job").segments
    assert (first.kept, second.end) == (0.0, 1450 + 3000)
    assert second.slow == ()


def test_a_stall_stretches_every_run() -> None:
    engine = ran([traced("job", 8, 6000, checkpoints=True)], [Checkpoints(Settings(stall=60.0))])
    job = record(engine, "job")
    assert job.end == 6600
    assert dict(job.segments[0].slow) == pytest.approx({"saving": 600.0})


def test_who_is_told_to_leave_saves_all() -> None:
    low = traced("low", 16, 9000, tier="batch", checkpoints=True)
    high = traced("high", 16, 100, at=4000, level="high")
    engine = ran([low, high], [Checkpoints(Settings())])
    first = record(engine, "low").segments[0]
    assert (first.end, first.how, first.kept) == (4010, "preempted", 4010.0)
