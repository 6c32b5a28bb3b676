"""Which asks are usual: the popularity of asks among what was submitted of late.

Theory  The asks that will come are taken to be like those that came. They are counted in classes (same GPUs, share and
        types; cores and memory to a quarter of a power of two), older ones count less, and the most popular classes
        that make up 95 % stand for all, with integer weights. A new list is made after 1, 2, 4, ... asks and then
        after each PERIOD of them, and taken only when it differs: whoever depends on it must begin anew then.
Source  Weng et al., "Beware of Fragmentation" (USENIX ATC 2023), section 4: typical tasks, popularity threshold 95 %.
        There the popularity is of the whole workload; this one knows nothing of what is still to come
"""

from typing import NamedTuple

from gpuguard.scheduler.scoring import Want

PERIOD = 1024
"""Asks between two lists. 256 to 4096 placed equally well on openb; less costs time."""
FADE = 2
"""At each period counts lose a quarter (shift by 2): an ask counts half after about 2,500 others."""
ENOUGH = 95
"""Per cent of all asks that the list stands for: rare ones must not hold room free."""
MOST = 24
"""Classes in a list at most. 16, 32 and all placed equally well on openb; the cost grows with it."""
CLASSES = 1024
"""Classes counted at most; of more, the rare half is forgotten at the next list."""
SCALE = 4096
"""What the weights of a list sum up to, about."""
UNIT = 1 << 16
"""What one ask counts, so that fading stays in integers."""


class Typical(NamedTuple):
    """A class in the list: its mean ask and its weight."""

    want: Want
    weight: int


def bucket(amount: int) -> int:
    """The amount to a quarter of a power of two; equal amounts are equal, and 0 is alone.

    Source  the highest bit and the two below it
    """
    high = amount.bit_length()
    return high << 2 if high < 3 else high << 2 | (amount >> (high - 3) & 3)


class Mix:
    """Counts, and the list that was made of them last."""

    def __init__(self) -> None:
        self.typical: tuple[Typical, ...] = ()
        self.version = 0
        self._seen = 0
        self._next = 1
        self._counts: dict[Want, list[int]] = {}

    def observe(self, want: Want) -> bool:
        """Counts an ask; returns whether there is a new list."""
        self._seen += 1
        if want.gpus or want.milli:
            key = want._replace(cpus=bucket(want.cpus), memory=bucket(want.memory))
            sums = self._counts.get(key)
            if sums is None:
                sums = self._counts[key] = [0, 0, 0]
            sums[0] += UNIT
            sums[1] += UNIT * want.cpus
            sums[2] += UNIT * want.memory
        if self._seen < self._next:
            return False
        self._next += min(self._seen, PERIOD)
        return self._list()

    def _list(self) -> bool:
        ranked = sorted(self._counts, key=lambda key: (-self._counts[key][0], key))
        total = sum(sums[0] for sums in self._counts.values())
        chosen: list[Want] = []
        covered = 0
        for key in ranked[:MOST]:
            if covered * 100 >= total * ENOUGH:
                break
            chosen.append(key)
            covered += self._counts[key][0]
        typical = tuple(self._typical(key, covered) for key in chosen)
        if self._seen >= PERIOD:
            self._fade(ranked)
        if not self._differs(typical):
            return False
        self.typical = typical
        self.version += 1
        return True

    def _typical(self, key: Want, covered: int) -> Typical:
        count, cpus, memory = self._counts[key]
        want = key._replace(cpus=cpus // count, memory=memory // count)
        return Typical(want, max(1, count * SCALE // covered))

    def _fade(self, ranked: list[Want]) -> None:
        for key in ranked[CLASSES // 2 :] if len(ranked) > CLASSES else ():
            del self._counts[key]
        for key in [key for key in ranked if key in self._counts]:
            sums = self._counts[key]
            self._counts[key] = [amount - (amount >> FADE) for amount in sums]
            if sums[0] < UNIT >> 4:
                del self._counts[key]

    def _differs(self, typical: tuple[Typical, ...]) -> bool:
        """By more than a twentieth of all asks: less is noise, and beginning anew costs."""
        before = {_class(entry.want): entry.weight for entry in self.typical}
        moved = sum(abs(entry.weight - before.pop(_class(entry.want), 0)) for entry in typical)
        return (moved + sum(before.values())) * 20 > SCALE


def _class(want: Want) -> Want:
    return want._replace(cpus=bucket(want.cpus), memory=bucket(want.memory))
