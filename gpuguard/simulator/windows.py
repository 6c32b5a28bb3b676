"""Which jobs of a trace are simulated: those of a span of days, or as many as fill a cluster.

Units   seconds and days from the trace's first instant
"""

from collections.abc import Callable, Sequence

import msgspec

from gpuguard.errors import UsageError
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import DAY
from gpuguard.simulator.trace import Trace, TraceJob

MOST_SHARE = 100
"""Beyond this nothing more is learnt, and the list of jobs would fill the memory."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a span, by (submit, id), and what was left out of it.

    Shape   start, end: the days that were asked for, else the first and the last submit. outside: jobs submitted before
            or after. never_started: jobs of the span without a run time. capped: jobs that were cut to the longest
    """

    jobs: tuple[TraceJob, ...]
    start: int
    end: int
    outside: int = 0
    never_started: int = 0
    capped: int = 0


def window(
    trace: Trace, *, from_day: float | None = None, to_day: float | None = None, max_days: float | None = None
) -> Window:
    """The jobs submitted in [from_day, to_day) that ran, cut to max_days.

    A job waits only for parents that are in the window themselves: those left out are taken as done.
    Raises  UsageError when the days make no window, or one without jobs
    """
    if from_day is not None and to_day is not None and to_day <= from_day:
        raise UsageError(f"day {from_day:g} to day {to_day:g} is no window: let the second be later than the first")
    if max_days is not None and max_days * DAY < 1:
        raise UsageError(f"run times cannot be cut to {max_days:g} days: give a number above 0")
    start = None if from_day is None else round(from_day * DAY)
    end = None if to_day is None else round(to_day * DAY)
    inside = submitted_in(trace.jobs, from_day, to_day)
    longest = None if max_days is None else round(max_days * DAY)
    kept: list[TraceJob] = []
    capped = 0
    for traced in inside:
        if traced.duration_s is None:
            continue
        if longest is not None and traced.duration_s > longest:
            capped += 1
            kept.append(msgspec.structs.replace(traced, duration_s=longest))
        else:
            kept.append(traced)
    if not kept:
        first, last = (min(job.submit_s for job in trace.jobs), max(job.submit_s for job in trace.jobs))
        raise UsageError(
            f"no job that ran was submitted in these days: the trace has {len(trace.jobs)} jobs, submitted on days"
            f" {first / DAY:.1f} to {last / DAY:.1f}; choose --from-day and --to-day among them"
        )
    kept.sort(key=lambda traced: (traced.submit_s, traced.job.id))
    names = {traced.job.id for traced in kept}
    return Window(
        jobs=tuple(_without_strangers(traced, names) for traced in kept),
        start=kept[0].submit_s if start is None else start,
        end=kept[-1].submit_s if end is None else end,
        outside=len(trace.jobs) - len(inside),
        never_started=len(inside) - len(kept),
        capped=capped,
    )


def submitted_in(jobs: Sequence[TraceJob], from_day: float | None, to_day: float | None) -> list[TraceJob]:
    """The jobs submitted in [from_day, to_day), whether they ever ran or not; None is no bound."""
    start = None if from_day is None else round(from_day * DAY)
    end = None if to_day is None else round(to_day * DAY)
    return [
        traced for traced in jobs
        if (start is None or traced.submit_s >= start) and (end is None or traced.submit_s < end)
    ]  # fmt: skip


def _without_strangers(traced: TraceJob, names: set[str]) -> TraceJob:
    after = tuple(
        what for what in traced.job.after if what.relation in {"singleton", "condition"} or what.name in names
    )
    if after == traced.job.after:
        return traced
    return msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, after=after))


def inflated(
    jobs: Sequence[TraceJob], *, gpus: int, share: float, order: Callable[[int], Sequence[int]]
) -> tuple[Job, ...]:
    """Jobs one after the other, shuffled, until together they ask for `share` of all GPUs.

    Shape   gpus: of the cluster. order: asked for n, gives the numbers 0 to n-1 in an order of chance. When all jobs of
            the trace do not ask for enough, they are drawn again; the second time a job's id ends in ~2, and so on.
            Jobs that never started take part: here nothing ends. So nobody waits for another either
    Raises  UsageError when the share can never be reached
    Source  the method of Weng et al., USENIX ATC 2023: arrivals beyond capacity, without departures
    """
    if not (0 < share <= MOST_SHARE and gpus > 0):
        raise UsageError(
            f"{share:g} of {gpus} GPUs cannot be asked for: give a share above 0, {MOST_SHARE} at most, and nodes with"
            " GPUs"
        )
    target = round(share * gpus * WHOLE)
    if not any(traced.job.gpus for traced in jobs):
        raise UsageError("no job of the trace asks for a GPU, so they never ask for a share of all: take another trace")
    mark = "~"
    while any(mark in traced.job.id for traced in jobs):
        mark += "~"
    found: list[Job] = []
    asked = 0
    round_ = 0
    while asked < target:
        round_ += 1
        for at in order(len(jobs)):
            job = jobs[at].job
            asked += job.gpus * job.gpu_milli
            found.append(
                msgspec.structs.replace(job, id=job.id if round_ == 1 else f"{job.id}{mark}{round_}", after=())
            )
            if asked >= target:
                break
    return tuple(found)
