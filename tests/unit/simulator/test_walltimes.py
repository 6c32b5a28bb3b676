"""Walltimes made from run times."""

import pytest

from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.trace import TraceJob
from gpuguard.simulator.walltimes import Mode, walltime_of, with_walltimes


@pytest.mark.parametrize(
    ("duration", "mode", "walltime"),
    [
        (100, "exact", 100), (0, "exact", 1), (100, "x3", 300), (0, "x3", 1),
        (0, "bucket", 2 * HOUR), (2 * HOUR, "bucket", 2 * HOUR), (2 * HOUR + 1, "bucket", DAY), (DAY, "bucket", DAY),
        (DAY + 1, "bucket", 2 * DAY), (2 * DAY + 1, "bucket", 7 * DAY), (7 * DAY, "bucket", 7 * DAY),
        (7 * DAY + 1, "bucket", 14 * DAY), (20 * DAY, "bucket", 21 * DAY),
    ],
)  # fmt: skip
def test_walltime_of(duration: int, mode: Mode, walltime: int) -> None:
    assert walltime_of(duration, mode) == walltime


def _walltimes(mode: Mode | None) -> list[int | None]:
    jobs = [
        TraceJob(job=Job(id="told", walltime=50), submit_s=0, duration_s=60),
        TraceJob(job=Job(id="silent"), submit_s=0, duration_s=60),
        TraceJob(job=Job(id="never"), submit_s=0, duration_s=None),
    ]
    return [traced.job.walltime for traced in with_walltimes(jobs, mode)]


def test_the_trace_is_believed_unless_a_mode_is_asked_for() -> None:
    assert _walltimes(None) == [50, 2 * HOUR, None]
    assert _walltimes("x3") == [180, 180, None]
