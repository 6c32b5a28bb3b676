"""The order in which a ring of GPUs is fastest, as NCCL would like to build it.

A ring is as fast as its slowest neighbours, so the better of two rings has the better worst pair (more NVLink, else
nearer over PCIe), then the more NVLink and the less PCIe distance summed over all neighbours, then more neighbours of
one NUMA node.

How       exact up to 9 GPUs (20160 rings, those left out that cannot win); up to 16, from each GPU the best neighbour
          next, then parts of the ring turned round (2-opt) as long as that helps, which finds a ring that no such turn
          makes better, though maybe not the best; beyond, the best neighbour next alone
Source    NCCL src/graph/search.cc searches rings by the bandwidth that all of their links can carry, too
"""

from collections.abc import Iterable, Iterator, Sequence

from gpuguard.model.topology import Topology
from gpuguard.topology.distance import FARTHEST, ranks, weights
from gpuguard.topology.names import places_of

EXACT = 9
# Nobody sells a node with more than 16 GPUs; 2-opt with twice as many takes most of a second.
MOST = 16

# NVLink of a pair stands above this much of PCIe: sixteen GPUs of a ring have less than this together.
_ABOVE = 1 << 10

# The worst pair of neighbours, the sum over all of them, and how many of them share a NUMA node; more is better.
Score = tuple[int, int, int]


def ring(topology: Topology, members: Iterable[str] | None = None) -> tuple[str, ...]:
    """The GPUs in the order of the ring; of all the same rings, from the lowest GPU on to its lower neighbour.

    Raises  UsageError for a name that is no GPU's, or comes twice
    """
    gpus = topology.gpus
    places = sorted(places_of(gpus, [gpu.name for gpu in gpus] if members is None else members))
    if len(places) > 3:
        wires = _Wires(topology)
        places = list(_turned(_exactly(places, wires) if len(places) <= EXACT else _nearly(places, wires)))
    return tuple(gpus[place].name for place in places)


def score(topology: Topology, order: Sequence[str]) -> Score:
    """What a ring is judged by: its worst pair, the sum over its pairs, neighbours of one NUMA node.

    Raises  UsageError for a name that is no GPU's, or comes twice
    """
    return _Wires(topology).score(places_of(topology.gpus, order))


class _Wires:
    """What joins each two GPUs as one number, more is better; and whether they share a NUMA node."""

    def __init__(self, topology: Topology) -> None:
        wires, far = weights(topology), ranks(topology)
        nodes = [gpu.nodes for gpu in topology.gpus]
        size = range(len(nodes))
        self.joins = [[wires[i][j] * _ABOVE + FARTHEST - far[i][j] for j in size] for i in size]
        self.near = [[int(nodes[i] is not None and nodes[i] == nodes[j]) for j in size] for i in size]

    def score(self, places: Sequence[int]) -> Score:
        if len(places) < 2:
            return 0, 0, 0
        pairs = list(zip(places, [*places[1:], places[0]], strict=True))
        joins = [self.joins[i][j] for i, j in pairs]
        return min(joins), sum(joins), sum(self.near[i][j] for i, j in pairs)


def _exactly(places: Sequence[int], wires: _Wires) -> Sequence[int]:
    most = max(max(wires.joins[i][j] for j in places if j != i) for i in places)
    best: tuple[Score, Sequence[int]] = ((-1, -1, -1), places)

    def walk(done: list[int], rest: list[int], worst: int, total: int) -> None:
        nonlocal best
        if not rest:
            # Each ring comes in both directions: one is enough.
            if done[1] < done[-1] and (found := wires.score(done)) > best[0]:
                best = found, tuple(done)
            return
        for place in rest:
            join = wires.joins[done[-1]][place]
            below = min(worst, join)
            if (below, total + join + most * len(rest)) >= best[0][:2]:
                walk([*done, place], [other for other in rest if other != place], below, total + join)

    walk([places[0]], list(places[1:]), most, 0)
    return best[1]


def _nearly(places: Sequence[int], wires: _Wires) -> Sequence[int]:
    if len(places) > MOST:
        return _greedy(places[0], places, wires)
    found = [_improved(_greedy(start, places, wires), wires) for start in places]
    return max(found, key=wires.score)


def _greedy(start: int, places: Sequence[int], wires: _Wires) -> list[int]:
    order, rest = [start], [place for place in places if place != start]
    while rest:
        last = order[-1]
        order.append(max(rest, key=lambda place: (wires.joins[last][place], wires.near[last][place], -place)))
        rest.remove(order[-1])
    return order


def _improved(order: list[int], wires: _Wires) -> list[int]:
    best, now = wires.score(order), order
    better = True
    while better:
        better = False
        for tried in _turnings(now):
            if (found := wires.score(tried)) > best:
                best, now, better = found, tried, True
                break
    return now


def _turnings(order: list[int]) -> Iterator[list[int]]:
    for i in range(1, len(order) - 1):
        for j in range(i + 1, len(order)):
            yield [*order[:i], *reversed(order[i : j + 1]), *order[j + 1 :]]


def _turned(order: Sequence[int]) -> Sequence[int]:
    """The same ring from its lowest place on, in the direction of that one's lower neighbour."""
    at = order.index(min(order))
    turned = [*order[at:], *order[:at]]
    return turned if turned[1] < turned[-1] else [turned[0], *reversed(turned[1:])]
