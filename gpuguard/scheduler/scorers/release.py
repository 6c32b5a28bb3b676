"""Where the job makes the whole node free least later: those who leave together leave a whole node.

Theory  A node is whole again when the last of those on it has left. A job that is gone before that costs the next wide
        job nothing; one that stays longer costs what it adds. Walltimes are promises, not predictions, but they are
        the same promises for everybody
"""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.scoring import Ints, Vacancy, Want

MOST = 1 << 32
"""Seconds beyond which later is no worse."""


class Release:
    """Seconds by which the node's last end becomes later."""

    name: ClassVar[str] = "release"

    def __init__(self, vacancy: Vacancy) -> None:
        self._vacancy = vacancy

    def observe(self, want: Want) -> None:
        """What is usual does not matter."""

    def changed(self, node: int) -> None:
        """Nothing is kept."""

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """None later for work without GPUs, or of which nobody knows how long it stays."""
        if not until or not (want.gpus or want.milli):
            return np.zeros(len(nodes), dtype=np.int64)
        later: Ints = np.clip(until - self._vacancy.last[nodes], 0, MOST)
        return later

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """All GPUs of a node are released with it."""
        return None


def build(vacancy: Vacancy) -> Release:
    return Release(vacancy)
