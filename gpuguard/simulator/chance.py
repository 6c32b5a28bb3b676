"""Chance that is the same for everybody: what is drawn for a job or a node hangs on its name and on the seed alone.

Two runs with one seed meet the same faults and the same people, whatever the scheduler decides in each: so their
figures differ by the decisions and not by luck.

Source  splitmix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014; names are hashed by
        FNV-1a with 64 bits
"""

import math
from typing import Protocol

_ALL = (1 << 64) - 1


class Dice(Protocol):
    """Where chance comes from: `random.Random` is one."""

    def random(self) -> float: ...


class Stream:
    """A row of draws that is its seed's own."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _ALL

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _ALL
        mixed = self._state
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _ALL
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _ALL
        return mixed ^ mixed >> 31

    def random(self) -> float:
        """In [0, 1)."""
        return (self._next() >> 11) / (1 << 53)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def whole(self, low: int, high: int) -> int:
        """Any of low, ..., high."""
        return low + int(self.random() * (high - low + 1))

    def exponential(self, mean: float) -> float:
        return -mean * math.log1p(-self.random())

    def lognormal(self, median: float, sigma: float) -> float:
        radius = math.sqrt(-2.0 * math.log1p(-self.random()))
        return median * math.exp(sigma * radius * math.cos(2.0 * math.pi * self.random()))

    def poisson(self, mean: float) -> int:
        """Counts of up to some dozens: the cost grows with the mean."""
        least, product, count = math.exp(-mean), self.random(), 0
        while product > least:
            product *= self.random()
            count += 1
        return count


def seed_of(dice: Dice) -> int:
    """A seed for streams, by one draw."""
    return int(dice.random() * (1 << 53))


def stream(seed: int, *names: object) -> Stream:
    """The stream of what has these names."""
    found = 0xCBF29CE484222325
    for byte in "\x00".join(map(str, names)).encode():
        found = ((found ^ byte) * 0x100000001B3) & _ALL
    # Names that differ in their last letter differ little in the hash: one step of the generator parts them.
    return Stream(Stream(found ^ seed & _ALL)._next())


def chance(seed: int, *names: object) -> float:
    """The one draw, in [0, 1), of what has these names."""
    return stream(seed, *names).random()
