"""When each waiting job starts, as far as can be said now.

Theory. The first few have reservations, which the pass keeps. Behind them the plan goes on, in order, on a timeline of
its own: `start` is from walltimes and the order as it is, so the job starts then at the latest if nobody comes who
goes before it, no node fails, and no limit of a queue or pool stands against it beyond what is counted here. `expected`
is the same plan with run times as the site has seen them. Beyond the jobs that are planned, both are a division: GPU
time that is promised and queued before the job, over the GPUs of its pool.
A job that waits for others is told when these should have ended, which is no plan of its own place.

Nothing of the state is written.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from gpuguard.scheduler.cluster import NEVER
from gpuguard.scheduler.queue import UNBOUNDED, Entry
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.standing import counted
from gpuguard.scheduler.state import State
from gpuguard.scheduler.timeline import Timeline

How = Literal["held", "reserved", "planned", "parents", "throughput", "unknown"]


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Shape: start: at the latest by walltimes; expected: by run times seen; None: nobody can say. how: found by what.

    Shape   how: held (room is kept), reserved (the pass keeps it), planned (behind the reservations), parents (when
            what it waits for should have ended), throughput (a division, no plan), unknown (it waits for a word, for a
            job without a walltime, or for nodes that are out)
    Units   instants in seconds
    """

    start: int | None
    expected: int | None
    how: How


def forecast(state: State, limit: int = 1000) -> Mapping[str, Forecast]:
    """Of every job that waits, in the order of the queue, then those that wait for others.

    Shape   limit: so many of the first are planned
    """
    queue = sorted(state.queue.entries.values(), key=lambda entry: counted(state, entry))
    latest = dict(_Plan(state, learned=False).starts(queue[:limit]))
    likely = dict(_Plan(state, learned=True).starts(queue[:limit]))
    found: dict[str, Forecast] = {}
    for entry in queue[:limit]:
        job = entry.job.id
        start, how = latest[job]
        expected, _ = likely[job]
        if start is not None:
            expected = start if expected is None else min(start, expected)
        found[job] = Forecast(start=start, expected=expected, how=how)
    found.update(_beyond(state, queue, limit))
    found.update(_parents(state, found, limit))
    return found


class _Plan:
    """One walk down the queue."""

    def __init__(self, state: State, *, learned: bool) -> None:
        self._state = state
        self._learned = learned
        self._ratios: dict[str, float] = {}
        self._time = Timeline(state.cluster, state.now, self._end_of)
        self._by_queue: dict[str, list[tuple[int, int]]] = {}
        for run in state.running.values():
            if state.settings.queues[run.job.queue].gpus is not None:
                self._by_queue.setdefault(run.job.queue, []).append((self._end_of(run.job.id, run.end), run.gpus))

    def starts(self, entries: list[Entry]) -> Iterator[tuple[str, tuple[int | None, How]]]:
        """Of each of these, which are in order, its start and how that was found."""
        state = self._state
        reserved = {job: booking for _, job, booking in state.reserved}
        if self._learned:
            # What runs shorter moves all but the places of those that wait for others.
            reserved = {job: booking for job, booking in reserved.items() if job not in state.queue}
        for booking in reserved.values():
            self._time.book(booking)
        for entry in entries:
            job = entry.job.id
            if job in state.holes:
                yield job, (self._held(entry), "held")
            elif job in reserved:
                yield job, (max(reserved[job].start, state.now), "reserved")
            else:
                start = self._plan(entry)
                yield job, (start, "unknown" if start is None else "planned")

    def _end_of(self, job: str, end: int) -> int:
        """When a job that runs ends: as promised, or after the part of what is left that jobs of its queue use."""
        run = self._state.running[job]
        if not self._learned or end >= NEVER or run.signalled is not None:
            return end
        now = self._state.now
        return now + max(1, round((end - now) * self._ratio(run.job.queue)))

    def _ratio(self, queue: str) -> float:
        if not self._learned:
            return 1.0
        ratio = self._ratios.get(queue)
        if ratio is None:
            ratio = self._ratios[queue] = self._state.learned.ratio(queue, self._state.now)
        return ratio

    def _held(self, entry: Entry) -> int:
        """Once those have left who make room."""
        state = self._state
        leaving = [state.running[job].end for job in state.holes[entry.job.id].hole.leaving if job in state.running]
        return max([state.now, *leaving])

    def _plan(self, entry: Entry) -> int | None:
        state, terms = self._state, entry.shape.terms
        # The same rounding up of lengths as the pass uses, so that one plan goes on where the other ends.
        span = max(1, round(entry.span * self._ratio(entry.job.queue))) if entry.length < UNBOUNDED else UNBOUNDED
        least = self._least(entry)
        if least is None:
            return None
        found = self._time.plan(terms.chunks, span, least)
        cluster = state.cluster
        roomed = entry.shape.nodes > 1 and terms.within != "any" and state.settings.topology and cluster.has_racks
        if found is not None and roomed:
            near = self._time.plan(
                terms.chunks, span, least, cluster.by_rack if terms.within == "rack" else cluster.by_pod
            )
            gathers = state.placement.gathers(entry, state.now)
            if terms.required or (near is not None and (gathers or near.start <= found.start)):
                found = near
        if found is None:
            return None
        self._time.take(found)
        if terms.limit:
            line = self._by_queue.setdefault(entry.job.queue, [])
            line.append((found.end, entry.gpus * entry.job.gpu_milli))
        return found.start

    def _least(self, entry: Entry) -> int | None:
        """From when on its queue may hold so many more GPUs."""
        state = self._state
        cap = state.settings.queues[entry.job.queue].gpus
        if not entry.shape.terms.limit or cap is None:
            return state.now
        line = self._by_queue.get(entry.job.queue, [])
        over = sum(gpus for _, gpus in line) + entry.gpus * entry.job.gpu_milli - cap * WHOLE
        at = state.now
        for end, gpus in sorted(line):
            if over <= 0:
                break
            over -= gpus
            at = max(at, end)
        return at if over <= 0 and at < NEVER else None


