"""Where the free GPUs that usual asks cannot use grow least: fragmentation gradient descent.

Theory  The score of a node is its waste after the ask has gone in, less its waste now; it may be negative. Of a shared
        GPU that a share can go to, the one with the least growth is taken, then the fullest. Scores are kept by ask;
        of a node that changed only its own are made anew, and equal rooms are judged once, which makes a cluster of
        equal nodes and whole GPUs a table look-up.
Source  Weng et al., "Beware of Fragmentation" (USENIX ATC 2023); the measure is `waste`, the usual asks are `mix`
"""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.mix import Mix
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.scoring import Ints, Vacancy, Want
from gpuguard.scheduler.waste import Rooms, Waste

CELLS = 4_000_000
"""Scores kept at most, over all asks: 36 MB."""
ROOMS = 4096
"""Rooms remembered by ask at most."""
FEW = 16
"""Nodes up to which rooms are looked up one by one; more are judged together."""


class _Row:
    """The scores of one ask: `known` says of which nodes, `read` how much of the journal it has seen."""

    def __init__(self, size: int, read: int) -> None:
        self.scores: Ints = np.zeros(size, dtype=np.int64)
        self.known = np.zeros(size, dtype=np.bool_)
        self.read = read
        self.rooms: dict[tuple[int, ...], int] = {}


class Fragmentation:
    """The growth of waste, for the mix of asks seen so far."""

    name: ClassVar[str] = "fragmentation"

    def __init__(self, vacancy: Vacancy) -> None:
        self._vacancy = vacancy
        self._mix = Mix()
        self._kinds = int(vacancy.kind.max(initial=0)) + 1
        self._waste = Waste((), self._kinds)
        self._rows: dict[Want, _Row] = {}
        self._journal: list[int] = []

    def observe(self, want: Want) -> None:
        """The ask counts among the usual ones; where that changes the list, all is judged anew."""
        if self._mix.observe(want):
            self._waste = Waste(self._mix.typical, self._kinds)
            self._forget()

    def changed(self, node: int) -> None:
        """The node's scores are stale."""
        self._journal.append(node)
        if len(self._journal) > 16 * len(self._vacancy.cpus) + 1024:
            self._forget()

    def _forget(self) -> None:
        self._rows.clear()
        self._journal.clear()

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        """The growth on each of these nodes."""
        row = self._row(want)
        missing = nodes[~row.known[nodes]]
        if len(missing):
            row.scores[missing] = (
                self._looked_up(want, row, missing) if len(missing) <= FEW else self._all(want, missing)
            )
            row.known[missing] = True
        scores: Ints = row.scores[nodes]
        return scores

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        """The GPU on which a share makes waste grow least, then the fullest, then the first."""
        free = self._vacancy.milli[node].tolist()
        cards = [card for card, amount in enumerate(free) if allowed >> card & 1 and amount >= want.milli]
        if not cards or not want.milli:
            return None
        if len({free[card] for card in cards}) == 1:
            return cards[0]
        after = self._after(want, self._rooms(np.full(len(cards), node, dtype=np.int64)), np.array(cards))
        growth = self._waste.of(after).tolist()
        return min(zip(growth, (free[card] for card in cards), cards, strict=True))[2]

    # -- what is kept -------------------------------------------------------------------------------------------------

    def _row(self, want: Want) -> _Row:
        row = self._rows.get(want)
        if row is None:
            size = len(self._vacancy.cpus)
            if len(self._rows) * size > CELLS:
                self._forget()
            row = self._rows[want] = _Row(size, len(self._journal))
        elif row.read < len(self._journal):
            row.known[self._journal[row.read :]] = False
            row.read = len(self._journal)
        return row

    def _looked_up(self, want: Want, row: _Row, nodes: Ints) -> Ints:
        """The scores of a few nodes; only rooms not met before are judged."""
        vacancy = self._vacancy
        keys = []
        new: dict[tuple[int, ...], int] = {}
        for node in nodes.tolist():
            key = (
                int(vacancy.kind[node]),
                int(vacancy.cpus[node]),
                int(vacancy.memory[node]),
                *sorted(vacancy.milli[node].tolist()),
            )
            keys.append(key)
            if key not in row.rooms:
                new.setdefault(key, node)
        if new:
            if len(row.rooms) > ROOMS:
                row.rooms.clear()
                return self._all(want, nodes)
            judged = self._growth(want, self._rooms(np.fromiter(new.values(), dtype=np.int64, count=len(new))))
            row.rooms.update(zip(new, judged.tolist(), strict=True))
        return np.fromiter((row.rooms[key] for key in keys), dtype=np.int64, count=len(keys))

    # -- judging ------------------------------------------------------------------------------------------------------

    def _rooms(self, nodes: Ints) -> Rooms:
        vacancy = self._vacancy
        milli = vacancy.milli[nodes].astype(np.int64)
        return Rooms(milli, vacancy.cpus[nodes], vacancy.memory[nodes], vacancy.kind[nodes])

    def _all(self, want: Want, nodes: Ints) -> Ints:
        """The scores of many nodes, equal rooms judged once."""
        rooms = self._rooms(nodes)
        lines = np.column_stack([np.sort(rooms.milli, axis=1), rooms.cpus, rooms.memory, rooms.kind])
        whole = np.ascontiguousarray(lines).view(np.dtype((np.void, lines.itemsize * lines.shape[1]))).ravel()
        _, first, of = np.unique(whole, return_index=True, return_inverse=True)
        growth: Ints = self._growth(want, rooms.pick(first))[of.ravel()]
        return growth

    def _growth(self, want: Want, rooms: Rooms) -> Ints:
        before = self._waste.of(rooms)
        if not want.milli:
            growth: Ints = self._waste.of(self._after(want, rooms, None)) - before
            return growth
        # Each GPU that has enough is a try; of equal ones in a node one does.
        milli = np.sort(rooms.milli, axis=1)
        sorted_rooms = rooms._replace(milli=milli)
        tries = milli >= want.milli
        tries[:, 1:] &= milli[:, 1:] != milli[:, :-1]
        line, card = np.nonzero(tries)
        after = self._waste.of(self._after(want, sorted_rooms.pick(line), card))
        least = np.full(len(milli), np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(least, line, after)
        shared: Ints = least - before
        return shared

    def _after(self, want: Want, rooms: Rooms, cards: Ints | None) -> Rooms:
        """The rooms once the ask is in: whole GPUs are interchangeable, a share goes to the card of its line."""
        milli = rooms.milli.copy()
        if want.milli and cards is not None:
            milli[np.arange(len(milli)), cards] -= want.milli
        elif want.gpus:
            free = milli == WHOLE
            milli[free & (np.cumsum(free, axis=1) <= want.gpus)] = 0
        return Rooms(milli, rooms.cpus - want.cpus, rooms.memory - want.memory, rooms.kind)


def build(vacancy: Vacancy) -> Fragmentation:
    return Fragmentation(vacancy)
