"""A run whose state is recounted now and then says so when it is not what it says."""

import pytest

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.trace import TraceJob


def engine(checked: int) -> Engine:
    jobs = [
        TraceJob(job=Job(id=f"j{at}", gpus=2, walltime=100), submit_s=at, duration_s=50) for at in range(0, 200, 10)
    ]
    return Engine([NodeJoined(at=0, node="a", gpus=8)], jobs, Settings(), checked=checked)


@pytest.mark.parametrize("checked", [0, 1, 7])
def test_a_sound_run_goes_through(checked: int) -> None:
    run = engine(checked)
    assert list(run.run())[-1] == (20, 20)


def test_a_wrong_state_stops_the_run() -> None:
    run = engine(3)
    run.state.high = 5
    with pytest.raises(InvariantBroken, match="counted as high"):
        list(run.run())
