"""What a trace tells: jobs as they were submitted, and how long each then ran.

Units   seconds from the trace's first instant
"""

from typing import Literal

import msgspec

from gpuguard.scheduler.request import Job

Status = Literal["pass", "fail", "killed", "running", "pending", "unknown"]
STATUSES: tuple[Status, ...] = ("pass", "fail", "killed", "running", "pending", "unknown")


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, when it was submitted and what came of it.

    Shape   duration_s: how long it ran, None: it never started. queue: the name that the trace has for its queue, which
            need not be one of ours. job.walltime: only what the trace tells; `walltimes` makes one where it does not
    """

    job: Job
    submit_s: int
    duration_s: int | None
    status: Status = "unknown"
    queue: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of a file, in its order. `unread`: columns that the reader does not know and left alone."""

    jobs: tuple[TraceJob, ...]
    unread: tuple[str, ...] = ()
