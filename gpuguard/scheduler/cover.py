"""The cheapest jobs whose end gives a node, or several, what a waiting job asks for.

Theory. A node is looked at on its own and on its real GPUs. First the question is made easier: every GPU counts as won
by each job that sits on it, cores and memory are left out. That is a knapsack of at most 16 GPUs, solved exactly in
microseconds, and its answer is never dearer than the true one. If the true node agrees, it is the true one; if not,
the node waits with that price as its bound, and the subsets are searched only when no other node can be cheaper.

A job over several nodes is counted once: when it goes, its other nodes are looked at again, at no price. What `gang`
returns is the cheapest where no job spans nodes; else it is a good set, from which no job can be left out.

Shape   prices are one integer, whose high digits matter first (see `preemption`); only sums and order are used
Units   milli: thousandths of a GPU; cpus: thousandths of a core; memory: MiB
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.request import WHOLE

SUBSETS = 16
"""More jobs than this on a node are chosen from the cheapest up and trimmed, not searched."""
STEPS = 8_000
"""Looks at subsets in one survey (about 8 us each); when they are used up, nodes are answered as with too many jobs."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """So many nodes, and what each of them must give."""

    nodes: int = 1
    gpus: int
    milli: int = WHOLE
    cpus: int = 0
    memory: int = 0


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has free already, with what is on its way out and promised to nobody.

    Shape   usable: a bit for each GPU that the waiting job could be given. free: those on which nothing runs. loads:
            what is free of each GPU, where any GPU of the node is partly taken; empty: none is
    """

    node: str
    usable: int
    free: int
    loads: tuple[int, ...] = ()
    cpus: int = 0
    memory: int = 0


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    price: int
    shares: tuple[Share, ...]


class Cut(msgspec.Struct, frozen=True):
    """What one node costs: the jobs that go. `exact` false: a bound, the jobs do not suffice."""

    price: int
    victims: tuple[Victim, ...]
    exact: bool = True


class Cover(msgspec.Struct, frozen=True):
    """Nodes and the jobs that leave them; each job once."""

    nodes: tuple[str, ...]
    victims: tuple[Victim, ...]


Held = Sequence[tuple[Victim, Share]]


def relieved(ground: Ground, shares: Sequence[Share]) -> Ground:
    """The node with these shares free."""
    free, loads = _freed(ground, shares)
    return Ground(
        node=ground.node,
        usable=ground.usable,
        free=free,
        loads=tuple(loads),
        cpus=ground.cpus + sum(share.cpus for share in shares),
        memory=ground.memory + sum(share.memory for share in shares),
    )


def _freed(ground: Ground, shares: Sequence[Share]) -> tuple[int, Sequence[int]]:
    """The GPUs on which nothing runs then, and what is free of each; nothing where no GPU is shared."""
    free, loads = ground.free, list(ground.loads)
    for share in shares:
        mask = share.mask
        if share.milli >= WHOLE:
            free |= mask
            continue
        loads = loads or [0] * ground.usable.bit_length()
        while mask:
            gpu = mask.bit_length() - 1
            mask ^= 1 << gpu
            if gpu < len(loads):
                loads[gpu] += share.milli
                if loads[gpu] >= WHOLE:
                    free |= 1 << gpu
    return free, loads


def fitting(part: Part, ground: Ground, shares: Sequence[Share] = ()) -> int:
    """A bit for each GPU that has room for one GPU of the part once these shares are free."""
    mask, loads = _freed(ground, shares)
    if part.milli < WHOLE:
        for gpu, free in enumerate(loads):
            if free >= part.milli:
                mask |= 1 << gpu
    return mask & ground.usable


def enough(part: Part, ground: Ground, shares: Sequence[Share] = ()) -> bool:
    """The node gives what the part asks for once these shares are free."""
    cpus, memory, mask, whole = ground.cpus, ground.memory, ground.free, not ground.loads
    for share in shares:
        cpus += share.cpus
        memory += share.memory
        mask |= share.mask
        whole = whole and share.milli >= WHOLE
    if cpus < part.cpus or memory < part.memory:
        return False
    if whole:
        return (mask & ground.usable).bit_count() >= part.gpus
    return fitting(part, ground, shares).bit_count() >= part.gpus


