"""Where most is free: work is spread evenly, for pools of interactive work and inference.

Theory  Free GPU first, then free cores. It is the worst there is against fragmentation: only where neighbours disturb.
"""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.scoring import Ints, Vacancy, Want

CORES = 1 << 30
"""Thousandths of a core from which on more make no difference: a million cores."""


class Spread:
    """The emptiest node."""

    name: ClassVar[str] = "spread"

    def __init__(self, vacancy: Vacancy) -> None:
        self._vacancy = vacancy

    def observe(self, want: Want) -> None:
        """What is usual does not matter."""

    def changed(self, node: int) -> None:
        """Nothing is kept."""

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """The less the more is free."""
        milli = self._vacancy.milli[nodes].sum(axis=1, dtype=np.int64)
        scores: Ints = -(milli * CORES + np.minimum(self._vacancy.cpus[nodes], CORES - 1))
        return scores

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """The emptiest GPU, the first of equal ones."""
        if not want.milli:
            return None
        free = self._vacancy.milli[node].tolist()
        cards = [card for card, amount in enumerate(free) if allowed >> card & 1 and amount >= want.milli]
        return max(cards, key=lambda card: (free[card], -card), default=None)


def build(vacancy: Vacancy) -> Spread:
    return Spread(vacancy)
