"""What a site has learned of its walltimes: by queue, which part of them its jobs use, the last ones counting most.

Theory. Walltimes are asked for generously, so a plan made of them is late nearly everywhere. The mean part that is used
is what a plan over many jobs needs, for their errors even out. One full walltime is counted from the beginning, so a
queue with little history is believed to use all of it.
"""

import msgspec

from gpuguard.scheduler.record import Record
from gpuguard.scheduler.settings import DAY

HALF_LIFE = 14 * DAY


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of parts and of weights, as of `at`."""

    at: int
    weight: float = 0.0
    parts: float = 0.0

    def decayed(self, now: int) -> "Ratio":
        left = 0.5 ** (max(0, now - self.at) / HALF_LIFE)
        return Ratio(at=max(now, self.at), weight=self.weight * left, parts=self.parts * left)


class Learned(msgspec.Struct, kw_only=True):
    """Grows by one record at each end. The same ends in the same order give the same numbers."""

    queues: dict[str, Ratio] = {}

    def fold(self, record: Record) -> None:
        """One job has ended; one that made room, or never ran, or has no walltime, tells nothing."""
        if not record.walltime or not record.stretches:
            return
        last = record.stretches[-1]
        if last.until is None or last.how == "preempted":
            return
        part = min(1.0, (last.until - last.allocated) / record.walltime)
        known = self.queues.get(record.queue, Ratio(at=last.until)).decayed(last.until)
        self.queues[record.queue] = Ratio(at=known.at, weight=known.weight + 1.0, parts=known.parts + part)

    def ratio(self, queue: str, now: int) -> float:
        """Which part of its walltime a job of this queue should use; 1 where nothing is known."""
        known = self.queues.get(queue)
        if known is None:
            return 1.0
        known = known.decayed(now)
        return (known.parts + 1.0) / (known.weight + 1.0)
