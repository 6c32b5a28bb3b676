"""Work for CPUs goes where no GPU waits for the cores; other work does not care.

Theory  The thousandths of GPU that are free on the node: none on a node without GPUs or one whose GPUs are all in use.
        `fragmentation` sees the same once it knows the mix; this one needs no history.
"""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.scoring import Ints, Vacancy, Want


class Cores:
    """Free GPU that would lose cores."""

    name: ClassVar[str] = "cores"

    def __init__(self, vacancy: Vacancy) -> None:
        self._vacancy = vacancy

    def observe(self, want: Want) -> None:
        """What is usual does not matter."""

    def changed(self, node: int) -> None:
        """Nothing is kept."""

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """0 for everything that wants GPUs."""
        if want.gpus or want.milli:
            return np.zeros(len(nodes), dtype=np.int64)
        scores: Ints = self._vacancy.milli[nodes].sum(axis=1, dtype=np.int64)
        return scores

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """No opinion."""
        return None


def build(vacancy: Vacancy) -> Cores:
    return Cores(vacancy)