def _beyond(state: State, queue: list[Entry], limit: int) -> Iterator[tuple[str, Forecast]]:
    """Those behind the planned ones: GPU time before them over the GPUs there are."""
    if len(queue) <= limit:
        return
    cluster, now = state.cluster, state.now
    work: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    unbounded: dict[str, None] = {}

    def add(pool: str, gpus: float, seconds: int, queue: str) -> None:
        if seconds >= UNBOUNDED - now:
            unbounded[pool] = None
            return
        sums = work.setdefault(pool, [0.0, 0.0])
        sums[0] += gpus * seconds
        sums[1] += gpus * seconds * ratios[queue]

    ratios = {queue: state.learned.ratio(queue, now) for queue in state.settings.queues}
    for run in state.running.values():
        add(run.entry.shape.terms.chunks[0].ask.pool, run.gpus / WHOLE, max(0, run.end - now), run.job.queue)
    for number, entry in enumerate(queue):
        pool = entry.shape.terms.chunks[0].ask.pool
        if number >= limit:
            if pool not in sizes:
                able = cluster.eligible((), pool) & cluster.usable
                sizes[pool] = int(cluster.size[np.nonzero(able)[0]].sum())
            if not sizes[pool] or pool in unbounded:
                yield entry.job.id, Forecast(start=None, expected=None, how="unknown")
            else:
                latest, likely = (now + round(sum_ / sizes[pool]) for sum_ in work.get(pool, [0.0, 0.0]))
                yield entry.job.id, Forecast(start=latest, expected=likely, how="throughput")
        add(pool, entry.gpus * entry.job.gpu_milli / WHOLE, entry.length, entry.job.queue)


def _parents(state: State, found: Mapping[str, Forecast], limit: int) -> Iterator[tuple[str, Forecast]]:
    """Those that wait for others: when the last of these should have ended."""
    now = state.now

    def latest(job: str) -> int | None:
        return end(job, learned=False)

    def likely(job: str) -> int | None:
        return end(job, learned=True)

    def end(job: str, *, learned: bool) -> int | None:
        run = state.running.get(job)
        if run is not None:
            ratio = state.learned.ratio(run.job.queue, now) if learned else 1.0
            return None if run.end >= NEVER else now + round(max(0, run.end - now) * ratio)
        told, entry = found.get(job), state.queue.entries.get(job)
        if told is None or entry is None or entry.length >= UNBOUNDED:
            return None
        start = told.expected if learned else told.start
        ratio = state.learned.ratio(entry.job.queue, now) if learned else 1.0
        return None if start is None else start + round(entry.length * ratio)

    reserved = {job: booking.start for _, job, booking in state.reserved}
    for number, job in enumerate(state.waiting):
        if number >= limit:
            yield job, Forecast(start=None, expected=None, how="unknown")
            continue
        start = state.dependencies.expected(job, latest)
        if start is None:
            yield job, Forecast(start=None, expected=None, how="unknown")
            continue
        expected = state.dependencies.expected(job, likely)
        start = max(now, start, reserved.get(job, 0))
        how: How = "reserved" if job in reserved else "parents"
        yield job, Forecast(start=start, expected=min(start, max(now, expected or start)), how=how)
