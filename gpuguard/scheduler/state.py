"""Everything the core knows: a fold of events. `cycle` takes it over and gives it back changed; nobody else writes here."""

from collections.abc import Iterable
from heapq import heappop, heappush

from gpuguard.scheduler.backfill import Booking, Bookings
from gpuguard.scheduler.cluster import NEVER, Cluster, Place
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.placement import Placement
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.queue import Entry, Key, Queue, Shape
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings


class Running:
    """A job that has places. Not frozen: the core folds what happens to it."""

    __slots__ = (
        "checkpointed", "end", "entry", "hung", "job", "network", "places", "prepared", "progressed", "signalled",
        "started", "why",
    )  # fmt: skip

    def __init__(self, entry: Entry, places: tuple[Place, ...], network: str, started: int, end: int) -> None:
        self.job: Job = entry.job
        self.entry = entry
        self.places = places
        self.network = network
        self.started = started
        self.end = end
        self.prepared: int | None = None
        self.progressed: int | None = None
        self.checkpointed: int | None = None
        self.signalled: int | None = None
        self.why = ""
        self.hung = False


class State:
    """What was told and what was decided, up to `now`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.now = 0
        self.joined: dict[str, NodeJoined] = {}
        self.queue = Queue(self.settings)
        self.running: dict[str, Running] = {}
        self.cluster = Cluster()
        self._ends: list[tuple[int, str, int]] = []
        self.reserved: list[tuple[Key, str, Booking]] = []
        self.dead: dict[Shape, int] = {}
        self.reasons: dict[tuple[Shape, int], str] = {}
        self.stale = True
        self.looks: int = NEVER
        self._renew()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """The arrays hold the nodes that have joined, and everybody keeps his places."""
        before = self.cluster
        self.cluster = Cluster(self.joined.values())
        for run in self.running.values():
            run.places = tuple(
                place._replace(node=self.cluster.index[before.names[place.node]])
                for place in run.places
                if before.names[place.node] in self.cluster.index
            )
            for place in run.places:
                self.cluster.take(run.job.id, place, run.end)
        self._renew()

    def _renew(self) -> None:
        self.bookings = Bookings(self.cluster)
        self.placement = Placement(self.cluster, self.bookings, self.settings)
        self.stale = True

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def start(self, entry: Entry, places: tuple[Place, ...], network: str) -> Running:
        """The job holds its places from now on; whoever called takes it out of the queue."""
        length = self.settings.tiers[entry.job.tier].session
        end = min(self.now + entry.length, NEVER)
        if length is not None:
            end = min(end, self.now + length)
        run = Running(entry, places, network, self.now, end)
        self.running[entry.job.id] = run
        for place in places:
            self.cluster.take(entry.job.id, place, end)
            self.bookings.changed(place.node)
        if end < NEVER:
            heappush(self._ends, (end, entry.job.id, entry.restarts))
        return run

    def stop(self, job: str) -> Running:
        """The job's places are free again."""
        run = self.running.pop(job)
        for place in run.places:
            self.cluster.give(job, place.node)
        self.stale = True
        return run

    def due(self, now: int) -> Iterable[Running]:
        """Those whose time is up."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            _, job, restarts = heappop(ends)
            run = self.running.get(job)
            if run is not None and run.entry.restarts == restarts and run.end <= now:
                yield run

    def next_end(self) -> int:
        """When the next walltime ends."""
        ends = self._ends
        while ends:
            end, job, restarts = ends[0]
            run = self.running.get(job)
            if run is not None and run.entry.restarts == restarts and run.end == end:
                return end
            heappop(ends)
        return NEVER

    def shares(self, places: Iterable[Place]) -> tuple[Share, ...]:
        """Places as they are told outside."""
        names = self.cluster.names
        return tuple(
            Share(names[place.node], place.mask, place.milli, place.amounts[0], place.amounts[1]) for place in places
        )
