"""How good the free GPUs of a node are together: the wiring's tables, by masks.

Source  topology/subsets.py judges the subsets; topology/placement.py is what a node says of itself
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from gpuguard.model.numbers import numbers_in, spans
from gpuguard.scheduler.events import NodeJoined
from gpuguard.topology.placement import masks
from gpuguard.topology.subsets import Masks, mask_of, places_in

# Beyond this many the subsets are not judged, only counted: a table of 2^16 masks costs seconds.
JUDGED = 8


class Wiring:
    """The tables of one kind of node. Penalty 0 is the best subset of that size that the node could ever give."""

    def __init__(self, size: int, table: Masks | None, cpus: Sequence[str] = (), nics: Sequence[str] = ()) -> None:
        self.size = size
        self._cpus, self._nics = cpus, nics
        self._near: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._table = table
        self._ranks: dict[int, dict[tuple[int, int, int], int]] = {}
        self._rows: dict[tuple[int, int], list[int]] = {}

    def pick(self, free: int, count: int) -> int:
        """The best so many of the free GPUs, as a mask; the lowest where the wiring is not known."""
        if self._table is None:
            mask = 0
            for _ in range(count):
                low = free & -free
                mask |= low
                free ^= low
            return mask
        return self._table.best_mask(count, free) if count else 0

    def near(self, mask: int) -> tuple[str, tuple[str, ...]]:
        """The processors and the network cards next to these GPUs; nothing where the node did not tell."""
        if not self._cpus and not self._nics:
            return "", ()
        found = self._near.get(mask)
        if found is None:
            places = places_in(mask)
            cpus = sorted({number for place in places if self._cpus for number in numbers_in(self._cpus[place])})
            nics = dict.fromkeys(self._nics[place] for place in places if self._nics and self._nics[place])
            found = self._near[mask] = (spans(cpus), tuple(nics))
        return found

    def penalties(self, free: int, wide: int) -> list[int]:
        """By how many steps the best subset of each size is worse than the best of an empty node; index is the size."""
        row = self._rows.get((free, wide))
        if row is None:
            row = [0] * (wide + 1)
            if self._table is not None and self.size <= JUDGED:
                for count in range(2, free.bit_count() + 1):
                    row[count] = self._rank(self._table.best_mask(count, free), count)
            self._rows[free, wide] = row
        return row

    def penalty(self, mask: int) -> int:
        """The same of a subset that was chosen."""
        if self._table is None or mask.bit_count() < 2 or self.size > JUDGED:
            return 0
        return self._rank(mask, mask.bit_count())

    def _rank(self, mask: int, count: int) -> int:
        assert self._table is not None
        ranks = self._ranks.get(count)
        if ranks is None:
            costs = {self._table.cost(mask_of(places))[:3] for places in combinations(range(self.size), count)}
            ranks = self._ranks[count] = {cost: rank for rank, cost in enumerate(sorted(costs))}
        return ranks[self._table.cost(mask)[:3]]


class Wirings:
    """One Wiring for all nodes that are alike."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Wiring] = {}

    def of(self, node: NodeJoined) -> Wiring:
        placement = node.placement
        key: tuple[object, ...] = (node.gpus,)
        if placement is not None:
            key = (node.gpus, *(repr(placement.get(word)) for word in ("wires", "far", "numa", "cpus", "nics")))
        wiring = self._known.get(key)
        if wiring is None:
            wiring = self._known[key] = _wiring(node)
        return wiring


def _wiring(node: NodeJoined) -> Wiring:
    placement = node.placement
    if placement is None:
        return Wiring(node.gpus, None)
    return Wiring(node.gpus, masks(placement), _names(placement, "cpus"), _names(placement, "nics"))


def _names(placement: Mapping[str, object], word: str) -> list[str]:
    """One entry for each GPU, empty where it is not known."""
    told = placement.get(word)
    return [one if isinstance(one, str) else "" for one in told] if isinstance(told, list) else []


@lru_cache(maxsize=64)
def two_sockets(gpus: int) -> dict[str, object]:
    """The placement of a node as most are built: GPUs in pairs below PCIe switches, half of them on each socket.

    Source  the common 8-GPU server; assumed where a list of nodes says nothing of the wiring
    """
    half = (gpus + 1) // 2
    far = [
        [0 if one == other else 0 if one // 2 == other // 2 else 3 if one // half == other // half else 6
         for other in range(gpus)]
        for one in range(gpus)
    ]  # fmt: skip
    return {
        "version": 1,
        "wires": [[0] * gpus for _ in range(gpus)],
        "far": far,
        "numa": [str(place // half) for place in range(gpus)],
    }
