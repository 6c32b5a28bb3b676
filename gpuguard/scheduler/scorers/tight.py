"""Where least is left over: best fit by GPUs and cores.

Theory  What is free on the node, GPUs and cores each as a share of the largest node's; memory is seldom what runs out.
Source  the best fit that the FGD paper compares itself with (half GPU, half CPU)
"""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.scoring import Ints, Vacancy, Want, tightest_card

SHARE = 1_000_000
"""The largest node's GPUs, and its cores, in the units of the score."""


class Tight:
    """The room left over."""

    name: ClassVar[str] = "tight"

    def __init__(self, vacancy: Vacancy) -> None:
        self._vacancy = vacancy
        self._milli = WHOLE * max(1, int(vacancy.size.max(initial=0)))
        bounded = vacancy.cores[vacancy.cores < 1 << 50]
        self._cores = max(1, int(bounded.max(initial=0)))

    def observe(self, want: Want) -> None:
        """What is usual does not matter."""

    def changed(self, node: int) -> None:
        """Nothing is kept."""

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """What is free; what is wanted is the same everywhere."""
        vacancy = self._vacancy
        milli = vacancy.milli[nodes].sum(axis=1, dtype=np.int64)
        cpus = np.minimum(vacancy.cpus[nodes], self._cores)
        scores: Ints = milli * SHARE // self._milli + cpus * SHARE // self._cores
        return scores

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """The fullest GPU that has enough."""
        return tightest_card(self._vacancy.milli[node].tolist(), want.milli, allowed) if want.milli else None


def build(vacancy: Vacancy) -> Tight:
    return Tight(vacancy)
