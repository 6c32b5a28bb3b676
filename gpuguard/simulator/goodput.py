"""Where the cluster's GPU time went, and how much computing power came of it.

All GPU-seconds of a window are one of: used, lost in one of the ways below, free, or out (could not be given). The
losses of a job are those of its segments, each spread evenly over the segment where the window cuts it.

Units   GPU-seconds; shares from 0 to 1; effective power in GPUs
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.scheduler.request import WHOLE
from gpuguard.simulator.course import Course, Loss, Segment

Way = Literal["failure", "preemption", "idling", "far", "sharing", "saving", "data"]
WAYS: tuple[Way, ...] = ("failure", "preemption", "idling", "far", "sharing", "saving", "data")

STANDING: tuple[Loss, ...] = ("data", "failure")
"""For these a job does nothing at all; for the others it is slow."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   capacity = used + all of `lost` + free + out. used: work that was kept, at the job's own use of its GPUs.
    lost: failure and preemption are work that had to be done again, and what was held on dead nodes; idling what jobs
    held and did not use; far, sharing and saving what they were slowed down by; data what they waited for it. time: was
    anything running? parallel: did it hold itself up? useful: was it of use? effective: GPUs times these three
    """

    capacity: float
    used: float
    lost: Mapping[Way, float]
    free: float
    out: float
    gpus: int
    time: float
    parallel: float
    useful: float

    @property
    def effective(self) -> float:
        """Computing power as so many GPUs that work all the time at full speed for what is kept.

        Source  "cards x time utilisation x parallel efficiency x useful share" (the second text, on what effective
                compute is)
        """
        return self.gpus * self.time * self.parallel * self.useful

    @property
    def allocated_share(self) -> float:
        """What jobs held, of the capacity."""
        return (self.used + math.fsum(self.lost.values())) / self.capacity if self.capacity else 0.0

    @property
    def used_share(self) -> float:
        """What ran on GPUs, whether it was of use or not, of the capacity: what a meter of utilisation would show."""
        return self.time

    def figures(self) -> dict[str, object]:
        """As `--json` prints it: shares of the capacity."""
        whole = self.capacity or 1.0
        return {
            "used": round(self.used / whole, 6),
            "lost": {way: round(self.lost[way] / whole, 6) for way in WAYS},
            "free": round(self.free / whole, 6),
            "out": round(self.out / whole, 6),
            "allocated_share": round(self.allocated_share, 6),
            "used_share": round(self.used_share, 6),
            "effective": {
                "gpus": self.gpus,
                "time_share": round(self.time, 6),
                "parallel_efficiency": round(self.parallel, 6),
                "useful_share": round(self.useful, 6),
                "power_gpus": round(self.effective, 3),
            },
        }


def goodput(course: Course, start: int | None = None, end: int | None = None) -> Goodput:
    """The split of [start, end); as None: from the first submit to the end of the last job."""
    start = course.start if start is None else start
    end = course.last if end is None else end
    capacity = float(course.capacity * max(0, end - start))
    lost: dict[Way, list[float]] = {way: [] for way in WAYS}
    used, ran, worked, kept_all = [], [], [], []
    for job, segment, gpus in course.held():
        held = _overlap(segment.start, segment.end, start, end)
        if not held or not gpus:
            continue
        # GPUs by the part of the segment that lies in the window.
        part = gpus * held / (segment.end - segment.start)
        kept = segment.done if segment.kept is None else min(segment.kept, segment.done)
        for word, seconds in segment.slow:
            lost[word].append(part * seconds)
        lost[_redone(segment)].append(part * (segment.done - kept))
        lost["idling"].append(part * kept * (1.0 - job.use))
        used.append(part * kept * job.use)
        standing = math.fsum(seconds for word, seconds in segment.slow if word in STANDING)
        ran.append(part * (segment.end - segment.start - standing) * job.use)
        worked.append(part * segment.done * job.use)
        kept_all.append(part * kept * job.use)
    out = math.fsum(
        _overlap(outage.start, outage.end, start, end) * outage.mask.bit_count() for outage in course.outages
    ) - _held_while_out(course, start, end)
    losses = {way: math.fsum(parts) for way, parts in lost.items()}
    total = math.fsum(used)
    return Goodput(
        capacity=capacity, used=total, lost=losses, out=out,
        free=capacity - total - math.fsum(losses.values()) - out, gpus=course.capacity,
        time=_ratio(math.fsum(ran), capacity), parallel=_ratio(math.fsum(worked), math.fsum(ran)),
        useful=_ratio(math.fsum(kept_all), math.fsum(worked)),
    )  # fmt: skip


def _overlap(start: int, end: int, first: int, last: int) -> int:
    return max(0, min(end, last) - max(start, first))


def _redone(segment: Segment) -> Way:
    return "preemption" if segment.how == "preempted" else "failure"


def _held_while_out(course: Course, start: int, end: int) -> float:
    """What jobs still held of GPUs that could not be given any more: it counts as held."""
    if not course.outages:
        return 0.0
    by_node: dict[str, list[tuple[int, int, int]]] = {}
    for outage in course.outages:
        by_node.setdefault(outage.node, []).append((outage.start, outage.end, outage.mask))
    found = []
    for _, segment, _ in course.held():
        for share in segment.shares:
            for began, until, mask in by_node.get(share.node, ()):
                both = _overlap(max(segment.start, began), min(segment.end, until), start, end)
                if both:
                    found.append(both * (share.mask & mask).bit_count() * share.milli / WHOLE)
    return math.fsum(found)


def _ratio(part: float, whole: float) -> float:
    """0 where nothing was measured."""
    return part / whole if whole else 0.0
