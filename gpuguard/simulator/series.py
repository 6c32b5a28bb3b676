"""What a run looked like over time, as arrays that a picture is drawn from.

Units   seconds on the run's clock; GPUs; shares from 0 to 1
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuguard.scheduler.measures import SLOTS
from gpuguard.simulator.course import Course, Sample

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Means over equal spans of time.

    Shape   edges: of the spans, one more than there are. busy: share of all GPUs that jobs held. queued: jobs. slots:
            a row for each of SLOTS. NaN: nothing was sampled in the span
    """

    edges: Floats
    busy: Floats
    queued: Floats
    slots: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the jobs waited that were submitted in each span, and each wide job by itself.

    Shape   median, p95: of jobs of 1 to 8 GPUs by span, NaN where none was submitted. wide_at, wide: submit and wait of
            each job of 9 GPUs or more
    """

    edges: Floats
    median: Floats
    p95: Floats
    wide_at: Floats
    wide: Floats


def series(course: Course, spans: int = 400) -> Series:
    """The run from its start to its last end, cut into spans."""
    edges = np.linspace(course.start, max(course.last, course.start + 1), spans + 1)
    busy = _means_of_levels(course, edges) / max(1, course.capacity)
    counted = [sample for sample in course.samples if sample.slots]
    slots = [_means(counted, _slot(at), edges) for at in range(len(SLOTS))]
    queued = _means(course.samples, lambda sample: sample.queued, edges)
    return Series(edges=edges, busy=busy, queued=queued, slots=np.array(slots))


def waits(course: Course, spans: int = 60) -> Waits:
    """The waits of the jobs that started, by when they were submitted."""
    edges = np.linspace(course.start, max(course.end, course.start + 1), spans + 1)
    told = [(job.submit, job.first_start - job.submit, job.gpus) for job in course.jobs if job.first_start is not None]
    submit, wait, gpus = np.array(told, dtype=np.float64).reshape(-1, 3).T
    small = (gpus >= 1) & (gpus <= 8)
    median, p95 = np.full(spans, np.nan), np.full(spans, np.nan)
    where = np.clip(np.searchsorted(edges, submit, side="right") - 1, 0, spans - 1)
    order = np.argsort(where[small], kind="stable")
    sorted_waits, sorted_where = wait[small][order], where[small][order]
    for span in np.unique(sorted_where):
        first, last = np.searchsorted(sorted_where, (span, span + 1))
        median[span], p95[span] = np.percentile(sorted_waits[first:last], (50, 95))
    wide = gpus >= 9
    return Waits(edges=edges, median=median, p95=p95, wide_at=submit[wide], wide=wait[wide])


def _means_of_levels(course: Course, edges: Floats) -> Floats:
    """The mean of the GPUs in use in each span, exactly: the integral is a line between two changes."""
    held = [(segment.start, segment.end, gpus) for _, segment, gpus in course.held()]
    starts, ends, gpus = np.array(held, dtype=np.float64).reshape(-1, 3).T
    times = np.concatenate((starts, ends, edges[:1], edges[-1:]))
    steps = np.concatenate((gpus, -gpus, (0.0, 0.0)))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(steps[order])
    integral = np.concatenate(((0.0,), np.cumsum(level[:-1] * np.diff(times))))
    return _spans(times, integral, edges)


def _means(samples: list[Sample], of: Callable[[Sample], float], edges: Floats) -> Floats:
    """The mean in each span of what samples tell, each of which holds until the next, the last until the end."""
    if not samples:
        return np.full(len(edges) - 1, np.nan)
    times = np.array([*(sample.at for sample in samples), max(edges[-1], samples[-1].at)], dtype=np.float64)
    level = np.array([of(sample) for sample in samples], dtype=np.float64)
    integral = np.concatenate(((0.0,), np.cumsum(level * np.diff(times))))
    means = _spans(times, integral, edges)
    means[edges[1:] <= times[0]] = np.nan
    return means


def _slot(at: int) -> Callable[[Sample], float]:
    return lambda sample: sample.slots[at]


def _spans(times: Floats, integral: Floats, edges: Floats) -> Floats:
    means: Floats = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return means
