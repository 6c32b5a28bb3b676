"""What happened in one simulated run, as it is written down while it runs: what figures and pictures are made from.

Shape   the one thing of the simulator that grows in place: a run appends tens of thousands of rows, so they are short
        and nothing is computed from them before the end
Units   instants and durations in whole seconds on the run's own clock; GPUs in whole ones, or in fractions where jobs
        share one
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.request import WHOLE, Tier

End = Literal["ended", "preempted", "failed", "killed", "lost", "running"]
"""How a segment ended: by itself, for another job, with an error, by a limit or a person, with its node; or not yet."""

Loss = Literal["far", "sharing", "saving", "data", "failure"]
"""Why a job that holds GPUs is slower than it could be: far places, others on its cards, its own checkpoints, data that
are not there yet, a node that is dead and still its own."""


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One stretch in which a job held its GPUs: [start, end).

    Shape   kept: how much of the work done in it was not lost again; None: all. slow: seconds that were held and not
            worked, by what slowed the job down
    Units   kept: seconds of these GPUs at full speed
    """

    start: int
    end: int
    shares: tuple[Share, ...]
    how: End = "ended"
    kept: float | None = None
    slow: tuple[tuple[Loss, float], ...] = ()

    @property
    def done(self) -> float:
        """Seconds of these GPUs at full speed that were worked, whether they were of use or not."""
        return self.end - self.start - sum(seconds for _, seconds in self.slow)


class JobRecord(msgspec.Struct):
    """One job of the run. `first_start`: None until it has started; `end`: None until its last segment is over.

    Shape   use: the part of its GPUs' time that it really uses while it works
    """

    id: str
    gpus: int
    submit: int
    milli: int = WHOLE
    tier: Tier = "training"
    first_start: int | None = None
    end: int | None = None
    outcome: str = ""
    segments: list[Segment] = []
    use: float = 1.0

    def ran(
        self,
        start: int,
        end: int,
        shares: tuple[Share, ...],
        how: End = "ended",
        kept: float | None = None,
        slow: tuple[tuple[Loss, float], ...] = (),
    ) -> None:
        """One more segment; `end` stays open when the job will go on."""
        self.segments.append(Segment(start, end, shares, how, kept, slow))
        if self.first_start is None:
            self.first_start = start
        self.end = None if how in {"preempted", "lost", "running"} else end


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The cluster at an instant, and until the next sample.

    Shape   queued, running: jobs. busy: GPUs given to jobs, shares counted as such. free: GPUs that could be given.
            slots: of each size of `measures.SLOTS` how many jobs would start now; empty where it was not counted
    """

    at: int
    queued: int
    running: int
    busy: float
    free: int
    slots: tuple[int, ...] = ()


class Outage(msgspec.Struct, frozen=True, gc=False):
    """GPUs of a node that could not be given, in [start, end)."""

    start: int
    end: int
    node: str
    mask: int


class Course(msgspec.Struct, kw_only=True):
    """A run.

    Shape   policy: its name. nodes: name and GPUs of each, in the order in which a picture shows them. start, end: the
            submit window. jobs, samples (by time) and outages are appended to
    """

    policy: str
    nodes: tuple[tuple[str, int], ...]
    start: int
    end: int
    jobs: list[JobRecord] = []
    samples: list[Sample] = []
    outages: list[Outage] = []

    @property
    def capacity(self) -> int:
        """GPUs in all, whether they can be given or not."""
        return sum(gpus for _, gpus in self.nodes)

    @property
    def last(self) -> int:
        """When the last job left its GPUs; the end of the window when none ran."""
        return max((segment.end for job in self.jobs for segment in job.segments), default=self.end)

    def held(self) -> Iterator[tuple[JobRecord, Segment, float]]:
        """Each segment with its job, and how many GPUs it held."""
        for job in self.jobs:
            asked = job.gpus * job.milli / WHOLE
            for segment in job.segments:
                if segment.shares:
                    yield job, segment, sum(share.mask.bit_count() * share.milli for share in segment.shares) / WHOLE
                else:
                    yield job, segment, asked
