"""How much of a node's free GPU the usual asks cannot use: what the fragmentation term adds up.

Theory  For a node and a class of asks there are two answers to "how much of what is free is lost to it?".
        stranded: all of it where the node cannot take one such ask (GPUs, cores, memory, type), else what is free on
                  GPUs that are each too small for it: fragments in the sense of FGD.
        unfilled: what stays free after as many such asks as fit have gone in, cores and memory counted: a node whose
                  cores run out before its GPUs loses the rest, long before not a single ask fits.
        Both are weighted by how usual the class is and added, STRANDED to UNFILLED. Everything is an integer, so equal
        nodes are equal to the last bit on every machine.
Source  stranded: Weng et al., USENIX ATC 2023, section 3.2. unfilled: our own
"""

from typing import NamedTuple

import numpy as np

from gpuguard.scheduler.mix import Typical
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.scoring import Ints

STRANDED, UNFILLED = 4, 1
"""3:1 to 6:1 are equally good on openb and its variants; alone each is 0.3 to 1 point of all GPUs worse somewhere."""

PLENTY = 1 << 40
"""Asks that fit as far as an amount goes that is not asked."""


class Rooms(NamedTuple):
    """Free room of some nodes, or what it would be: one line a node."""

    milli: Ints
    cpus: Ints
    memory: Ints
    kind: Ints

    def pick(self, lines: Ints) -> "Rooms":
        """The rooms in these lines."""
        return Rooms(self.milli[lines], self.cpus[lines], self.memory[lines], self.kind[lines])


class Waste:
    """The measure for one list of usual asks."""

    def __init__(self, typical: tuple[Typical, ...], kinds: int) -> None:
        wants = [entry.want for entry in typical]
        need = [want.milli or WHOLE for want in wants]
        levels = sorted(set(need))
        self._levels: Ints = np.array(levels, dtype=np.int64)
        self._at: Ints = np.array([levels.index(amount) for amount in need], dtype=np.int64)
        self._gpus: Ints = np.array([want.gpus or 1 for want in wants], dtype=np.int64)
        self._each: Ints = self._gpus * np.array(need, dtype=np.int64)
        self._weights: Ints = np.array([entry.weight for entry in typical], dtype=np.int64)
        self._cpus = _divisor([want.cpus for want in wants])
        self._memory = _divisor([want.memory for want in wants])
        allowed = [[not want.kinds or want.kinds >> kind & 1 for want in wants] for kind in range(kinds)]
        self._allowed = np.array(allowed, dtype=np.bool_).reshape(kinds, len(wants))
        self._all_allowed = bool(self._allowed.all())

    def of(self, rooms: Rooms) -> Ints:
        """The waste of each room.

        Units   thousandths of a GPU, times a constant
        """
        if not len(self._weights):
            return np.zeros(len(rooms.cpus), dtype=np.int64)
        free = rooms.milli[:, :, None]
        total = rooms.milli.sum(axis=1)[:, None]
        enough = free >= self._levels
        wide = enough.sum(axis=1)[:, self._at]
        small = total - (free * enough).sum(axis=1)[:, self._at]
        fits = (free // self._levels).sum(axis=1)[:, self._at] // self._gpus
        fits = np.minimum(fits, _times(rooms.cpus, self._cpus))
        fits = np.minimum(fits, _times(rooms.memory, self._memory))
        if not self._all_allowed:
            fits *= self._allowed[rooms.kind]
        stranded = np.where((fits > 0) & (wide >= self._gpus), small, total)
        lost: Ints = (STRANDED * stranded + UNFILLED * (total - fits * self._each)) @ self._weights
        return lost


def _divisor(amounts: list[int]) -> tuple[Ints, Ints]:
    """What to divide by, and what to add because nothing is asked."""
    asked = np.array(amounts, dtype=np.int64)
    return np.maximum(asked, 1), np.where(asked > 0, 0, PLENTY)


def _times(free: Ints, divisor: tuple[Ints, Ints]) -> Ints:
    amounts, plenty = divisor
    times: Ints = free[:, None] // amounts + plenty
    return times
