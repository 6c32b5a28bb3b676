"""Clusters, jobs and runs that scenarios are built from: each claim says only what is its own.

Units   seconds; GPUs in whole ones
"""

from collections.abc import Iterable, Sequence
from math import log, sqrt
from typing import Any

import msgspec

from gpuguard.scheduler.admission import MOST_GPUS
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, Settings
from gpuguard.simulator.claim import Dice, Given
from gpuguard.simulator.course import Course, JobRecord
from gpuguard.simulator.engine import Engine, Model
from gpuguard.simulator.policies import policies
from gpuguard.simulator.summary import waits
from gpuguard.simulator.trace import TraceJob
from gpuguard.simulator.walltimes import walltime_of, with_walltimes
from gpuguard.simulator.windows import Window, window

SIZES: tuple[tuple[int, float], ...] = ((1, 0.70), (2, 0.12), (4, 0.10), (8, 0.08))
"""GPUs of a job and how often. 2.0 in the mean; Philly 2017 had 1.9."""

MEAN, MEDIAN = 18_006.0, 874.0
"""Run times of Philly 2017, all 112,956 jobs. Source: Jeon et al., USENIX ATC 2019, by the published trace."""

LONGEST = 7 * DAY
PHILLY = "philly11vc"
PHILLY_DAYS = (42, 84)
"""The part of the trace in which its load is even."""


def cluster(count: int, gpus: int = 8, *, rack: int = 10, pod: int = 50, **fields: Any) -> list[NodeJoined]:
    """So many equal nodes, in racks and pods of so many. Fields: the others of a node."""
    return [
        NodeJoined(
            at=0, node=f"n{number:04}", gpus=gpus, rack=f"r{number // rack:03}", pod=f"p{number // pod:02}", **fields
        )
        for number in range(count)
    ]  # fmt: skip


def traced(name: str, submit: int, duration: int, gpus: int, **fields: Any) -> TraceJob:
    """A job whose walltime is its run time rounded up to what sites offer, where the fields do not say another."""
    fields.setdefault("walltime", walltime_of(duration, "bucket"))
    return TraceJob(job=Job(id=name, gpus=gpus, **fields), submit_s=submit, duration_s=duration)


def run_times(dice: Dice, mean: float = MEAN, median: float = MEDIAN, longest: int = LONGEST) -> int:
    """A run time: log-normal with this mean and median, cut at the longest."""
    drawn = dice.lognormvariate(log(median), sqrt(2 * log(mean / median)))
    return max(60, min(longest, round(drawn)))


def size_of(dice: Dice, sizes: Sequence[tuple[int, float]] = SIZES) -> int:
    """GPUs of a job, by how often each number is."""
    point = dice.random() * sum(often for _, often in sizes)
    for gpus, often in sizes:
        point -= often
        if point < 0:
            return gpus
    return sizes[-1][0]


def mix(
    dice: Dice,
    *,
    capacity: int,
    load: float,
    span: int,
    sizes: Sequence[tuple[int, float]] = SIZES,
    mean: float = MEAN,
    median: float = MEDIAN,
    longest: int = LONGEST,
    name: str = "j",
    **fields: Any,
) -> list[TraceJob]:
    """Jobs that come evenly over the span and ask together for `load` of what the capacity gives in it."""
    missing = load * capacity * span
    drawn: list[tuple[int, int, int]] = []
    while missing > 0:
        gpus, duration = size_of(dice, sizes), run_times(dice, mean, median, longest)
        missing -= gpus * duration
        drawn.append((int(dice.random() * span), duration, gpus))
    drawn.sort()
    return [
        traced(f"{name}{number:05}", submit, duration, gpus, **fields)
        for number, (submit, duration, gpus) in enumerate(drawn)
    ]


def play(
    given: Given,
    what: str,
    nodes: Sequence[NodeJoined],
    jobs: Sequence[TraceJob],
    settings: Settings,
    *,
    models: Sequence[Model] = (),
    start: int | None = None,
    end: int | None = None,
    saves: int | None = None,
    sampled: bool = False,
    until: int | None = None,
) -> Engine:
    """The run, over. It is left where it stands at `until`, else when the last job has ended."""
    given.say(what)
    engine = Engine(
        nodes, jobs, settings, policy=what, models=models, start=start, end=end, saves=saves, sampled=sampled
    )
    for _ in engine.run():
        given.say(what)
        if until is not None and engine.state.now >= until:
            break
    return engine


def philly(given: Given) -> Window:
    """Its even part, with run times of 7 days at most and walltimes as people ask for them."""
    first, last = PHILLY_DAYS

    def read() -> Window:
        found = window(given.traces[PHILLY].trace, from_day=first, to_day=last, max_days=LONGEST / DAY)
        return msgspec.structs.replace(found, jobs=tuple(with_walltimes(found.jobs, "bucket")))

    return given.once(PHILLY, read)


def philly_run(given: Given, policy: str) -> Course:
    """Its even part under a policy that ships, on the nodes that are told with it."""

    def run() -> Course:
        jobs = philly(given)
        nodes, settings = given.traces[PHILLY].nodes, policies()[policy]
        return play(given, f"Philly, {policy}", nodes, jobs.jobs, settings, start=jobs.start, end=jobs.end).course

    return given.once(f"{PHILLY} {policy}", run)


def mean_wait(jobs: Iterable[JobRecord], at_least: int = 1, at_most: int = MOST_GPUS) -> float | None:
    """Mean seconds from submit to first start of the jobs with so many GPUs that started."""
    found = waits(job for job in jobs if at_least <= job.gpus <= at_most)["mean"]
    return None if found is None else float(found)
