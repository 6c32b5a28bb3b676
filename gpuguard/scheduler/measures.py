"""How the cluster is used, as it goes: sums by hour, day and month that each pass and each end adds to.

Theory. What lasts (queued, allocated) is an integral: the value of the last pass times the time until this one, so what
is between two passes is not lost. How idle GPUs lie costs a look at all nodes, so it is seen now and then. Everything
goes into the hour that is open; an hour that is over is added to its day and its month. So many of each are kept.

What waits for long is told once: from the time at which the queued share has been above the site's limit for an hour,
until it has been well below for as long.
"""

from collections.abc import Mapping, Sequence
from itertools import compress

import msgspec
import numpy as np

from gpuguard.scheduler import months
from gpuguard.scheduler.cluster import Cluster, Ints
from gpuguard.scheduler.plan import Alert
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.scheduler.windows import Window

SLOTS = (8, 16, 32, 64, 128)
"""Sizes of job of which it is counted how many would start."""

LOOK = 15 * MINUTE
HOURS, DAYS, MONTHS = 48, 62, 36
"""So many windows are kept."""

LONG = HOUR
"""A queued share above the limit for so long is told."""
WELL = 0.8
"""It is over when the share has been below this part of the limit."""
FEW = 10
"""Of fewer jobs no share is told: two jobs of which one waits are no trouble."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """How the idle GPUs lie at an instant.

    Shape   idle: GPUs that could be given. stranded: those of them on nodes that are partly used. out: GPUs that are
            bad or of nodes that take no work. slots: of each size of SLOTS how many jobs would start. near: the same
            where a job keeps to one rack, or to one pod where no rack is as large
    """

    idle: int
    stranded: int
    out: int
    slots: tuple[int, ...]
    near: tuple[int, ...]

    @property
    def fragmented_share(self) -> float | None:
        """None where no GPU is idle."""
        return self.stranded / self.idle if self.idle else None


def look(cluster: Cluster) -> Look:
    """How the idle GPUs lie now."""
    usable = cluster.usable
    count: Ints = np.where(usable, cluster.count, 0)
    partly = count < cluster.size
    whole = (count >= cluster.most) & (cluster.most > 0)
    good = sum(map(int.bit_count, compress(cluster.good, usable.tolist())))
    by_rack = np.bincount(cluster.rack[whole], minlength=len(cluster.by_rack)) if len(count) else np.zeros(0)
    by_pod = np.bincount(cluster.pod[whole], minlength=len(cluster.by_pod)) if len(count) else np.zeros(0)
    slots = slots_of(count, cluster.most)
    near = []
    for size, jobs in zip(SLOTS, slots, strict=True):
        if size <= cluster.most or not cluster.most:
            near.append(jobs)
        else:
            nodes = -(-size // cluster.most)
            rooms = by_rack if not cluster.has_racks or nodes <= cluster.by_rack.shape[1] else by_pod
            near.append(int((rooms // nodes).sum()))
    return Look(
        idle=int(count.sum()), stranded=int(count[partly].sum()), out=cluster.gpus - good, slots=slots, near=tuple(near)
    )


def slots_of(free: Ints, most: int) -> tuple[int, ...]:
    """How many jobs of each size of SLOTS would start, with no wish for nearness.

    Shape   free: GPUs that are free on each node. most: GPUs of the greatest node, of which larger jobs take whole ones
    """
    if not most:
        return (0,) * len(SLOTS)
    whole = int(np.count_nonzero(free >= most))
    return tuple(int((free // size).sum()) if size <= most else whole // -(-size // most) for size in SLOTS)


class Measures(msgspec.Struct, kw_only=True):
    """The sums, by number of the hour, day and month in UTC; written by the core alone, and readable as JSON.

    Shape   epoch: the UTC second of the clock's 0. at to out: the last sample. above, below: since when the queued
            share has been beyond the limit, or well below
    """

    epoch: int = 0
    hours: dict[int, Window] = {}
    days: dict[int, Window] = {}
    months: dict[int, Window] = {}
    at: int | None = None
    hour: int = 0
    gpus: int = 0
    allocated: int = 0
    out: int = 0
    queued: int = 0
    running: int = 0
    due: int = 0
    above: int | None = None
    below: int | None = None
    warned: bool = False

    def submitted(self, at: int) -> None:
        self._open(at).submitted += 1

    def ended(self, record: Record) -> None:
        """One job has ended."""
        self._open(record.ended or 0).fold(record)

    def sample(self, now: int, cluster: Cluster, allocated: int, queued: int, running: int) -> None:
        """What a pass left behind.

        Shape   allocated: thousandths of GPUs that jobs hold
        """
        if self.at is not None and now > self.at:
            self._lasted(self.at, now)
        if now >= self.due:
            self._look(now, cluster)
        self.at, self.allocated, self.queued, self.running = now, allocated, queued, running

    def _lasted(self, begin: int, end: int) -> None:
        """The values of the last sample held from `begin` to `end`."""
        # What is beyond the hours that are kept goes into the first of these as a whole.
        while begin < end:
            hour = (self.epoch + begin) // HOUR
            until = min(end, (hour + 1) * HOUR - self.epoch)
            if end - until > HOURS * HOUR:
                until += (end - until - HOURS * HOUR) // HOUR * HOUR
            window, passed = self._open(begin), until - begin
            window.seconds += passed
            window.gpus += self.gpus * WHOLE * passed
            window.allocated += self.allocated * passed
            window.out += self.out * WHOLE * passed
            window.queued += self.queued * passed
            window.running += self.running * passed
            begin = until

    def _look(self, now: int, cluster: Cluster) -> None:
        self.due = now + LOOK
        found = look(cluster)
        self.gpus, self.out = cluster.gpus, found.out
        window = self._open(now)
        window.looks += 1
        window.idle += found.idle * WHOLE
        window.stranded += found.stranded * WHOLE
        window.slots = _plus(window.slots, found.slots)
        window.near = _plus(window.near, found.near)

    def warn(self, now: int, limit: float) -> Alert | None:
        """Once, when the queued share has been above the limit for long."""
        jobs = self.queued + self.running
        share = self.queued / jobs if jobs else 0.0
        high = share > limit and jobs >= FEW
        low = share < limit * WELL or jobs < FEW
        self.above = (now if self.above is None else self.above) if high else None
        self.below = (now if self.below is None else self.below) if low else None
        if self.warned:
            if self.below is not None and now - self.below >= LONG:
                self.warned = False
            return None
        if self.above is None or now - self.above < LONG:
            return None
        self.warned = True
        why = (
            f"{share:.0%} of {jobs} jobs have queued for over {LONG // MINUTE} min (more than {limit:.0%}): "
            "see by queue and size who waits, then put sizes, walltimes or shares right"
        )
        return Alert(rule="queued_share", about="queue", why=why)

    # -- windows ------------------------------------------------------------------------------------------------------

    def _open(self, at: int) -> Window:
        """The window of the hour that is open; what is told late is counted there too."""
        hour = (self.epoch + at) // HOUR
        if self.hours and hour <= self.hour:
            return self.hours[self.hour]
        if self.hours:
            self._close()
        self.hour = hour
        window = self.hours[hour] = Window()
        _trim(self.hours, HOURS)
        return window

    def _close(self) -> None:
        window, at = self.hours[self.hour], self.hour * HOUR
        self.days.setdefault(at // DAY, Window()).merge(window)
        self.months.setdefault(months.month_of(at), Window()).merge(window)
        _trim(self.days, DAYS)
        _trim(self.months, MONTHS)

    def last(self, hours: int) -> Window:
        """The last so many hours that anything happened in, the open one among them."""
        return merged([self.hours[hour] for hour in list(self.hours)[-hours:]])

    def day(self, at: int) -> Window:
        """The day in UTC that the instant lies in."""
        return self._with_open(self.days, (self.epoch + at) // DAY, self.hour * HOUR // DAY)

    def month(self, at: int) -> Window:
        """The month in UTC that the instant lies in."""
        return self._with_open(self.months, months.month_of(self.epoch + at), months.month_of(self.hour * HOUR))

    def _with_open(self, closed: Mapping[int, Window], asked: int, open_in: int) -> Window:
        parts = [closed[asked]] if asked in closed else []
        if self.hours and asked == open_in:
            parts.append(self.hours[self.hour])
        return merged(parts)


def merged(windows: Sequence[Window]) -> Window:
    """All of them as one."""
    whole = Window()
    for window in windows:
        whole.merge(window)
    return whole


def _trim(windows: dict[int, Window], most: int) -> None:
    while len(windows) > most:
        del windows[next(iter(windows))]


def _plus(sums: list[int], more: Sequence[int]) -> list[int]:
    if not sums:
        return list(more)
    return [one + other for one, other in zip(sums, more, strict=True)]
