"""How near to each other the GPUs of each job were, counted while a run goes on; it changes nothing of the run."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.plan import AnyDecision, Finish, Requeue, Share, Start
from gpuguard.simulator.engine import Model, World
from gpuguard.topology.subsets import places_in

PAIR = 2


class Nearness(Model):
    """A model that only looks. It keeps its own book of who holds what, in the order of the decisions.

    Shape   multi_node: starts on several nodes. fitting: those of them that some rack is wide enough for. in_one_rack:
            those of these that are in one. pairs: starts of two whole GPUs on a node whose sockets are known; across:
            those that lie on two sockets; avoidable: those for which a pair on one socket was free on a node that the
            job may use, that has its cores and memory left, and that is not kept for a reservation
    """

    name = "nearness"

    def __init__(self, nodes: Sequence[NodeJoined]) -> None:
        self.multi_node = self.fitting = self.in_one_rack = 0
        self.pairs = self.across = self.avoidable = 0
        self._rack = {node.node: (node.pod, node.rack) for node in nodes}
        self._has_racks = any(node.rack for node in nodes)
        wide: dict[tuple[str, str], int] = {}
        for node in nodes:
            wide[node.pod, node.rack] = wide.get((node.pod, node.rack), 0) + 1
        self._widest = max(wide.values(), default=0)
        self._sockets = {node.node: _sockets(node) for node in nodes}
        self._taken: dict[str, dict[int, int]] = {node.node: {} for node in nodes}
        self._holds: dict[str, tuple[Share, ...]] = {}

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """Starts are judged by what was free before them."""
        match decision:
            case Start():
                self._judge(world, decision, now)
                self._holds[decision.job] = decision.shares
                self._book(decision.shares, 1)
            case Finish() | Requeue():
                self._book(self._holds.pop(decision.job, ()), -1)
            case _:
                pass

    def figures(self) -> dict[str, Any]:  # Any: counts, shares and None
        """The object `placement` of a run's figures. A share of none is None."""
        return {
            "multi_node_jobs": self.multi_node,
            "one_rack_share": (
                round(self.in_one_rack / self.fitting, 6) if self.fitting and self._has_racks else None
            ),
            "pairs": self.pairs,
            "pairs_across_sockets": self.across,
            "pairs_across_sockets_avoidable": self.avoidable,
        }  # fmt: skip

    def _book(self, shares: Sequence[Share], by: int) -> None:
        for share in shares:
            taken = self._taken[share.node]
            for gpu in places_in(share.mask):
                taken[gpu] = taken.get(gpu, 0) + by

    def _judge(self, world: World, decision: Start, now: int) -> None:
        shares = decision.shares
        if len(shares) > 1:
            self.multi_node += 1
            if len(shares) <= self._widest:
                self.fitting += 1
                self.in_one_rack += len({self._rack[share.node] for share in shares}) == 1
        elif shares and shares[0].mask.bit_count() == PAIR:
            sockets = self._sockets[shares[0].node]
            if sockets is None:
                return
            self.pairs += 1
            if len({sockets[gpu] for gpu in places_in(shares[0].mask)}) > 1:
                self.across += 1
                self.avoidable += self._had_nearer(world, decision, now)

    def _had_nearer(self, world: World, decision: Start, now: int) -> bool:
        """Some node that the job may use had two free GPUs on one socket."""
        state = world.state
        cluster = state.cluster
        entry = state.running[decision.job].entry
        ask = entry.shape.terms.chunks[0].ask
        able = cluster.able(ask)
        for row, amount in enumerate(ask.amounts):
            if amount and cluster.constrains[row]:
                able = able & (cluster.spare[row] >= amount)
        able = state.bookings.allow(able, ask, now + entry.span)
        return any(
            self._has_pair(name, cluster.good[place] & ~cluster.held[place])
            for place, name in enumerate(cluster.names) if able[place]
        )  # fmt: skip

    def _has_pair(self, node: str, usable: int) -> bool:
        sockets, taken = self._sockets[node], self._taken[node]
        if sockets is None:
            return False
        free: dict[str, int] = {}
        for gpu, socket in enumerate(sockets):
            if usable >> gpu & 1 and not taken.get(gpu):
                free[socket] = free.get(socket, 0) + 1
        return any(count >= PAIR for count in free.values())


def _sockets(node: NodeJoined) -> tuple[str, ...] | None:
    """The socket of each GPU; None where the wiring is not known."""
    placement: Mapping[str, object] | None = node.placement
    found = None if placement is None else placement.get("numa")
    return tuple(str(name) for name in found) if isinstance(found, list | tuple) else None
