"""Walltimes as people would have asked for them, made from how long jobs then ran: traces seldom tell them.

Units   seconds
Source  the buckets are what sites offer: 2 hours, 1 day, 2 days, 7 days
"""

from collections.abc import Iterable
from typing import Literal, assert_never

import msgspec

from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.trace import TraceJob

Mode = Literal["exact", "bucket", "x3"]
MODES: tuple[Mode, ...] = ("exact", "bucket", "x3")
BUCKETS = (2 * HOUR, DAY, 2 * DAY, 7 * DAY)


def walltime_of(duration: int, mode: Mode) -> int:
    """What the owner of a job of this run time would ask for; never less than it needs, and never 0.

    exact: its run time. x3: three times that. bucket: rounded up to 2 h, 1 d, 2 d or 7 d, and beyond 7 d to a multiple
    of 7 d, as the owner of a job that is extended would end up with
    """
    match mode:
        case "exact":
            return max(1, duration)
        case "x3":
            return max(1, 3 * duration)
        case "bucket":
            for bucket in BUCKETS:
                if duration <= bucket:
                    return bucket
            week = BUCKETS[-1]
            return -(-duration // week) * week
        case _:
            assert_never(mode)


def with_walltimes(jobs: Iterable[TraceJob], mode: Mode | None = None, otherwise: Mode = "bucket") -> list[TraceJob]:
    """The jobs, each with a walltime.

    Shape   mode: for every job, whatever the trace tells. None: what the trace tells, and `otherwise` where it is
            silent. Jobs that never started have no run time to make one of and keep what they have
    """
    found = []
    for traced in jobs:
        if traced.duration_s is None or (mode is None and traced.job.walltime is not None):
            found.append(traced)
            continue
        walltime = walltime_of(traced.duration_s, mode or otherwise)
        found.append(msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, walltime=walltime)))
    return found
