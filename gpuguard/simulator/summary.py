"""One run in figures: the object that `simulate --json` prints.

Units   seconds; shares from 0 to 1; GPU-seconds where GPUs are counted. A figure that nothing was measured for is None
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gpuguard.scheduler.measures import SLOTS
from gpuguard.simulator.course import Course, JobRecord, Sample

GROUPS: dict[str, Callable[[int], bool]] = {
    "1-8": lambda gpus: 1 <= gpus <= 8,
    "9+": lambda gpus: gpus >= 9,
    "64+": lambda gpus: gpus >= 64,
}
"""Which jobs a row of waits is about, by their GPUs. Those of 64 and more are in two; those without GPUs in none."""


def summary(course: Course, *, cycles_ms: Sequence[float], wall_s: float, peak_rss_mib: float) -> dict[str, Any]:
    """The object of a run.

    Shape   wait_s: from submit to the first start, over all jobs that started. utilisation: GPU-seconds that jobs held,
            over capacity, in the submit window; for a window of no length (all jobs at once) over the whole run.
            makespan_s: from the window's start to the end of the last job. fragmentation.slots: jobs of each size that
            would start, averaged over the time of the window. preempted_share: of the jobs that started, those that
            were preempted at least once. queued_share: queued jobs of all that are queued or run, averaged likewise.
            cycles: how long the core thought, in milliseconds
    """
    started = [job for job in course.jobs if job.first_start is not None]
    window = measured_window(course)
    return {
        "jobs": len(course.jobs),
        "finished": sum(job.end is not None for job in course.jobs),
        "wait_s": waits(started),
        "wait_s_by_gpus": {
            name: waits(job for job in started if belongs(job.gpus)) for name, belongs in GROUPS.items()
        },
        "utilisation": _rounded(utilisation(course, *window), 6),
        "makespan_s": max(0, course.last - course.start) if started else None,
        "fragmentation": {"slots": _slots(course, *window)},
        "preempted_share": _share(sum(_was_preempted(job) for job in started), len(started)),
        "queued_share": _rounded(_average(course.samples, _queued, *window), 6),
        "cycles": cycles(cycles_ms),
        "wall_s": round(wall_s, 3),
        "peak_rss_mib": round(peak_rss_mib, 1),
    }


def waits(jobs: Iterable[JobRecord]) -> dict[str, float | int | None]:
    """Mean, median, 95th percentile (between two jobs: on the line from one to the other) and longest wait."""
    told = np.array([job.first_start - job.submit for job in jobs if job.first_start is not None], dtype=np.float64)
    if not told.size:
        return {"mean": None, "median": None, "p95": None, "max": None}
    median, p95 = (round(float(value), 1) for value in np.percentile(told, (50, 95)))
    return {"mean": round(float(told.mean()), 1), "median": median, "p95": p95, "max": int(told.max())}


def utilisation(course: Course, start: int, end: int) -> float | None:
    """Share of the cluster's GPU-seconds in [start, end) that jobs held; None where there were none to hold."""
    if (most := course.capacity * (end - start)) <= 0:
        return None
    return (
        math.fsum(
            max(0, min(segment.end, end) - max(segment.start, start)) * gpus for _, segment, gpus in course.held()
        )
        / most
    )


def measured_window(course: Course) -> tuple[int, int]:
    """What shares are taken over: the submit window, or the whole run where that has no length."""
    return course.start, course.end if course.end > course.start else course.last


def _was_preempted(job: JobRecord) -> bool:
    return any(segment.how == "preempted" for segment in job.segments)


def _queued(sample: Sample) -> float:
    """An idle cluster has nobody who waits."""
    return sample.queued / max(1, sample.queued + sample.running)


def _slots(course: Course, start: int, end: int) -> dict[str, float | None]:
    counted = [sample for sample in course.samples if sample.slots]
    return {str(size): _rounded(_average(counted, _slot(at), start, end), 3) for at, size in enumerate(SLOTS)}


def _slot(at: int) -> Callable[[Sample], float]:
    return lambda sample: sample.slots[at]


def _average(samples: Sequence[Sample], of: Callable[[Sample], float], start: int, end: int) -> float | None:
    """The mean over the time in [start, end) for which something was sampled; each sample holds until the next."""
    total = 0.0
    length = 0
    for at, sample in enumerate(samples):
        until = samples[at + 1].at if at + 1 < len(samples) else end
        held = min(until, end) - max(sample.at, start)
        if held > 0:
            total += of(sample) * held
            length += held
    return total / length if length else None


def cycles(taken: Sequence[float]) -> dict[str, float | int | None]:
    """How many passes of the core there were, and how long they took, in milliseconds."""
    if not taken:
        return {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None}
    p50, p99 = np.percentile(np.asarray(taken, dtype=np.float64), (50, 99))
    return {
        "count": len(taken),
        "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3), "max_ms": round(max(taken), 3),
    }  # fmt: skip


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