def bound(part: Part, ground: Ground, held: Held) -> Cut | None:
    """The least that the node can cost, and whether that is what it costs; None: it cannot give enough."""
    if enough(part, ground):
        return Cut(0, ())
    if not enough(part, ground, [share for _, share in held]):
        return None
    missing = ground.usable & ~fitting(part, ground)
    lacking = max(0, part.gpus - fitting(part, ground).bit_count())
    # best[c]: the cheapest jobs, as bits, that win at least c GPUs.
    best: list[tuple[int, int] | None] = [(0, 0)] + [None] * lacking
    for number, (victim, share) in enumerate(held):
        won = (share.mask & missing).bit_count()
        if not won:
            continue
        for count in range(lacking, 0, -1):
            before = best[count - won] if count > won else best[0]
            if before is None:
                continue
            price, now = before[0] + victim.price, best[count]
            if now is None or price < now[0]:
                best[count] = (price, before[1] | 1 << number)
    answer = best[lacking]
    if answer is None:
        return None
    price, bits = answer
    chosen = [row for number, row in enumerate(held) if bits >> number & 1]
    return Cut(price, tuple(victim for victim, _ in chosen), enough(part, ground, [share for _, share in chosen]))


class Survey:
    """One question over many nodes. Remembers what a node costs, so that rooms which share nodes cost nothing twice."""

    def __init__(self, victims: Sequence[Victim]) -> None:
        self._held: dict[str, list[tuple[Victim, Share]]] = {}
        for victim in sorted(victims, key=lambda victim: (victim.price, victim.id)):
            for share in victim.shares:
                self._held.setdefault(share.node, []).append((victim, share))
        self._bounds: dict[tuple[Part, str], Cut | None] = {}
        self._exact: dict[tuple[Part, str], Cut] = {}
        self.steps = STEPS

    def held(self, node: str) -> Held:
        """The jobs on a node that may go, cheapest first."""
        return self._held.get(node, ())

    def per_node(self, part: Part, grounds: Sequence[Ground], most: int) -> list[tuple[int, int, Cut]]:
        """The `most` cheapest nodes: price, number in `grounds`, and the jobs that go; ties by that number."""
        heap = self._heap(part, list(enumerate(grounds)), {})
        found: list[tuple[int, int, Cut]] = []
        while heap and len(found) < most:
            number, cut = self._cheapest(part, grounds, heap, {})
            found.append((cut.price, number, cut))
        return found

    def gang(self, parts: Sequence[Part], grounds: Sequence[Ground]) -> Cover | None:
        """Nodes for all parts, the largest part first, each time the node that costs least more than before."""
        number_of = {ground.node: number for number, ground in enumerate(grounds)}
        gone: dict[str, Victim] = {}
        picked: dict[int, Part] = {}
        for part in sorted(parts, key=lambda part: (-part.gpus, -part.cpus, -part.memory)):
            rest = [(number, ground) for number, ground in enumerate(grounds) if number not in picked]
            heap = self._heap(part, rest, gone)
            for _ in range(part.nodes):
                if not heap:
                    return None
                number, cut = self._cheapest(part, grounds, heap, gone)
                picked[number] = part
                again: dict[int, None] = {}
                for victim in cut.victims:
                    gone[victim.id] = victim
                    again |= dict.fromkeys(number_of[share.node] for share in victim.shares if share.node in number_of)
                again.pop(number, None)
                if again:
                    # What left with the last node may have made these cheaper.
                    stale = [entry for entry in heap if entry[1] not in again]
                    fresh = [(other, grounds[other]) for other in sorted(again) if other not in picked]
                    heap = stale + self._heap(part, fresh, gone)
                    heapq.heapify(heap)
        places = [(part, grounds[number]) for number, part in sorted(picked.items())]
        return Cover(tuple(ground.node for _, ground in places), needed(places, list(gone.values())))

    def _heap(
        self, part: Part, grounds: Iterable[tuple[int, Ground]], gone: Mapping[str, Victim]
    ) -> list[tuple[int, int, Cut]]:
        heap = []
        for number, ground in grounds:
            cut = self._bound(part, ground, gone)
            if cut is not None:
                heap.append((cut.price, number, cut))
        heapq.heapify(heap)
        return heap

    def _cheapest(
        self, part: Part, grounds: Sequence[Ground], heap: list[tuple[int, int, Cut]], gone: Mapping[str, Victim]
    ) -> tuple[int, Cut]:
        """Takes the cheapest node out of a heap of prices and bounds (number is unique: cuts are never compared)."""
        while True:
            _, number, cut = heapq.heappop(heap)
            if cut.exact:
                return number, cut
            cut = self._searched(part, grounds[number], gone)
            heapq.heappush(heap, (cut.price, number, cut))

    def _left(self, ground: Ground, gone: Mapping[str, Victim]) -> tuple[Ground, Held, bool]:
        """A node without what has gone, the jobs that are still on it, and whether any of it had gone."""
        held = self.held(ground.node)
        freed = [share for victim, share in held if victim.id in gone] if gone else []
        if not freed:
            return ground, held, False
        return relieved(ground, freed), [row for row in held if row[0].id not in gone], True

    def _bound(self, part: Part, ground: Ground, gone: Mapping[str, Victim]) -> Cut | None:
        left, held, changed = self._left(ground, gone)
        if changed:
            return bound(part, left, held)
        key = (part, ground.node)
        if key not in self._bounds:
            self._bounds[key] = bound(part, ground, held)
        return self._bounds[key]

    def _searched(self, part: Part, ground: Ground, gone: Mapping[str, Victim]) -> Cut:
        left, held, changed = self._left(ground, gone)
        key = (part, ground.node)
        if not changed and key in self._exact:
            return self._exact[key]
        cut, self.steps = searched(part, left, held, self.steps)
        if not changed:
            self._exact[key] = cut
        return cut


