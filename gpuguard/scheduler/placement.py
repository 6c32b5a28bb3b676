"""Where a job goes now: on which nodes, and on which GPUs of each.

Nodes are chosen by the first of these in which they differ: how well their free GPUs are joined for so many, what the
pool's scorers say (less is better), their place. Over several nodes the job goes to the smallest room that holds it
(rack, pod, all), in it to nodes in a row; what it takes further apart it says. It may wait for a smaller room, but not
for ever.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuguard.scheduler.backfill import Bookings
from gpuguard.scheduler.cluster import Ask, Cluster, Flags, Ints, Place
from gpuguard.scheduler.queue import UNBOUNDED, Chunk, Entry
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.scorers import scorer
from gpuguard.scheduler.scoring import Scorer, Vacancy, Want, best
from gpuguard.scheduler.settings import Pool, Settings

DEFAULT = Pool()
LENGTHS = 4
"""A job waits no longer for its rack than so many times its walltime."""

WANTS = 10_000
"""So many asks are remembered in the words of the terms."""
TERMS: dict[str, tuple[str, ...]] = {"pack": ("cores", "fragmentation", "release", "tight"), "spread": ("spread",)}
"""The terms of a pool that names none, in order."""


class Placed(NamedTuple):
    """The places, and the smallest room that holds them: node, rack, pod, core."""

    places: tuple[Place, ...]
    network: str


class Failed(NamedTuple):
    """Why not: room (too little is free), window (it would move a reservation), network (it waits for a nearer one)."""

    rule: str
    until: int | None = None


class Placement:
    """The choice of places on one cluster."""

    def __init__(self, cluster: Cluster, bookings: Bookings, settings: Settings) -> None:
        self._cluster = cluster
        self._bookings = bookings
        self._settings = settings
        spare = cluster.spare
        self._vacancy = Vacancy(
            cluster.vacant, spare[0], spare[1], cluster.kind, cluster.size, cluster.total[0], cluster.last
        )
        self._scorers: dict[str, Scorer] = {}
        self._wants: dict[Ask, Want] = {}
        cluster.changed = self._changed

    def now(self, entry: Entry, now: int) -> Placed | Failed:
        """Where the job starts now without moving a reservation, or why it cannot."""
        terms = entry.shape.terms
        chunks = terms.chunks
        ask = chunks[0].ask
        flags = self._cluster.fits(ask)
        if entry.shape.nodes == 1:
            if not flags.any():
                return Failed("room")
            allowed = self._bookings.allow(flags, ask, now + entry.span)
            nodes = np.nonzero(allowed)[0]
            if not len(nodes):
                return Failed("window")
            return Placed((self._place(self._best(nodes, ask, _until(entry, now)), ask),), "node")
        return self._several(entry, flags, now)

    # -- one node -----------------------------------------------------------------------------------------------------

    def _best(self, nodes: Ints, ask: Ask, until: int) -> int:
        """The node whose free GPUs are joined best, and of these the one that the pool's terms prefer."""
        nodes = nodes[self._wired(nodes, ask)]
        return best(self._want(ask), nodes, self._terms(ask.pool), until)

    def _wired(self, nodes: Ints, ask: Ask) -> Flags:
        """Those that can give a subset as good as any of them."""
        if not self._settings.topology or ask.gpus < 2:
            return np.ones(len(nodes), dtype=np.bool_)
        penalty = self._cluster.penalty[nodes, ask.gpus]
        flags: Flags = penalty == penalty.min()
        return flags

    def _want(self, ask: Ask) -> Want:
        want = self._wants.get(ask)
        if want is None:
            if len(self._wants) >= WANTS:
                self._wants.clear()
            kinds = self._cluster.kinds
            bits = sum(1 << place for place, kind in enumerate(kinds) if kind in ask.kinds)
            want = self._wants[ask] = Want(ask.gpus, ask.milli, ask.amounts[0], ask.amounts[1], bits)
        return want

    def _terms(self, name: str) -> tuple[Scorer, ...]:
        pool = self._settings.pools.get(name) or DEFAULT
        names = pool.terms or TERMS[pool.placement]
        for term in names:
            if term not in self._scorers:
                self._scorers[term] = scorer(term, self._vacancy)
        return tuple(self._scorers[term] for term in names)

    def observe(self, ask: Ask) -> None:
        """Something like this was submitted: the terms learn what is usual."""
        want = self._want(ask)
        for term in self._terms(ask.pool):
            term.observe(want)

    def _changed(self, node: int) -> None:
        for term in self._scorers.values():
            term.changed(node)

    def _place(self, node: int, ask: Ask) -> Place:
        cluster = self._cluster
        if ask.gpus:
            mask = cluster.wiring[node].pick(cluster.free[node], ask.gpus)
            return Place(node, mask, WHOLE, ask.amounts, alone=ask.alone)
        if not ask.milli:
            return Place(node, 0, 0, ask.amounts, alone=ask.alone)
        card = self._card(node, ask)
        mask = cluster.wiring[node].pick(cluster.free[node], 1) if card is None else 1 << card
        return Place(node, mask, ask.milli, ask.amounts, ask.card_memory, ask.alone)

    def _card(self, node: int, ask: Ask) -> int | None:
        """The GPU that a part of one goes to: of those that are shared already, or a free one; None: no opinion."""
        cluster = self._cluster
        allowed = cluster.cards_for(node, ask) | cluster.free[node]
        want = self._want(ask)
        for term in self._terms(ask.pool):
            card = term.card(want, node, allowed)
            if card is not None:
                return card
        return None

    # -- several nodes ------------------------------------------------------------------------------------------------

    def _several(self, entry: Entry, flags: Flags, now: int) -> Placed | Failed:
        terms = entry.shape.terms
        main = terms.chunks[0]
        rest = terms.chunks[1] if len(terms.chunks) > 1 else None
        also = None if rest is None else self._cluster.fits(rest.ask)
        if not self._enough(flags, also, main.nodes):
            return Failed("room")
        flags = self._bookings.allow(flags, main.ask, now + entry.span)
        if rest is not None and also is not None:
            also = self._bookings.allow(also, rest.ask, now + entry.span)
        until = _until(entry, now)
        if not self._enough(flags, also, main.nodes):
            return Failed("window")
        found = self._in_one_room(terms.within, main, rest, flags, also, until)
        if found is not None:
            return found
        if terms.required:
            return Failed("network")
        if terms.within != "any" and self._settings.topology:
            wait = self.wait(entry)
            since = now if entry.could_since is None else entry.could_since
            entry.could_since = since
            if now < since + wait:
                return Failed("network", since + wait)
        return self._apart(main, rest, flags, also, until)

    def gathers(self, entry: Entry, now: int) -> bool:
        """The job still waits for a nearer place than it could have: that is what is planned for it."""
        since = now if entry.could_since is None else entry.could_since
        return now < since + self.wait(entry)

    def wait(self, entry: Entry) -> int:
        """How long the job waits for a nearer place than it could have, in seconds.

        Shape   the less of a rack it needs, the longer, as its rack is the sooner free; and not much longer than it
                runs, for being nearer saves a part of that alone
        """
        ask = entry.shape.terms.chunks[0].ask
        if entry.shape.terms.wait is not None:
            return entry.shape.terms.wait
        pool = self._settings.pools.get(ask.pool)
        if pool is None or entry.shape.nodes > self._cluster.by_rack.shape[1]:
            return 0
        part = (entry.shape.nodes - 1) / self._cluster.by_rack.shape[1]
        return min(int(pool.wait * (1.0 - part)), LENGTHS * entry.length)

    def _enough(self, flags: Flags, also: Flags | None, count: int) -> bool:
        if int(np.count_nonzero(flags)) < count:
            return False
        return also is None or int(np.count_nonzero(also)) > count

    def _in_one_room(
        self, within: str, main: Chunk, rest: Chunk | None, flags: Flags, also: Flags | None, until: int
    ) -> Placed | None:
        cluster = self._cluster
        if not cluster.has_racks or not self._settings.topology or within == "any":
            return self._inside(None, main, rest, flags, also, "rack" if not cluster.has_racks else "core", until)
        found = self._tightest_room(cluster.rack, len(cluster.by_rack), main, rest, flags, also, "rack", until)
        if found is None and (within == "pod" or main.nodes + (rest is not None) > cluster.by_rack.shape[1]):
            found = self._tightest_room(cluster.pod, len(cluster.by_pod), main, rest, flags, also, "pod", until)
        return found

    def _tightest_room(
        self,
        rooms: Ints,
        count: int,
        main: Chunk,
        rest: Chunk | None,
        flags: Flags,
        also: Flags | None,
        name: str,
        until: int,
    ) -> Placed | None:
        """In the room that has least to spare of those that hold it all."""
        fits = np.bincount(rooms[flags], minlength=count)
        able = fits >= main.nodes
        spare = fits
        if also is not None:
            wide = np.bincount(rooms[also], minlength=count)
            able &= wide > main.nodes
            spare = wide
        candidates = np.nonzero(able)[0]
        if not len(candidates):
            return None
        if name == "rack" and self._cluster.turned.any():
            # First where nodes come free often, so that those who stay long have the others.
            turned = np.bincount(rooms[self._cluster.turned], minlength=count) > 0
            spare = spare + np.where(turned, 0, len(self._cluster.nodes))
        room = int(candidates[int(spare[candidates].argmin())])
        return self._inside(rooms == room, main, rest, flags, also, name, until)

    def _inside(
        self,
        inside: Flags | None,
        main: Chunk,
        rest: Chunk | None,
        flags: Flags,
        also: Flags | None,
        name: str,
        until: int,
    ) -> Placed | None:
        """On the best nodes of a room."""
        nodes = np.nonzero(flags if inside is None else flags & inside)[0]
        chosen = self._in_a_row(nodes, main, until)
        places = [self._place(node, main.ask) for node in chosen]
        if rest is not None and also is not None:
            others = also.copy() if inside is None else also & inside
            others[chosen] = False
            left = np.nonzero(others)[0]
            if not len(left):
                return None
            places.append(self._place(self._best(left, rest.ask, until), rest.ask))
        return Placed(tuple(places), self.reach_of([place.node for place in places], name))

    def _in_a_row(self, nodes: Ints, chunk: Chunk, until: int) -> list[int]:
        """So many of the nodes: those with the best scores, and among equals a shortest run."""
        count = chunk.nodes
        if len(nodes) == count:
            every: list[int] = nodes.tolist()
            return every
        better, equal = self._ranked(nodes, chunk, until)
        missing = count - len(better)
        if not len(better) and missing < len(equal):
            widths = equal[missing - 1 :] - equal[: len(equal) - missing + 1]
            first = int(widths.argmin())
            equal = equal[first : first + missing]
        chosen: list[int] = np.sort(np.concatenate([better, equal[:missing]])).tolist()
        return chosen

    def _ranked(self, nodes: Ints, chunk: Chunk, until: int) -> tuple[Ints, Ints]:
        """The nodes that are surely among the best so many, and those that are equal to the last of them."""
        count = chunk.nodes
        want = self._want(chunk.ask)
        better = nodes[:0]
        equal = nodes
        scores = self._cluster.penalty[nodes, chunk.ask.gpus] if self._settings.topology else None
        for term in (None, *self._terms(chunk.ask.pool)):
            if len(better) + len(equal) == count:
                break
            if term is not None:
                scores = term.score(want, equal, until)
            if scores is None:
                continue
            last = np.partition(scores, count - len(better) - 1)[count - len(better) - 1]
            better = np.concatenate([better, equal[scores < last]])
            equal = equal[scores == last]
        return better, equal

    def _apart(self, main: Chunk, rest: Chunk | None, flags: Flags, also: Flags | None, until: int) -> Placed | Failed:
        """Over as few racks as hold it, of one pod where one holds it: the fullest first, the last the tightest."""
        cluster = self._cluster
        pool = self._settings.pools.get(main.ask.pool)
        found = self._tightest_room(cluster.pod, len(cluster.by_pod), main, rest, flags, also, "pod", until)
        inside = None
        if found is not None:
            inside = cluster.pod == cluster.pod[found.places[0].node]
        elif pool is not None and not pool.spans:
            return Failed("network")
        able = flags if inside is None else flags & inside
        chosen: list[int] = []
        fits = np.bincount(cluster.rack[able], minlength=len(cluster.by_rack))
        missing = main.nodes
        while missing:
            full = np.nonzero(fits >= missing)[0]
            rack = int(full[int(fits[full].argmin())]) if len(full) else int(fits.argmax())
            nodes = np.nonzero(able & (cluster.rack == rack))[0]
            part = self._in_a_row(nodes, main._replace(nodes=min(missing, len(nodes))), until)
            chosen += part
            missing -= len(part)
            fits[rack] = 0
        places = [self._place(node, main.ask) for node in chosen]
        if rest is not None and also is not None:
            others = also.copy()
            others[chosen] = False
            near = others & (cluster.rack == cluster.rack[chosen[-1]])
            left = np.nonzero(near if near.any() else others if inside is None else others & inside)[0]
            if not len(left):
                left = np.nonzero(others)[0]
            if not len(left):
                return Failed("room")
            places.append(self._place(self._best(left, rest.ask, until), rest.ask))
        return Placed(tuple(places), self.reach_of([place.node for place in places], "core"))

    def reach(self, places: Sequence[Place]) -> str:
        """The smallest room that these places share."""
        return self.reach_of([place.node for place in places], "rack")

    def reach_of(self, nodes: Sequence[int], name: str) -> str:
        """The smallest room that these nodes share."""
        if len(nodes) == 1:
            return "node"
        cluster = self._cluster
        if not cluster.has_racks:
            return name
        if len({int(cluster.rack[node]) for node in nodes}) == 1:
            return "rack"
        return "pod" if len({int(cluster.pod[node]) for node in nodes}) == 1 else "core"


def _until(entry: Entry, now: int) -> int:
    """When the job ends at the latest; 0: nobody knows."""
    return 0 if entry.length >= UNBOUNDED else now + entry.length
