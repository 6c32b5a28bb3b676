"""Cost of far placement: a job runs as fast as the worst link between its GPUs lets it.

Only what could have been nearer costs: eight GPUs of a node of eight lie on two sockets wherever they lie, and run at
full speed. In a node the links are those of the wiring's tables, where NVLink joins two GPUs as the switch does.

Assumes  the trace's run times are those of the nearest places; a job of two GPUs across sockets runs at half speed; one
         that is spread over more nodes than it needs, or over pods, loses 30 %; never slower than a third
Source   the factors are the texts' figures: 40 % in communication and half the speed, 30 %, factor 3; that of one
         socket and of one pod are between them and nobody's
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.plan import Start
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.chance import Dice
from gpuguard.simulator.engine import Life, Model, World
from gpuguard.simulator.options import Pace, read
from gpuguard.topology.subsets import places_in

LINKS = ("switch", "socket", "sockets")
ROOMS = ("rack", "pod", "core")
SWITCH, SOCKET, FARTHEST = 1, 4, 6
"""Up to which `far` two GPUs are below one switch, on one socket, and beyond. What is not known costs nothing."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Speed over each kind of worst link; 1 is full speed.

    Shape   nodes: on more nodes than the job needs, where it fits one rack; least: never slower than that
    """

    switch: Pace = 1.0
    socket: Pace = 0.9
    sockets: Pace = 0.5
    nodes: Pace = 0.7
    rack: Pace = 1.0
    pod: Pace = 0.85
    core: Pace = 0.7
    least: Pace = 1 / 3


class Far(Model):
    name = "far"
    loses = "far"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._links = tuple(float(getattr(settings, link)) for link in LINKS)
        self._rooms = {"node": 1.0, **{room: float(getattr(settings, room)) for room in ROOMS}}
        self._by_node: dict[str, tuple[NodeJoined, dict[int, int], dict[int, int]]] = {}

    def speed(self, world: World, life: Life, decision: Start) -> float:
        shares = [share for share in decision.shares if share.mask]
        if len(shares) > 1:
            return max(self._settings.least, self._across(world, life, decision.network, len(shares)))
        if not shares or shares[0].mask.bit_count() < 2:
            return 1.0
        node = world.state.joined[shares[0].node]
        worst, best = self._worst(node, shares[0].mask)
        return max(self._settings.least, self._links[worst] / self._links[best])

    def _across(self, world: World, life: Life, network: str, nodes: int) -> float:
        most = max(world.state.joined[share.node].gpus for share in life.shares)
        given = sum(share.mask.bit_count() for share in life.shares)
        needed = -(-given // most)
        speed = self._rooms.get(network, 1.0)
        return min(speed, self._settings.nodes) if nodes > needed else speed

    def _worst(self, node: NodeJoined, mask: int) -> tuple[int, int]:
        """The worst link of these GPUs, and that of the best so many of an empty node."""
        known = self._by_node.get(node.node)
        if known is None or known[0] is not node:
            known = self._by_node[node.node] = self._tables_of(node)
        _, worst, best = known
        if mask not in worst:
            worst[mask] = _worst(node, places_in(mask))
        count = mask.bit_count()
        if count not in best:
            best[count] = min(_worst(node, places) for places in _choices(node.gpus, count))
        return worst[mask], min(best[count], worst[mask])

    def _tables_of(self, node: NodeJoined) -> tuple[NodeJoined, dict[int, int], dict[int, int]]:
        # Nodes that were made alike have one wiring, and it is asked of each start.
        for other, worst, best in self._by_node.values():
            if other.gpus == node.gpus and other.placement == node.placement:
                return node, worst, best
        return node, {}, {}


def _choices(gpus: int, count: int) -> Iterable[Sequence[int]]:
    """All that could be chosen; of more than eight GPUs those that lie in a row."""
    if gpus > 8:
        return (range(first, first + count) for first in range(gpus - count + 1))
    return combinations(range(gpus), count)


def _worst(node: NodeJoined, places: Sequence[int]) -> int:
    placed = node.placement or two_sockets(node.gpus)
    far, wires = placed["far"], placed["wires"]
    assert isinstance(far, list)
    assert isinstance(wires, list)
    worst = 0
    for one, other in combinations(places, 2):
        if not wires[one][other]:
            distance = far[one][other]
            worst = max(worst, 2 if distance == FARTHEST else 1 if SWITCH < distance <= SOCKET else 0)
    return worst


def build(settings: Mapping[str, str], dice: Dice) -> Model:
    """The model; it draws nothing."""
    return Far(read(Settings, settings, "far"))
