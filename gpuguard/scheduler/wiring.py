"""How good the free GPUs of a node are together: the wiring's tables, by masks.

Source  topology/subsets.py judges the subsets; topology/placement.py is what a node says of itself
"""

from functools import lru_cache
from itertools import combinations

from gpuguard.scheduler.events import NodeJoined
from gpuguard.topology.placement import masks
from gpuguard.topology.subsets import Masks, mask_of

# Beyond this many the subsets are not judged, only counted: a table of 2^16 masks costs seconds.
JUDGED = 8


class Wiring:
    """The tables of one kind of node. Penalty 0 is the best subset of that size that the node could ever give."""

    def __init__(self, size: int, table: Masks | None) -> None:
        self.size = size
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
            key = (node.gpus, repr(placement.get("wires")), repr(placement.get("far")), repr(placement.get("numa")))
        wiring = self._known.get(key)
        if wiring is None:
            wiring = self._known[key] = _wiring(node)
        return wiring


def _wiring(node: NodeJoined) -> Wiring:
    return Wiring(node.gpus, None if node.placement is None else masks(node.placement))


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
