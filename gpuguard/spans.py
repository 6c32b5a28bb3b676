"""How long something has been so, and how much a counter grew: parts of a check's memory.

They change only when something changed, because a check's memory is written down whenever it does.
"""

import msgspec

from gpuguard.model.instants import Instant, seconds_between

# A window remembers its growth in this many pieces at most.
PIECES = 32


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Since when something has been so without a break; None while it is not. A reboot is a break."""

    since: Instant | None = None

    def told(self, so: bool | None, at: Instant) -> "Held":
        """With what a new look showed; a look that could not tell changes nothing."""
        if so is None:
            return self
        if not so:
            return self if self.since is None else Held()
        return self if self.since is not None and self.since.boot == at.boot else Held(since=at)

    def seconds(self, at: Instant) -> float:
        """How long by now, in seconds; 0 while it is not so, or since nobody knows when."""
        return 0.0 if self.since is None else max(0.0, seconds_between(self.since, at) or 0.0)

    def lasted(self, hold: float, at: Instant) -> bool:
        """Whether it is so, and has been for `hold` seconds; a hold of 0 is over at once."""
        return self.since is not None and self.seconds(at) >= hold


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A counter grew by so much at that time."""

    at: Instant
    by: float


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """The last value of a counter and its growth within a window.

    What it showed when it was first seen is no growth, and a value below the last one is a reset. `looked` is when
    somebody looked, to within the window, where that is of interest.
    """

    last: float | None = None
    steps: tuple[Step, ...] = ()
    looked: Instant | None = None

    def seen(self, value: float | None, at: Instant, within: float, *, as_rate: bool = False) -> "Counter":
        """With a new value; growth older than `within` seconds is forgotten.

        Where it is taken `as_rate`, what it grew by while nobody looked, as while the agent was away for a day, counts
        with the share that falls into the window: it is no burst of this moment.
        """
        if value is None:
            return self
        value = float(value)
        by = 0.0 if self.last is None or value < self.last else value - self.last
        looked = self.looked
        if as_rate:
            unseen = None if looked is None else seconds_between(looked, at)
            if unseen is None or unseen >= within:
                looked = at
            if unseen is not None and unseen > 2 * within:
                by *= within / unseen
        steps = self.steps
        if steps and not _recent(steps[0], at, within):
            steps = tuple(step for step in steps if _recent(step, at, within))
        if by > 0:
            newest = steps[-1] if steps else None
            if newest is not None and (seconds_between(newest.at, at) or 0.0) < within / PIECES:
                steps = (*steps[:-1], Step(at=newest.at, by=newest.by + by))
            else:
                steps = (*steps, Step(at=at, by=by))[-PIECES - 1 :]
        if value == self.last and steps is self.steps and looked is self.looked:
            return self
        return Counter(last=value, steps=steps, looked=looked)

    def growth(self) -> float:
        """How much it grew within the window."""
        return sum(step.by for step in self.steps)


def _recent(step: Step, at: Instant, within: float) -> bool:
    age = seconds_between(step.at, at)
    return age is not None and age <= within
