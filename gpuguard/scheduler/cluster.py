"""The cluster as arrays: what each node has, what of it is free now, and when the rest will be.

Shape   nodes stand in the order (pod, rack, name), so a rack or a pod is a slice. By node: a mask of the GPUs that are
        wholly free (bit = GPU), free thousandths by GPU, and what else is charged (RESOURCES). GPUs that are bad,
        or held for somebody are in no free mask. `releases` are the ends of what runs, as the walltimes promise them
Units   thousandths of GPUs and cores, MiB, MiB/s, seconds
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.wiring import Wiring, Wirings

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

RESOURCES = ("cpus", "memory", "memory_bandwidth", "network_bandwidth")
"""What is charged beside GPUs, in this order: thousandths of cores, MiB, MiB/s, MiB/s."""
Amounts = tuple[int, int, int, int]
NOTHING: Amounts = (0, 0, 0, 0)

NEVER = 1 << 60
"""An instant after all others, and an amount that does not constrain."""

ROWS = 9
"""So many releases of a node fit at first; there are more only where GPUs are shared."""


class Place(NamedTuple):
    """What a job holds on one node. `milli` is what it takes of each GPU in the mask; `alone`: nobody else may come."""

    node: int
    mask: int
    milli: int
    amounts: Amounts
    card_memory: int = 0
    alone: bool = False


class Tenant(NamedTuple):
    """Somebody who holds a place until `end` at the latest."""

    job: str
    place: Place
    end: int


class Ask(NamedTuple):
    """What one node must give: `gpus` whole ones, or `milli` of one, and the rest beside."""

    gpus: int
    milli: int
    amounts: Amounts
    card_memory: int
    kinds: tuple[str, ...]
    pool: str
    alone: bool
    spares: int
    """Thousandths of a core that must stay free for each free GPU."""
    stays: bool = False
    """It is on one node for long, and stays out of racks that are turned over."""

    @property
    def planned(self) -> int:
        """So many whole GPUs are planned for it: a part of one as one, later than need be and never too early."""
        return self.gpus or (1 if self.milli else 0)


def _bound(amount: float | None, factor: int = 1) -> int:
    return NEVER if amount is None else int(amount * factor)


class Cluster:
    """The free room of all nodes; `take` and `give` are the only ways it changes hands."""

    def __init__(self, nodes: Iterable[NodeJoined] = ()) -> None:
        self._lay_out(nodes)
        size = len(self.nodes)
        # What changes hands.
        self.full = [(1 << node.gpus) - 1 for node in self.nodes]
        self.good = list(self.full)
        self.held = [0] * size
        self.used = [0] * size
        self.free = list(self.full)
        self.count: Ints = self.size.copy()
        self.milli: npt.NDArray[np.int32] = np.zeros((size, self.most), dtype=np.int32)
        for place, node in enumerate(self.nodes):
            self.milli[place, : node.gpus] = WHOLE
        self.partial: Ints = np.zeros(size, dtype=np.int64)
        # What new work may take of each GPU, for the scorers: 0 where it is bad, held or whole in use.
        self.vacant: npt.NDArray[np.int32] = np.zeros((size, self.most), dtype=np.int32)
        self.changed: Callable[[int], None] | None = None
        # Nodes that have less of a resource than they had when it was given away, by (node, row of RESOURCES).
        self.short: frozenset[tuple[int, int]] = frozenset()
        self.cards = [_bound(node.gpu_memory) for node in self.nodes]
        self.card_memory: Ints = np.array(self.cards, dtype=np.int64)
        self.card_free: dict[int, dict[int, int]] = {}
        self.spare: Ints = self.total.copy()
        self.usable: Flags = np.ones(size, dtype=np.bool_)
        self.tenants: list[dict[str, Tenant]] = [{} for _ in self.nodes]
        self.sharing = [0] * size
        """How many parts of GPUs are held on each node."""
        self._rows: dict[int, npt.NDArray[np.int32]] = {}
        self.busy: Ints = np.zeros(size, dtype=np.int64)
        # Nodes that are one job's alone, or kept for one; the holds on each, and how many.
        self.sole: Flags = np.zeros(size, dtype=np.bool_)
        self.kept: list[list[tuple[Place, int]]] = [[] for _ in self.nodes]
        self.holds: Ints = np.zeros(size, dtype=np.int64)
        # When all have left: as far as anybody knows when he leaves, and in truth.
        self.last: Ints = np.zeros(size, dtype=np.int64)
        self.empty: Ints = np.zeros(size, dtype=np.int64)
        self.penalty: npt.NDArray[np.int32] = np.zeros((size, self.most + 1), dtype=np.int32)
        # The releases of each node in order: what is free after each, the first column being now.
        self._wide = ROWS
        self.ends: Ints
        self.frees: Ints
        self._make_rows()
        self._fitting: dict[tuple[tuple[str, ...], str], Flags] = {}
        # Nodes of racks that are turned over, which those that stay long keep out of.
        self.turned: Flags = np.zeros(size, dtype=np.bool_)
        self._outside: dict[Ask, Flags] = {}
        for place in range(size):
            self._count(place)
            self._row(place)

    def _lay_out(self, nodes: Iterable[NodeJoined]) -> None:
        """What does not change: who stands where, and what each has in all."""
        self.nodes = sorted(nodes, key=lambda node: (node.pod, node.rack, node.node))
        self.names = [node.node for node in self.nodes]
        self.index = {name: place for place, name in enumerate(self.names)}
        size = len(self.nodes)
        self.most = max((node.gpus for node in self.nodes), default=0)
        self.size: Ints = np.array([node.gpus for node in self.nodes], dtype=np.int64)
        self.kinds = sorted({node.gpu_type for node in self.nodes})
        self.pools = sorted({node.pool for node in self.nodes})
        self.kind: Ints = np.array([self.kinds.index(node.gpu_type) for node in self.nodes], dtype=np.int64)
        self.pool: Ints = np.array([self.pools.index(node.pool) for node in self.nodes], dtype=np.int64)
        racks = list(dict.fromkeys((node.pod, node.rack) for node in self.nodes))
        pods = list(dict.fromkeys(node.pod for node in self.nodes))
        known = {rack: place for place, rack in enumerate(racks)}
        self.rack: Ints = np.array([known[node.pod, node.rack] for node in self.nodes], dtype=np.int64)
        self.pod: Ints = np.array([pods.index(node.pod) for node in self.nodes], dtype=np.int64)
        self.by_rack = _table(self.rack, len(racks))
        self.by_pod = _table(self.pod, len(pods))
        self.has_racks = len(racks) > 1
        self.total: Ints = np.array(
            [
                [_bound(node.cpus, 1000) for node in self.nodes],
                [_bound(node.memory) for node in self.nodes],
                [_bound(node.memory_bandwidth) for node in self.nodes],
                [_bound(node.network_bandwidth) for node in self.nodes],
            ],
            dtype=np.int64,
        ).reshape(len(RESOURCES), size)
        self.constrains = tuple(bool((self.total[row] < NEVER).any()) for row in range(len(RESOURCES)))
        self.counted = (0, *(row + 1 for row in range(len(RESOURCES)) if self.constrains[row]))
        """The rows of `frees` that say anything."""
        self.watts = np.array([node.watts or 0.0 for node in self.nodes], dtype=np.float64)
        wirings = Wirings()
        self.wiring: list[Wiring] = [wirings.of(node) for node in self.nodes]

    def _make_rows(self) -> None:
        size = len(self.nodes)
        self.ends = np.full((size, self._wide), NEVER, dtype=np.int64)
        self.frees = np.zeros((1 + len(RESOURCES), size, self._wide), dtype=np.int64)

    # -- who may use what ---------------------------------------------------------------------------------------------

    def eligible(self, kinds: tuple[str, ...], pool: str) -> Flags:
        """The nodes, up or not, that have one of these GPU types (any without) and are of this pool or of none."""
        key = (kinds, pool)
        flags = self._fitting.get(key)
        if flags is None:
            flags = np.ones(len(self.nodes), dtype=np.bool_)
            if kinds:
                flags &= np.isin(self.kind, [self.kinds.index(kind) for kind in kinds if kind in self.kinds])
            codes = [place for place, name in enumerate(self.pools) if name in {"", pool}]
            flags &= np.isin(self.pool, codes)
            self._fitting[key] = flags
        return flags

    def able(self, ask: Ask) -> Flags:
        """The nodes that are up and that it may use, whatever is free there."""
        if not ask.stays:
            return self.eligible(ask.kinds, ask.pool) & self.usable
        flags = self._outside.get(ask)
        if flags is None:
            flags = self.eligible(ask.kinds, ask.pool) & self.usable
            outside = flags & ~self.turned
            could = outside & (self.size >= max(ask.gpus, 1)) & (self.card_memory >= ask.card_memory)
            for row, amount in enumerate(ask.amounts):
                could &= self.total[row] >= amount
            if could.any():
                flags = outside
            self._outside[ask] = flags
        return flags.copy()

    def turn(self, nodes: Flags) -> None:
        """These are the nodes of the racks that are turned over."""
        self.turned = nodes
        self._outside.clear()

    def fits(self, ask: Ask) -> Flags:
        """The nodes that can give this now."""
        flags = self.able(ask) & ~self.sole
        if ask.gpus:
            flags &= self.count >= ask.gpus
        elif ask.milli:
            flags &= (self.count > 0) | (self.partial >= ask.milli)
            if ask.card_memory:
                flags &= self.card_memory >= ask.card_memory
                for place in np.nonzero(flags & (self.count == 0))[0].tolist():
                    flags[place] = self.cards_for(place, ask) != 0
        if ask.gpus and ask.card_memory:
            flags &= self.card_memory >= ask.card_memory
        for row, amount in enumerate(ask.amounts):
            if amount and self.constrains[row]:
                flags &= self.spare[row] >= amount
        if ask.spares and self.constrains[0]:
            flags &= self.spare[0] - self.count * ask.spares >= ask.amounts[0]
        if ask.alone:
            flags &= (self.busy == 0) & (self.holds == 0)
        return flags

    def cards_for(self, place: int, ask: Ask) -> int:
        """The GPUs of which others hold a part already, and that have so much left, as a mask."""
        if not self.sharing[place]:
            return 0
        row = self.vacant[place].tolist()
        frees = self.card_free.get(place, {})
        mask = 0
        for card, milli in enumerate(row):
            if ask.milli <= milli < WHOLE and (
                not ask.card_memory or frees.get(card, self.cards[place]) >= ask.card_memory
            ):
                mask |= 1 << card
        return mask

    # -- what changes hands -------------------------------------------------------------------------------------------

    def take(self, job: str, place: Place, end: int) -> None:
        """The place is the job's until it is given back, at `end` at the latest by what was promised.

        Raises  InvariantBroken where somebody else has it
        """
        node, mask, milli, amounts, card_memory, alone = place
        if job in self.tenants[node]:
            raise InvariantBroken(f"job {job} already holds a place on {self.names[node]}")
        if self.sole[node] or (alone and self.tenants[node]):
            raise InvariantBroken(f"job {job} was given a place on {self.names[node]} that is one job's alone")
        if milli >= WHOLE:
            if mask & ~self.free[node]:
                raise InvariantBroken(f"job {job} was given GPUs of {self.names[node]} that are not free")
            self.used[node] |= mask
            if mask:
                for card in bits(mask):
                    self.milli[node, card] = 0
        elif milli:
            for card in bits(mask):
                if self.milli[node, card] < milli or (self.used[node] >> card & 1):
                    raise InvariantBroken(f"job {job} was given {milli} of GPU {card} of {self.names[node]}: too much")
                self.milli[node, card] -= milli
                self.sharing[node] += 1
                if card_memory:
                    frees = self.card_free.setdefault(node, {})
                    frees[card] = frees.get(card, self.cards[node]) - card_memory
        self.tenants[node][job] = Tenant(job, place, end)
        self.busy[node] += 1
        self.sole[node] = self._is_sole(node)
        self._charge(node, amounts, -1)
        self._count(node)
        self._row(node)

    def give(self, job: str, node: int) -> Place:
        """What the job had on this node is free again, as far as the GPUs are good and not held."""
        tenant = self.tenants[node].pop(job)
        _, mask, milli, amounts, card_memory, _ = tenant.place
        if milli >= WHOLE:
            self.used[node] &= ~mask
            for card in bits(mask):
                self.milli[node, card] = WHOLE
        elif milli:
            for card in bits(mask):
                self.milli[node, card] += milli
                self.sharing[node] -= 1
                if card_memory:
                    self.card_free[node][card] += card_memory
        self.busy[node] -= 1
        self.sole[node] = self._is_sole(node)
        self._charge(node, amounts, 1)
        self._count(node)
        self._row(node)
        return tenant.place

    def promise(self, job: str, node: int, end: int) -> None:
        """The job's last possible end is another now."""
        self.tenants[node][job] = self.tenants[node][job]._replace(end=end)
        self._row(node)

    def hold(self, place: Place, end: int = NEVER) -> None:
        """These GPUs and amounts go to nobody but whom they are held for, also once those who have them leave.

        Shape   end: when whoever they are held for has left again, at the latest
        """
        node = place.node
        self.held[node] |= place.mask
        self.holds[node] += 1
        self.kept[node].append((place, end))
        self.sole[node] = self._is_sole(node)
        self._charge(node, place.amounts, -1)
        self._count(node)
        self._row(node)

    def unhold(self, place: Place) -> None:
        """What was held is anybody's again."""
        node = place.node
        self.held[node] &= ~place.mask
        self.holds[node] -= 1
        self.kept[node].remove(next(one for one in self.kept[node] if one[0] == place))
        self.sole[node] = self._is_sole(node)
        self._charge(node, place.amounts, 1)
        self._count(node)
        self._row(node)

    def keeps(self, place: Place) -> bool:
        """What was held for somebody is good and empty."""
        node, mask = place.node, place.mask
        if not self.usable[node] or mask & ~self.good[node] or mask & self.used[node]:
            return False
        tenants = self.tenants[node].values()
        if any(tenant.place.alone or tenant.place.mask & mask for tenant in tenants):
            return False
        return not (place.alone and tenants)

    def judge(self, node: int, usable: bool, bad: int) -> bool:
        """The node takes new work or not, without these GPUs; returns whether that changed anything."""
        good = self.full[node] & ~bad
        if bool(self.usable[node]) == usable and self.good[node] == good:
            return False
        self.usable[node] = usable
        self.good[node] = good
        self._outside.clear()
        self._count(node)
        self._row(node)
        return True

    def _is_sole(self, node: int) -> bool:
        return any(place.alone for place, _ in self.kept[node]) or any(
            tenant.place.alone for tenant in self.tenants[node].values()
        )

    def _charge(self, node: int, amounts: Amounts, sign: int) -> None:
        for row, amount in enumerate(amounts):
            if amount and self.constrains[row]:
                self.spare[row, node] += sign * amount

    def _count(self, node: int) -> None:
        """What is free follows from who has what."""
        mask = self.good[node] & ~self.held[node] & ~self.used[node]
        best = 0
        vacant = self.vacant[node]
        vacant[:] = self._whole(mask)
        if self.sharing[node]:
            row = self.milli[node].tolist()
            for card in bits(mask):
                if row[card] < WHOLE:
                    mask &= ~(1 << card)
                    best = max(best, row[card])
                    vacant[card] = row[card]
        self.free[node] = mask
        self.count[node] = mask.bit_count()
        self.partial[node] = best
        self.penalty[node, :] = self.wiring[node].penalties(mask, self.most)
        if self.changed is not None:
            self.changed(node)

    def _whole(self, mask: int) -> npt.NDArray[np.int32]:
        row = self._rows.get(mask)
        if row is None:
            row = np.array([WHOLE if mask >> card & 1 else 0 for card in range(self.most)], dtype=np.int32)
            self._rows[mask] = row
        return row

    def _row(self, node: int) -> None:
        """The releases of a node, from those who are there."""
        tenants = self.tenants[node]
        usable = self.good[node] & ~self.held[node]
        ends: dict[int, list[int]] = {}
        shared: dict[int, int] = {}
        for tenant in tenants.values():
            _, mask, milli, amounts, _, _ = tenant.place
            gains = ends.get(tenant.end)
            if gains is None:
                gains = ends[tenant.end] = [0] * (1 + len(RESOURCES))
            if milli >= WHOLE:
                gains[0] += (mask & usable).bit_count()
            elif milli:
                for card in bits(mask & usable):
                    shared[card] = max(shared.get(card, 0), tenant.end)
            for row, amount in enumerate(amounts, 1):
                if amount:
                    gains[row] += amount
        for end in shared.values():
            ends[end][0] += 1
        for place, until in self.kept[node]:
            # Not before those have left who are still on these GPUs.
            end = max([until, *(tenant.end for tenant in tenants.values() if tenant.place.mask & place.mask)])
            gains = ends.setdefault(end, [0] * (1 + len(RESOURCES)))
            gains[0] += (place.mask & self.good[node]).bit_count()
            for row, amount in enumerate(place.amounts, 1):
                gains[row] += amount
        wide = len(ends) + 1
        if wide > self._wide:
            self._widen(wide)
        at = sorted(ends)
        self.empty[node] = at[-1] if at else 0
        self.last[node] = next((end for end in reversed(at) if end < NEVER), 0)
        line = self.ends[node]
        line[1:wide] = at
        line[wide:] = NEVER
        line[0] = 0
        frees = self.frees
        now = int(self.count[node])
        gpus = [now]
        for end in at:
            now += ends[end][0]
            gpus.append(now)
        frees[0, node, :wide] = gpus
        frees[0, node, wide:] = now
        for row in range(len(RESOURCES)):
            if not self.constrains[row]:
                continue
            left = int(self.spare[row, node])
            amounts_then = [left]
            for end in at:
                left += ends[end][row + 1]
                amounts_then.append(left)
            frees[row + 1, node, :wide] = amounts_then
            frees[row + 1, node, wide:] = left

    def _widen(self, wide: int) -> None:
        while self._wide < wide:
            self._wide *= 2
        ends, frees = self.ends, self.frees
        self._make_rows()
        self.ends[:, : ends.shape[1]] = ends
        self.frees[:, :, : frees.shape[2]] = frees
        self.frees[:, :, frees.shape[2] :] = frees[:, :, -1:]

    def overdrawn(self) -> frozenset[tuple[int, int]]:
        """Where more is given than there is, by (node, row of RESOURCES): a node came back with less."""
        rows, nodes = np.nonzero(self.spare < 0)
        return frozenset(zip(nodes.tolist(), rows.tolist(), strict=True))

    # -- what will be free --------------------------------------------------------------------------------------------

    def ready(self, nodes: Ints | None, gpus: Ints | int, amounts: Sequence[Ints | int], spares: int = 0) -> Ints:
        """From when on each of these nodes (all without) gives so much, if nobody else comes: 0 now, NEVER.

        Amounts may be one number for all or an array by node. `spares`: so many thousandths of a core stay with each
        free GPU
        """
        ends = self.ends if nodes is None else self.ends[nodes]
        enough: Flags = self._frees(0, nodes) >= _column(gpus)
        for row, amount in enumerate(amounts):
            if self.constrains[row] and (not isinstance(amount, int) or amount):
                enough &= self._frees(row + 1, nodes) >= _column(amount)
        if spares and self.constrains[0]:
            enough &= self._frees(1, nodes) - self._frees(0, nodes) * spares >= _column(amounts[0])
            # GPUs that come free want cores again, so it has to be so from then on.
            enough = np.logical_and.accumulate(enough[:, ::-1], axis=1)[:, ::-1]
        first = enough.argmax(axis=1)
        lines = np.arange(len(first))
        found: Ints = ends[lines, first]
        found[~enough[lines, first]] = NEVER
        return found

    def _frees(self, row: int, nodes: Ints | None) -> Ints:
        frees: Ints = self.frees[row] if nodes is None else self.frees[row, nodes]
        return frees

    def column(self, node: int, at: int) -> int:
        """Where `frees` says what the node has free at this instant, if nobody else comes."""
        return int(self.ends[node].searchsorted(at, side="right")) - 1

    def free_at(self, node: int, at: int) -> list[int]:
        """What the node has free at this instant: GPUs and RESOURCES, if nobody else comes."""
        return [int(value) for value in self.frees[:, node, self.column(node, at)]]

    # -- for whoever asks ---------------------------------------------------------------------------------------------

    @property
    def gpus(self) -> int:
        """All GPUs there are."""
        return int(self.size.sum())

    def gpus_by_state(self) -> Mapping[str, int]:
        """How many GPUs are free, used (in part or whole), held, or out (bad, or of a node that is not up)."""
        free = used = held = out = 0
        for node in range(len(self.nodes)):
            part = sum(1 for card in bits(self.full[node]) if self._is_used(node, card))
            used += part
            rest = self.size[node] - part
            if not self.usable[node]:
                out += int(rest)
                continue
            idle = self.full[node] & ~self._used_mask(node)
            out += (idle & ~self.good[node]).bit_count()
            held += (idle & self.good[node] & self.held[node]).bit_count()
            free += (idle & self.good[node] & ~self.held[node]).bit_count()
        return {"free": free, "used": used, "held": held, "out": out}

    def _is_used(self, node: int, card: int) -> bool:
        return bool(self.used[node] >> card & 1) or int(self.milli[node, card]) < WHOLE

    def _used_mask(self, node: int) -> int:
        mask = self.used[node]
        for card in bits(self.full[node]):
            if int(self.milli[node, card]) < WHOLE:
                mask |= 1 << card
        return mask


def _column(amount: Ints | int) -> Ints | int:
    return amount if isinstance(amount, int) else amount[:, None]


def bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _table(codes: Ints, groups: int) -> Ints:
    """The nodes of each group in a row, filled up with -1."""
    wide = int(np.bincount(codes, minlength=max(groups, 1)).max()) if len(codes) else 0
    table = np.full((groups, wide), -1, dtype=np.int64)
    filled = [0] * groups
    for node, code in enumerate(codes.tolist()):
        table[code, filled[code]] = node
        filled[code] += 1
    return table
