"""Which k GPUs of a node work best together: exact for every k and every set of free ones, up to 16 GPUs.

A choice of k free GPUs is better than another by the first of these in which they differ: more NVLink inside (summed
over its pairs; NVLinks that nobody knows count as none); its two farthest GPUs nearer over PCIe (one switch is
nearest; a distance that is not known counts worse than one socket and better than another); fewer NUMA nodes (a GPU
whose node is not known counts as on one of its own); nearer over PCIe summed over its pairs; a better remainder,
which is what of the free ones is left, judged by the same four; then the lowest places.

How     a subset is a mask of bits, place 0 the lowest. What a sum over pairs is for a mask follows from the mask
        without its highest bit and that bit's pairs, so all 2^n are judged once at O(1) each; then one walk over the
        submasks of the free ones finds the best of every k, and is kept: asked again, it is a look-up. Beyond 16 GPUs
        the answer is greedy and says so: the best pair, grown by the GPU that adds most
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from gpuguard.errors import UsageError
from gpuguard.model.topology import Topology
from gpuguard.topology.distance import NOT_KNOWN, RANKS, SAME_SOCKET, places_of_gpus, ranks, weights
from gpuguard.topology.names import listed, places_of

# 2^16 masks take a tenth of a second and 128 KiB; each GPU more doubles both, and a node with more is rare.
EXACT = 16
# So many sets of free GPUs are remembered (a few megabytes with 16 GPUs); with 8 there are 256.
KEPT = 4096

# How a subset's cost is packed in one number, so that less is better: NVLink (negative) above the rest, then the
# farthest pair, then NUMA nodes, then the sum of distances. 16 GPUs have 120 pairs of at most 6 each.
_SUM_BITS, _NODE_BITS, _FAR_BITS = 12, 5, 3
_SUM = (1 << _SUM_BITS) - 1
_LEVELS = {rank: f"no two farther apart than {level}" for level, rank in RANKS.items()} | {
    SAME_SOCKET: "all in one socket", NOT_KNOWN: "none known to be in another socket",
}  # fmt: skip

Grid = Sequence[Sequence[int]]
# NVLink inside (negative, so that less is better), farthest pair, NUMA nodes, sum of distances.
Cost = tuple[int, int, int, int]


class Masks:
    """The best subsets by masks of bits, for whoever holds the numbers and not the graph.

    Shape   wires and far: what joins and what parts each two GPUs, as distance.weights and distance.ranks give it;
            nodes: each GPU's NUMA node in any words, None where it is not known
    """

    def __init__(self, wires: Grid, far: Grid, nodes: Sequence[object]) -> None:
        self.size = len(wires)
        self.exact = self.size <= EXACT
        self.full = (1 << self.size) - 1
        self._wires, self._far = wires, far
        known = {node: bit for bit, node in enumerate(dict.fromkeys(node for node in nodes if node is not None))}
        spare = len(known)
        self._nodes = [1 << (spare + place if node is None else known[node]) for place, node in enumerate(nodes)]
        self._order: Sequence[int] = self._ordered() if self.exact else ()
        self._tables: dict[int, tuple[int, ...]] = {}

    def best_mask(self, k: int, free: int) -> int:
        """The best k of the free ones.

        Raises  UsageError where so many are not free
        """
        free &= self.full
        if not 1 <= k <= free.bit_count():
            raise UsageError(f"{k} of {free.bit_count()} free GPUs cannot be chosen; ask for 1 to as many as are free")
        return self.table_mask(free)[k]

    def table_mask(self, free: int) -> tuple[int, ...]:
        """The best of the free ones for every k, at place k; place 0 is the empty mask."""
        free &= self.full
        table = self._tables.get(free)
        if table is None:
            if len(self._tables) >= KEPT:
                self._tables.clear()
            table = self._tables[free] = self._exactly(free) if self.exact else self._greedily(free)
        return table

    def cost(self, mask: int) -> Cost:
        """What a subset is judged by; less is better."""
        places = places_in(mask)
        wires = far = most = nodes = 0
        for one, other in combinations(places, 2):
            wires += self._wires[one][other]
            far += self._far[one][other]
            most = max(most, self._far[one][other])
        for place in places:
            nodes |= self._nodes[place]
        return -wires, most, nodes.bit_count(), far

    def _ordered(self) -> Sequence[int]:
        """For every mask the place of its cost among all costs there are, less is better."""
        pairs, most, nodes = [0], [0], [0]
        for place in range(self.size):
            # What this place adds to each mask of lower places.
            sums, farthest = [0], [0]
            for lower in range(place):
                pair = self._far[place][lower] - (self._wires[place][lower] << _SUM_BITS)
                level = self._far[place][lower]
                sums += [before + pair for before in sums]
                farthest += [max(before, level) for before in farthest]
            pairs += [before + more for before, more in zip(pairs, sums, strict=True)]
            most += [max(before, more) for before, more in zip(most, farthest, strict=True)]
            node = self._nodes[place]
            nodes += [before | node for before in nodes]
        costs = [
            (((pair >> _SUM_BITS << _FAR_BITS | level) << _NODE_BITS | node.bit_count()) << _SUM_BITS) | (pair & _SUM)
            for pair, level, node in zip(pairs, most, nodes, strict=True)
        ]
        ordered = {cost: order for order, cost in enumerate(sorted(set(costs)))}
        return array("H", [ordered[cost] for cost in costs])

    def _exactly(self, free: int) -> tuple[int, ...]:
        order, count = self._order, free.bit_count()
        best, keys = [0] * (count + 1), [1 << 2 * self.size + 1] * (count + 1)
        shift = self.size
        mask = free
        while mask:
            k = mask.bit_count()
            key = order[mask] << shift | order[free ^ mask]
            if key <= keys[k]:  # masks come from the greatest down, so the least of equal ones stays
                keys[k], best[k] = key, mask
            mask = (mask - 1) & free
        return tuple(best)

    def _greedily(self, free: int) -> tuple[int, ...]:
        """The best pair grown by what adds most; of one, the GPU that others miss least."""
        places = places_in(free)
        best = [0]
        if places:
            best.append(1 << min(places, key=lambda place: sum(self._wires[place][other] for other in places)))
        if len(places) > 1:
            first, second = min(combinations(places, 2), key=lambda pair: self.cost(1 << pair[0] | 1 << pair[1]))
            rest = {place: self._added(place, first, (0, 0, 0)) for place in places if place != first}
            nodes, added = self._nodes[first], second
            while True:
                best.append((best[-1] if len(best) > 2 else 1 << first) | 1 << added)
                nodes |= self._nodes[added]
                del rest[added]
                if not rest:
                    break
                rest = {place: self._added(place, added, before) for place, before in rest.items()}
                added = min(rest, key=self._by_gain(rest, nodes))
        return tuple(best)

    def _added(self, place: int, chosen: int, before: tuple[int, int, int]) -> tuple[int, int, int]:
        """What a place adds to those chosen, with one chosen more: NVLink, the farthest pair, the sum of distances."""
        wires, most, far = before
        level = self._far[place][chosen]
        return wires + self._wires[place][chosen], max(most, level), far + level

    def _by_gain(
        self, rest: Mapping[int, tuple[int, int, int]], nodes: int
    ) -> Callable[[int], tuple[int, int, int, int, int]]:
        def judge(place: int) -> tuple[int, int, int, int, int]:
            wires, most, far = rest[place]
            return -wires, most, (nodes | self._nodes[place]).bit_count(), far, place

        return judge


def places_in(mask: int) -> list[int]:
    """The places whose bits are set, lowest first."""
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def mask_of(places: Iterable[int]) -> int:
    """The mask with these bits set."""
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


class Subsets:
    """The best subsets of the GPUs of a node, by their names. `exact` is false where there are more than 16."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._gpus = topology.gpus
        self.masks = Masks(weights(topology), ranks(topology), [gpu.nodes for gpu in self._gpus])
        self.exact = self.masks.exact

    def best(self, k: int, free: Iterable[str] | None = None) -> tuple[str, ...]:
        """The names of the best k of the free GPUs, of all without `free`, in the order of the GPUs.

        Raises  UsageError where so many are not free, or where a name is no GPU's
        """
        return self.names_of(self.masks.best_mask(k, self.mask_of(free)))

    def table(self, free: Iterable[str] | None = None) -> dict[int, tuple[str, ...]]:
        """The best of the free GPUs for every k from 1 on."""
        table = self.masks.table_mask(self.mask_of(free))
        return {k: self.names_of(mask) for k, mask in enumerate(table) if k}

    def best_mask(self, k: int, free_mask: int) -> int:
        """The best k of the free GPUs as masks: bit n stands for the n-th GPU of the graph.

        Raises  UsageError where so many are not free
        """
        return self.masks.best_mask(k, free_mask)

    def cost(self, names: Iterable[str]) -> Cost:
        """What a choice is judged by before its remainder; less is better."""
        return self.masks.cost(self.mask_of(names))

    def mask_of(self, names: Iterable[str] | None) -> int:
        """The mask of these GPUs, of all of them without names.

        Raises  UsageError for a name that is no GPU's, or comes twice
        """
        return self.masks.full if names is None else mask_of(places_of(self._gpus, names))

    def names_of(self, mask: int) -> tuple[str, ...]:
        """The names of the GPUs of a mask, in the order of the GPUs."""
        return tuple(self._gpus[place].name for place in places_in(mask))

    def why(self, k: int, free: Iterable[str] | None = None) -> str:
        """One sentence that says which criterion decided for the best k.

        Raises  UsageError where so many are not free, or where a name is no GPU's
        """
        mask = self.mask_of(free)
        best = self.masks.best_mask(k, mask)
        names = listed(self.names_of(best))
        if not self.exact:
            return f"{names}: the best pair grown by what adds most, as {self.masks.size} GPUs are too many to try all"
        if best == mask:
            return f"{names}: all that are free{self._unknown(best)}"
        costs = {mask_of(places): self.masks.cost(mask_of(places)) for places in combinations(places_in(mask), k)}
        left, said = list(costs), []
        for place, words in enumerate(self._words(best)):
            least = min(costs[candidate][place] for candidate in left)
            if any(costs[candidate][place] > least for candidate in left):
                left = [candidate for candidate in left if costs[candidate][place] == least]
                said.append(words)
        if len(left) > 1:
            remainders = {candidate: self.masks.cost(mask ^ candidate) for candidate in left}
            smallest = min(remainders.values())
            left = [candidate for candidate in left if remainders[candidate] == smallest]
            if len(left) < len(remainders):
                said.append(f"the best remainder ({listed(self.names_of(mask ^ best))})")
        if not said:
            return f"{names}: the lowest of {len(left)} equal choices{self._unknown(best)}"
        if len(left) > 1:
            said.append(f"the lowest of {len(left)} equal ones")
        return f"{names}: {', then '.join(said)}, of {len(costs)} choices{self._unknown(best)}"

    def _words(self, mask: int) -> tuple[str, str, str, str]:
        """What a choice is judged by, in words, in the order of Cost."""
        _, most, nodes, _ = self.masks.cost(mask)
        return (
            self._wired(mask),
            _LEVELS[most],
            f"on {nodes} NUMA node{'s' if nodes > 1 else ''}",
            "nearest over PCIe on the whole",
        )

    def _wired(self, mask: int) -> str:
        places = places_of_gpus(self._topology)
        bonds = self._topology.bonds
        chosen = [places[place] for place in places_in(mask)]
        links = sum(bonds[i][j] or 0 for i, j in combinations(chosen, 2))
        return f"the most NVLink between them ({links} link{'' if links == 1 else 's'})"

    def _unknown(self, mask: int) -> str:
        """What is not known of a choice, in words."""
        places = places_of_gpus(self._topology)
        chosen = [places[place] for place in places_in(mask)]
        pairs = list(combinations(chosen, 2))
        said = []
        if any(self._topology.bonds[i][j] is None for i, j in pairs):
            said.append("whether NVLinks join them is not known")
        if self.masks.cost(mask)[1] == NOT_KNOWN:
            said.append("how far they are over PCIe is not known")
        return "".join(f"; {words}" for words in said)
