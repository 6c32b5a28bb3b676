"""When each GPU of the cluster comes free, and jobs planned on top of that, one after the other.

Theory. Reservations know a node by four numbers, which is exact for the few that bind; of hundreds on a node each
would begin after all others end. Here a node is a row of instants, one for each of its GPUs, in ascending order:
the g-th is when g of them are free. A job that has to leave GPUs empty until others join them makes a gap; shorter jobs
behind it may use that until its start (`gap`), as backfill would let them. One gap a node is kept, and what is beside
GPUs (cores, memory) is taken to be as what runs now leaves it. Both errors are small against those of walltimes.

Shape   late, early: by node and rank of its GPUs, NEVER where one does not come back. early: the same, but before the
        gap's end
"""

from collections.abc import Callable, Sequence

import numpy as np

from gpuguard.scheduler.backfill import Booking, meet
from gpuguard.scheduler.cluster import NEVER, Ask, Cluster, Flags, Ints
from gpuguard.scheduler.queue import Chunk


class Timeline:
    """The plan of one forecast; it reads the cluster and writes only itself."""

    def __init__(self, cluster: Cluster, now: int, end_of: Callable[[str, int], int]) -> None:
        """`end_of`: when a job that runs is taken to end, given its promised end."""
        self._cluster = cluster
        self._now = now
        size = len(cluster.nodes)
        self._empty: Ints = np.full(size, now, dtype=np.int64)
        self.late: Ints = np.full((size, max(cluster.most, 1)), NEVER, dtype=np.int64)
        for node in range(size):
            if cluster.usable[node]:
                self._row(node, end_of)
        self.late.sort(axis=1)
        self.early = self.late.copy()
        self.gap: Ints = np.full(size, NEVER, dtype=np.int64)
        self._bare: dict[Ask, Ints] = {}

    def _row(self, node: int, end_of: Callable[[str, int], int]) -> None:
        cluster = self._cluster
        row = self.late[node]
        good = cluster.good[node] & ~cluster.held[node]
        for card in range(int(cluster.size[node])):
            if good >> card & 1:
                row[card] = self._now
        for tenant in cluster.tenants[node].values():
            mask = tenant.place.mask & good
            end = max(self._now, end_of(tenant.job, tenant.end))
            self._empty[node] = max(int(self._empty[node]), end)
            for card in range(int(cluster.size[node])):
                if mask >> card & 1:
                    row[card] = max(int(row[card]), end)

    def book(self, booking: Booking) -> None:
        """What is planned already stands."""
        for node, ask in booking.nodes:
            self._take(node, ask.planned, booking.start, booking.end, False)

    def plan(self, chunks: Sequence[Chunk], length: int, least: int, groups: Ints | None = None) -> Booking | None:
        """The first places from `least` on, in one of the groups where there are any; they are not taken yet."""
        main, rest = chunks[0], chunks[1] if len(chunks) > 1 else None
        for careful in (False, True):
            first = self._first(main.ask, length, least, careful)
            second = None if rest is None else self._first(rest.ask, length, least, careful)
            start, members = meet(first, main.nodes, second, groups)
            if start >= NEVER:
                return None
            nodes = self._nodes(chunks, length, start, members)
            if nodes is not None:
                return Booking(start, start + length, nodes)
        return None

    def take(self, booking: Booking) -> None:
        """The places that `plan` gave are the job's."""
        for node, ask in booking.nodes:
            gpus = ask.planned
            if gpus:
                inside = self._inside(node, gpus, booking.start, booking.end)
                self._take(node, gpus, booking.start, booking.end, inside)

    # -- when ---------------------------------------------------------------------------------------------------------

    def _first(self, ask: Ask, length: int, least: int, careful: bool) -> Ints:
        """When each node can first take it. Careful: and at any time after."""
        bare, gpus = self._of(ask), ask.planned
        if not gpus:
            return np.maximum(bare, least)
        late = np.maximum(np.maximum(self.late[:, gpus - 1], bare), least)
        if careful:
            return late
        early = np.maximum(np.maximum(self.early[:, gpus - 1], bare), least)
        return np.where((self.gap < NEVER) & (early + length <= self.gap), early, late)

    def _of(self, ask: Ask) -> Ints:
        """From when on each node has what goes beside GPUs; NEVER where it must not run."""
        bare = self._bare.get(ask)
        if bare is None:
            cluster = self._cluster
            able: Flags = cluster.able(ask)
            if ask.card_memory:
                able = able & (cluster.card_memory >= ask.card_memory)
            bare = cluster.ready(None, 0, ask.amounts)
            # Once a node is empty all of it is there: that may be known to be sooner than what was promised.
            bare = np.where(bare < NEVER, np.minimum(bare, self._empty), NEVER)
            if ask.alone:
                bare = np.maximum(bare, self._empty)
            bare[~able] = NEVER
            self._bare[ask] = bare
        return bare

    def _nodes(
        self, chunks: Sequence[Chunk], length: int, start: int, members: Ints | None
    ) -> tuple[tuple[int, Ask], ...] | None:
        """Those that come free last before the start, so that what is free before is left to others."""
        places: list[tuple[int, Ask]] = []
        inside = np.ones(len(self.late), dtype=np.bool_)
        if members is not None:
            inside[:] = False
            inside[members] = True
        for chunk in chunks:
            bare, gpus = self._of(chunk.ask), chunk.ask.planned
            valid = inside & (bare <= start)
            since = np.maximum(bare, 0)
            if gpus:
                free = self.late[:, gpus - 1]
                gap = (self.early[:, gpus - 1] <= start) & (start + length <= self.gap) & (self.gap < NEVER)
                valid = valid & ((free <= start) | gap)
                since = np.where(free <= start, free, self.early[:, gpus - 1])
            found = np.nonzero(valid)[0]
            if len(found) < chunk.nodes:
                return None
            chosen = found[np.argsort(-since[found], kind="stable")[: chunk.nodes]].tolist()
            inside[chosen] = False
            places += [(node, chunk.ask) for node in chosen]
        return tuple(places)

    # -- taking -------------------------------------------------------------------------------------------------------

    def _inside(self, node: int, gpus: int, start: int, end: int) -> bool:
        """It runs in the gap of the node."""
        gap = int(self.gap[node])
        return gap < NEVER and end <= gap and int(self.early[node, gpus - 1]) <= start

    def _take(self, node: int, gpus: int, start: int, end: int, inside: bool) -> None:
        late, early = self.late[node], self.early[node]
        if inside:
            # What is planned after the gap stands; only GPUs that are not part of it are taken from there too.
            among = int(np.searchsorted(early, start, side="right")) - int(np.searchsorted(late, start, side="right"))
            if gpus > among:
                _occupy(late, gpus - among, start, end)
            _occupy(early, gpus, start, end)
            return
        if not gpus:
            return
        at = int(np.searchsorted(late, start, side="right"))
        free = late[max(0, at - gpus) : at]
        empty = self.gap[node] >= NEVER and len(free) and int(free.min()) < start and start > self._now
        if empty:
            early[:] = late
            self.gap[node] = start
        _occupy(late, gpus, start, end)
        if not empty:
            _occupy(early, gpus, start, end)


def _occupy(row: Ints, gpus: int, start: int, end: int) -> None:
    """The GPUs of the row that come free last by the start are free again at the end."""
    at = max(gpus, int(np.searchsorted(row, start, side="right")))
    row[at - gpus : at] = np.maximum(row[at - gpus : at], end)
    row.sort()
