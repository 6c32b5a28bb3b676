"""What a stretch of time came to, in sums: two together are a third, so an hour, a day and a month are of one kind.

Units   GPU time in thousandths of a GPU times seconds; instants and waits in seconds
"""

from collections.abc import Iterable, Mapping

import msgspec

from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE

SIZES: tuple[tuple[str, int], ...] = (("0", 0), ("1-8", 8), ("9-63", 63), ("64+", 1 << 60))
"""Jobs by their GPUs: the name of a class and the most that are in it."""

STEPS = 24
"""Durations are counted by doublings of a minute: up to 1, 2, 4, ... minutes, the last without end (8 years)."""


def size_of(milli: int) -> str:
    """The class of a job that holds so many thousandths of a GPU."""
    gpus = -(-milli // WHOLE)
    return next(name for name, most in SIZES if gpus <= most)


class Spread(msgspec.Struct, kw_only=True):
    """Durations: how many, their sum, the longest, and how many by doublings of a minute."""

    count: int = 0
    total: int = 0
    most: int = 0
    steps: list[int] = []

    def add(self, seconds: int) -> None:
        seconds = max(0, seconds)
        self.count += 1
        self.total += seconds
        self.most = max(self.most, seconds)
        step = min(STEPS - 1, ((seconds + 59) // 60 - 1).bit_length() if seconds > 60 else 0)
        if step >= len(self.steps):
            self.steps.extend([0] * (step + 1 - len(self.steps)))
        self.steps[step] += 1

    def merge(self, other: "Spread") -> None:
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)
        self.steps = _added(self.steps, other.steps)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def below(self, share: float) -> int | None:
        """The least of 1, 2, 4, ... minutes within which at least this share of them is; at most the longest of all."""
        left = share * self.count
        if not self.count:
            return None
        for step, count in enumerate(self.steps):
            left -= count
            if left <= 1e-9:
                return min(self.most, 60 << step)
        return self.most


class Window(msgspec.Struct, kw_only=True):
    """Sums over a stretch of time.

    Shape   seconds: sampled. gpus, allocated, out: GPU time there was, that jobs held, that no job could have had.
            queued, running: jobs times seconds. looks: so often it was looked how the idle GPUs lie; idle, stranded:
            thousandths of idle GPUs seen in all looks, and of those on nodes that are partly used. slots, near: of each
            size how many jobs would have started, in all looks, without and with the rule that they keep to one rack.
            waits: by queue and class of size. preparing, warming: from places to the program's begin, and from that to
            its first progress. used to lost_preemption: as in the records of jobs that have ended. apart: of what was
            used, by how far the nodes were from each other
    """

    seconds: int = 0
    gpus: int = 0
    allocated: int = 0
    out: int = 0
    queued: int = 0
    running: int = 0
    looks: int = 0
    idle: int = 0
    stranded: int = 0
    slots: list[int] = []
    near: list[int] = []
    submitted: int = 0
    ended: dict[str, int] = {}
    ran: int = 0
    preempted: int = 0
    waits: dict[str, dict[str, Spread]] = {}
    preparing: Spread = msgspec.field(default_factory=Spread)
    warming: Spread = msgspec.field(default_factory=Spread)
    used: int = 0
    unproductive: int = 0
    lost_failure: int = 0
    lost_preemption: int = 0
    apart: dict[str, int] = {}

    def fold(self, record: Record) -> None:
        """One job has ended."""
        self.ended[record.outcome] = self.ended.get(record.outcome, 0) + 1
        wait = record.wait
        if wait is not None:
            self.ran += 1
            self.preempted += record.preempted > 0
            self.waits.setdefault(record.queue, {}).setdefault(size_of(record.gpus), Spread()).add(wait)
        for run in record.stretches:
            if run.prepared is not None:
                self.preparing.add(run.prepared - run.allocated)
            if run.progressed is not None:
                self.warming.add(run.progressed - (run.allocated if run.prepared is None else run.prepared))
        self.used += record.used
        self.unproductive += record.idle
        self.lost_failure += record.lost_failure
        self.lost_preemption += record.lost_preemption
        for network, gpu_time in record.apart.items():
            self.apart[network] = self.apart.get(network, 0) + gpu_time

    def merge(self, other: "Window") -> None:
        """The other's time is part of this one's."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slots = _added(self.slots, other.slots)
        self.near = _added(self.near, other.near)
        self.preparing.merge(other.preparing)
        self.warming.merge(other.warming)
        for outcome, count in other.ended.items():
            self.ended[outcome] = self.ended.get(outcome, 0) + count
        for network, gpu_time in other.apart.items():
            self.apart[network] = self.apart.get(network, 0) + gpu_time
        for queue, sizes in other.waits.items():
            mine = self.waits.setdefault(queue, {})
            for size, spread in sizes.items():
                mine.setdefault(size, Spread()).merge(spread)

    # -- read ---------------------------------------------------------------------------------------------------------

    @property
    def idle_share(self) -> float | None:
        """Of the GPU time that jobs could have had, the part that none had."""
        able = self.gpus - self.out
        return (able - self.allocated) / able if able > 0 else None

    @property
    def queued_share(self) -> float | None:
        """Queued jobs of all that queue or run."""
        jobs = self.queued + self.running
        return self.queued / jobs if jobs else None

    @property
    def fragmented_share(self) -> float | None:
        """Idle GPUs on partly used nodes, of all that are idle."""
        return self.stranded / self.idle if self.idle else None

    @property
    def preempted_share(self) -> float | None:
        """Of the jobs that ran and have ended, those that made room at least once."""
        return self.preempted / self.ran if self.ran else None


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """Effective power: cards x time x parallel x useful, each but the first a share.

    Shape   cards: GPUs there were, on average. time: the part of their time in which a job had them. parallel: what is
            left after waiting for each other over a far network. useful: of the time that jobs held, what was kept.
            None: nothing was measured for it
    """

    cards: float | None
    time: float | None
    parallel: float | None
    useful: float | None

    @property
    def effective(self) -> float | None:
        """In GPUs that do nothing but useful work."""
        if self.cards is None or self.time is None or self.parallel is None or self.useful is None:
            return None
        return self.cards * self.time * self.parallel * self.useful


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Where the GPU time of the jobs that have ended went, in GPU-seconds; the five add up to all that they held."""

    used: float
    failure: float
    preemption: float
    idling: float
    distance: float


def goodput(window: Window, losses: Mapping[str, float] | None = None) -> Goodput:
    """Where GPU time went.

    Shape   losses: by network (rack, pod, core) the part of its speed that a job loses there, as somebody measured it;
            nothing told is nothing lost
    """
    distance = sum(window.apart.get(network, 0) * loss for network, loss in (losses or {}).items())
    return Goodput(
        used=(window.used - distance) / WHOLE, failure=window.lost_failure / WHOLE,
        preemption=window.lost_preemption / WHOLE, idling=window.unproductive / WHOLE, distance=distance / WHOLE,
    )  # fmt: skip


def power(window: Window, losses: Mapping[str, float] | None = None) -> Power:
    """What the cluster's cards came to in this time.

    Source  the product of cards, time utilisation, parallel efficiency and useful share
    """
    parts = goodput(window, losses)
    kept = parts.used + parts.distance
    held = kept + parts.failure + parts.preemption + parts.idling
    return Power(
        cards=window.gpus / WHOLE / window.seconds if window.seconds else None,
        time=window.allocated / window.gpus if window.gpus else None,
        parallel=parts.used / kept if kept else None,
        useful=kept / held if held else None,
    )


def _added(one: Iterable[int], other: Iterable[int]) -> list[int]:
    mine, theirs = list(one), list(other)
    if len(mine) < len(theirs):
        mine, theirs = theirs, mine
    return [value + (theirs[at] if at < len(theirs) else 0) for at, value in enumerate(mine)]


_SUMS = tuple(name for name, kind in Window.__annotations__.items() if kind is int)  # every sum that is a plain number