def searched(part: Part, ground: Ground, held: Held, steps: int) -> tuple[Cut, int]:
    """The cheapest subset of the jobs on a node, and the steps that are left; all of them together must suffice.

    Shape   held: cheapest first
    """
    shares: list[Share] = []
    taken: list[tuple[Victim, Share]] = []
    for victim, share in held:
        if enough(part, ground, shares):
            break
        taken.append((victim, share))
        shares.append(share)
    best = needed([(part, ground)], [victim for victim, _ in taken])
    least = sum(victim.price for victim in best)
    if len(held) > SUBSETS:
        return Cut(least, best), steps

    def look(number: int, chosen: tuple[Share, ...], names: tuple[Victim, ...], price: int) -> None:
        nonlocal best, least, steps
        steps -= 1
        if enough(part, ground, chosen):
            best, least = names, price
            return
        if (
            steps <= 0
            or number == len(held)
            or price + held[number][0].price >= least
            or not enough(part, ground, (*chosen, *(share for _, share in held[number:])))
        ):
            return
        victim, share = held[number]
        look(number + 1, (*chosen, share), (*names, victim), price + victim.price)
        look(number + 1, chosen, names, price)

    if steps > 0 and least:
        look(0, (), (), 0)
    return Cut(least, best), steps


def needed(places: Sequence[tuple[Part, Ground]], victims: Sequence[Victim]) -> tuple[Victim, ...]:
    """Those victims without whom the places do not suffice: none can be left out. The dearest are let off first."""
    at = {ground.node: (part, ground) for part, ground in places}
    on: dict[str, dict[str, Share]] = {}
    for victim in victims:
        for share in victim.shares:
            if share.node in at:
                on.setdefault(share.node, {})[victim.id] = share
    kept = sorted(victims, key=lambda victim: (victim.price, victim.id))
    for victim in reversed(list(kept)):
        nodes = [share.node for share in victim.shares if share.node in at]
        if all(enough(*at[node], [share for name, share in on[node].items() if name != victim.id]) for node in nodes):
            kept.remove(victim)
            for node in nodes:
                del on[node][victim.id]
    return tuple(kept)
