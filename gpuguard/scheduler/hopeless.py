"""What nobody needs to look for again in this pass: somebody failed who asked no more.

Theory. On one node, who asks more of anything, or for longer, fails wherever somebody failed who asked less of all. So
a few who failed stand for thousands of others, of whom no two are alike. A part of a GPU counts as less than one.
"""

from gpuguard.scheduler.cluster import Ask
from gpuguard.scheduler.queue import Entry

FEW = 200
"""So many shapes and lengths are looked at one by one."""

MOST = 16
"""So many who failed are kept of each sort of nodes; those that excuse most stand in front."""

Sort = tuple[tuple[str, ...], str, bool, int, bool]
"""Which nodes an ask looks at, and by which rule."""
Measure = tuple[int, ...]


def _sort(ask: Ask) -> Sort:
    return (ask.kinds, ask.pool, ask.alone, ask.spares, ask.stays)


def _measure(ask: Ask, step: int) -> Measure:
    return (ask.gpus, 1000 if ask.gpus else ask.milli, *ask.amounts, ask.card_memory, step)


class Hopeless:
    """Who failed since the last release, as far as it says anything of others."""

    def __init__(self) -> None:
        self._failed: dict[Sort, list[Measure]] = {}
        self._kept = True

    def renew(self, sorts: int) -> None:
        """Something was given back; where only few sorts wait, to look is cheaper than to remember."""
        self._failed.clear()
        self._kept = sorts > FEW

    def add(self, entry: Entry, step: int) -> None:
        """It found no place for this long, 0: for no time at all."""
        if not self._kept or entry.shape.nodes != 1:
            return
        ask = entry.shape.terms.chunks[0].ask
        failed = self._failed.setdefault(_sort(ask), [])
        measure = _measure(ask, step)
        failed[:] = [other for other in failed if not _within(measure, other)][: MOST - 1]
        failed.insert(0, measure)

    def covers(self, entry: Entry) -> bool:
        """Somebody failed who asked no more of anything, and for no longer."""
        if entry.shape.nodes != 1 or not self._failed:
            return False
        ask = entry.shape.terms.chunks[0].ask
        failed = self._failed.get(_sort(ask))
        if not failed:
            return False
        measure = _measure(ask, entry.step)
        for place, other in enumerate(failed):
            if _within(other, measure):
                if place:
                    failed.insert(0, failed.pop(place))
                return True
        return False


def _within(less: Measure, more: Measure) -> bool:
    """Nothing in the one is more than in the other."""
    return all(one <= other for one, other in zip(less, more, strict=True))
