"""Reservations: places planned for the first of those who wait, which nobody who starts before them may touch.

A reservation is of GPUs, not of nodes. A node with reservations is known by four things: when the first of them starts,
how much all of them take at most at one time, when the last of them ends, and what will be free beside them when the
first starts (its shadow). Somebody who starts now may use the node if he is gone before the first starts, or fits into
the shadow for as long as he likes. All of it errs to the careful side: what runs is taken to end at its walltime, what
is reserved to be reserved at once, so a planned start can only come true earlier.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuguard.scheduler.cluster import NEVER, RESOURCES, Ask, Cluster, Flags, Ints
from gpuguard.scheduler.queue import Chunk


class Booking(NamedTuple):
    """A planned start: when, until when, and on which nodes what."""

    start: int
    end: int
    nodes: tuple[tuple[int, Ask], ...]


class _Times(NamedTuple):
    """For each node when it could give so much: from the releases alone, beside what is reserved, after that."""

    bare: Ints
    beside: Ints
    after: Ints


class Bookings:
    """The reservations of one pass, on top of the releases of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        size = len(cluster.nodes)
        self.start: Ints = np.full(size, NEVER, dtype=np.int64)
        self.end: Ints = np.zeros(size, dtype=np.int64)
        self.taken: Ints = np.zeros((1 + len(RESOURCES), size), dtype=np.int64)
        self.shadow: Ints = np.full((1 + len(RESOURCES), size), NEVER, dtype=np.int64)
        self.booked: Flags = np.zeros(size, dtype=np.bool_)
        self._nodes: list[int] = []
        self._array: Ints = np.zeros(0, dtype=np.int64)
        self._bare: dict[Ask, Ints] = {}

    def clear(self) -> None:
        """Nothing is reserved."""
        self._bare.clear()
        nodes = self._nodes
        if not nodes:
            return
        self.start[nodes] = NEVER
        self.end[nodes] = 0
        self.taken[:, nodes] = 0
        self.shadow[:, nodes] = NEVER
        self.booked[nodes] = False
        self._nodes = []
        self._array = np.zeros(0, dtype=np.int64)

    def allow(self, flags: Flags, ask: Ask, until: int) -> Flags:
        """Those of the nodes where somebody who stays until then moves no reservation."""
        if not self._nodes:
            return flags
        beside = (self.shadow[0] >= ask.planned) & (not ask.alone)
        for row, amount in enumerate(ask.amounts, 1):
            if amount and self._cluster.constrains[row - 1]:
                beside &= self.shadow[row] >= amount
        allowed: Flags = flags & ((self.start >= until) | beside)
        return allowed

    def book(self, booking: Booking) -> None:
        """The booking stands."""
        for node, ask in booking.nodes:
            # Beside one that is to be alone there is no room, not even for work without GPUs.
            wants = (int(self._cluster.size[node]) + 1 if ask.alone else ask.planned, *ask.amounts)
            if not self.booked[node]:
                self.booked[node] = True
                self._nodes.append(node)
                self.start[node], self.end[node] = booking.start, booking.end
                self.taken[:, node] = wants
            else:
                if booking.start >= self.end[node]:
                    self.taken[:, node] = np.maximum(self.taken[:, node], wants)
                else:
                    self.taken[:, node] += wants
                self.start[node] = min(int(self.start[node]), booking.start)
                self.end[node] = max(int(self.end[node]), booking.end)
            self._cast(node)
        self._array = np.array(self._nodes, dtype=np.int64)

    def changed(self, node: int) -> None:
        """Somebody started on the node: its shadow is another, and so are its releases."""
        self._bare.clear()
        if self.booked[node]:
            self._cast(node)

    def _cast(self, node: int) -> None:
        cluster = self._cluster
        column = cluster.column(node, self.start[node])
        for row in cluster.counted:
            self.shadow[row, node] = cluster.frees[row, node, column] - self.taken[row, node]

    # -- when could somebody start ------------------------------------------------------------------------------------

    def earliest(self, chunks: Sequence[Chunk], length: int, least: int, groups: Ints | None = None) -> Booking | None:
        """The first start from `least` on at which all chunks fit, within one of the groups where there are any.

        Shape   groups: the nodes of each group in a row, filled up with -1
        """
        if not self._cluster.nodes:
            return None
        main, rest = chunks[0], chunks[1] if len(chunks) > 1 else None
        if main.nodes == 1 and rest is None and groups is None:
            found = self._soonest(main.ask, length, least)
            if found is not None:
                return found
        times = self._times(main.ask)
        other = None if rest is None else self._times(rest.ask)
        for careful in (False, True):
            first = self._first(times, main.ask, length, careful)
            second = None if other is None or rest is None else self._first(other, rest.ask, length, careful)
            start, members = meet(first, main.nodes, second, groups)
            if start >= NEVER:
                return None
            start = max(start, least)
            valid = self._valid(times, start, length)
            also = None if other is None else self._valid(other, start, length)
            chosen = self._choose(chunks, valid, also, start, members)
            if chosen is not None:
                return Booking(start, start + length, chosen)
        return None

    def _soonest(self, ask: Ask, length: int, least: int) -> Booking | None:
        """The first start on one node; None where it is before `least`, or there is none: that takes a closer look."""
        bare = self._bare_of(ask)
        if self._nodes:
            nodes = self._array
            early = bare[nodes]
            late = np.minimum(self._beside(ask, nodes), self.end[nodes])
            bare = bare.copy()
            bare[nodes] = np.where(early + length <= self.start[nodes], early, np.maximum(late, early))
        start = int(bare.min()) if len(bare) else NEVER
        if start < least or start >= NEVER:
            return None
        nodes = (bare == start).nonzero()[0]
        if len(nodes) == 1:
            node = int(nodes[0])
        else:
            whole = self._bare[ask] if ask.gpus == self._cluster.most else None
            node = self._tightest(nodes, 1, start, whole)[0]
        return Booking(start, start + length, ((node, ask),))

    def _bare_of(self, ask: Ask) -> Ints:
        bare = self._bare.get(ask)
        if bare is None:
            bare = self._bare[ask] = self._ready(ask)
        return bare

    def _beside(self, ask: Ask, nodes: Ints) -> Ints:
        """From when on nodes with reservations give so much beside all that is reserved there."""
        if ask.alone:
            return np.full(len(nodes), NEVER, dtype=np.int64)
        amounts = [
            amount + self.taken[row, nodes] if amount and self._cluster.constrains[row - 1] else 0
            for row, amount in enumerate(ask.amounts, 1)
        ]
        return self._cluster.ready(nodes, ask.planned + self.taken[0, nodes], amounts, ask.spares)

    def _times(self, ask: Ask) -> _Times:
        bare = self._bare_of(ask)
        beside = bare
        after = bare
        if self._nodes:
            nodes = self._array
            late = self._beside(ask, nodes)
            beside = bare.copy()
            beside[nodes] = np.maximum(late, bare[nodes])
            after = bare.copy()
            after[nodes] = np.maximum(self.end[nodes], bare[nodes])
        return _Times(bare, beside, after)

    def _ready(self, ask: Ask) -> Ints:
        cluster = self._cluster
        able = cluster.able(ask)
        if ask.card_memory:
            able &= cluster.card_memory >= ask.card_memory
        bare = cluster.ready(None, ask.planned, ask.amounts, ask.spares)
        # Alone it waits for the last who is there, and so does everybody where one is alone.
        if ask.alone:
            bare = np.maximum(bare, cluster.empty)
        else:
            bare = np.where(cluster.sole, np.maximum(bare, cluster.empty), bare)
        bare[~able] = NEVER
        return bare

    def _first(self, times: _Times, ask: Ask, length: int, careful: bool) -> Ints:
        """When each node could first take it. Careful: and from then on at any time."""
        if not self._nodes:
            return times.bare
        late = np.minimum(times.beside, times.after)
        if careful:
            return late
        return np.where(times.bare + length <= self.start, times.bare, late)

    def _valid(self, times: _Times, start: int, length: int) -> Flags:
        valid = times.bare <= start
        if self._nodes:
            valid &= (self.start >= start + length) | (times.beside <= start) | (times.after <= start)
        return valid

    def _choose(
        self, chunks: Sequence[Chunk], valid: Flags, also: Flags | None, start: int, members: Ints | None
    ) -> tuple[tuple[int, Ask], ...] | None:
        """The nodes with least to spare then, in order; None where they are too few."""
        main = chunks[0]
        if members is not None:
            inside = np.zeros(len(valid), dtype=np.bool_)
            inside[members] = True
            valid = valid & inside
            also = None if also is None else also & inside
        nodes = np.nonzero(valid)[0]
        if len(nodes) < main.nodes:
            return None
        if len(nodes) == 1 and len(chunks) == 1:
            return ((int(nodes[0]), main.ask),)
        whole = self._bare[main.ask] if main.ask.gpus == self._cluster.most else None
        chosen = self._tightest(nodes, main.nodes, start, whole)
        places = [(node, main.ask) for node in chosen]
        if also is not None:
            also = also.copy()
            also[chosen] = False
            nodes = np.nonzero(also)[0]
            if not len(nodes):
                return None
            places += [(node, chunks[1].ask) for node in self._tightest(nodes, 1, start)]
        return tuple(places)

    def _tightest(self, nodes: Ints, count: int, start: int, whole: Ints | None = None) -> list[int]:
        if len(nodes) == count:
            chosen: list[int] = nodes.tolist()
            return chosen
        cluster = self._cluster
        if whole is not None:
            # Just in time: those that come free last are wanted by nobody before.
            order = np.argsort(-whole[nodes], kind="stable")[:count]
            late: list[int] = nodes[order].tolist()
            return late
        column = (cluster.ends[nodes] <= start).sum(axis=1) - 1
        free = cluster.frees[0, nodes, column] - self.taken[0, nodes]
        order = np.argsort(free, kind="stable")[:count]
        found: list[int] = nodes[order].tolist()
        return found


def meet(first: Ints, count: int, second: Ints | None, groups: Ints | None) -> tuple[int, Ints | None]:
    """The first instant at which enough nodes can, of one group where there are groups, and the nodes of that group.

    Shape   first: when each node can give the parts of which there are `count`; second: when it can give the one part
            that is left, where there is one; groups: nodes in rows, filled up with -1
    """
    more = 0 if second is None else 1
    if groups is None:
        if len(first) < count + more:
            return NEVER, None
        start = int(np.partition(first, count - 1)[count - 1])
        if second is not None:
            start = max(start, int(np.partition(second, count)[count]))
        return start, None
    if groups.shape[1] < count + more:
        return NEVER, None
    starts = _nth(first, groups, count - 1)
    if second is not None:
        starts = np.maximum(starts, _nth(second, groups, count))
    group = int(starts.argmin())
    members = groups[group]
    return int(starts[group]), members[members >= 0]


def _nth(values: Ints, groups: Ints, place: int) -> Ints:
    padded = np.append(values, NEVER)
    nth: Ints = np.partition(padded[groups], place, axis=1)[:, place]
    return nth
