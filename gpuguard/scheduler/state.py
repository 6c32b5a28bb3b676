"""Everything the core knows: a fold of events. `cycle` takes it over and gives it back changed; nobody else writes it.

A job is in one of three places: `waiting` (something must come true first), `queue` (room is missing), `running`. The
moves between them are here, so that what depends on them (the cluster, fair share, caps, records) never lags behind.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.admission import Admission, allowed
from gpuguard.scheduler.backfill import Booking, Bookings
from gpuguard.scheduler.capacity import kinds
from gpuguard.scheduler.cluster import NEVER, Ask, Cluster, Place
from gpuguard.scheduler.dependencies import Dependencies
from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.fairshare import FairShare
from gpuguard.scheduler.fairtree import Standing
from gpuguard.scheduler.hole import Hole
from gpuguard.scheduler.hopeless import Hopeless
from gpuguard.scheduler.layout import Part, resized, sizes
from gpuguard.scheduler.learned import Learned
from gpuguard.scheduler.measures import Measures
from gpuguard.scheduler.nodes import NodeLife, bad_gpus, due, usable
from gpuguard.scheduler.placement import Placement
from gpuguard.scheduler.plan import Reservation, Share
from gpuguard.scheduler.preemption import Budget
from gpuguard.scheduler.queue import UNBOUNDED, Chunk, Entry, Key, Queue, Shape, Terms
from gpuguard.scheduler.ranks import rank
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE, Job, Level
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.turnover import NO_TURNING, Turnover

OUTCOMES = 200_000
"""Ends of so many jobs are remembered, for those that name them as parents later."""


class Running:
    """A job that has places. Not frozen: the core folds what happens to it."""

    __slots__ = (
        "checkpointed", "end", "entry", "job", "level", "lost", "network", "places", "price", "rank", "signalled",
        "started", "why",
    )  # fmt: skip

    def __init__(self, entry: Entry, places: tuple[Place, ...], network: str, started: int, end: int) -> None:
        self.job: Job = entry.job
        self.entry = entry
        self.places = places
        self.network = network
        self.started = started
        self.end = end
        self.level: Level = entry.job.level
        self.rank = 0
        self.price = 0
        self.checkpointed: int | None = None
        self.signalled: int | None = None
        self.why = ""
        # The nodes that are proven dead: where all are, nobody is left who could tell its end.
        self.lost: dict[str, None] = {}

    @property
    def gpus(self) -> int:
        """What it holds, in thousandths of a GPU."""
        return sum(place.mask.bit_count() * place.milli for place in self.places)


class Held:
    """Room kept for a job while others leave. `end`: when the job has left it again, at the latest."""

    __slots__ = ("end", "hole", "places")

    def __init__(self, hole: Hole, places: tuple[Place, ...], span: int) -> None:
        self.hole = hole
        self.places = places
        self.end = min(hole.until + span, NEVER)


class State:
    """What was told and what was decided, up to `now`."""

    def __init__(self, settings: Settings | None = None, *, epoch: int = 0) -> None:
        self.settings = settings or Settings()
        self.now = 0
        self.joined: dict[str, NodeJoined] = {}
        self.lives: dict[str, NodeLife] = {}
        self._lives_due: list[tuple[int, str]] = []
        self.cluster = Cluster()
        self.admission = Admission(self.settings, ())
        self.dependencies = Dependencies()
        self.share = FairShare.of(self.settings, epoch=epoch)
        self.standing: Standing | None = None
        self.ranked = 0
        self.queue = Queue(self.settings)
        self.turnover = Turnover(self.settings.turning if self.settings.topology else NO_TURNING)
        self.waiting: dict[str, Entry] = {}
        self.running: dict[str, Running] = {}
        self.outcomes: dict[str, bool] = {}
        self.records: dict[str, Record] = {}
        self.ended: list[Record] = []
        self.learned = Learned()
        self.measures = Measures(epoch=epoch)
        self._ends: list[tuple[int, str, int]] = []
        # What the last pass found; kept until something changes it.
        self.reserved: list[tuple[Key, str, Booking]] = []
        self.planned: tuple[Reservation, ...] = ()
        self.dead: dict[Shape, int] = {}
        self.hopeless = Hopeless()
        # No node had more whole GPUs free than this when the last pass began.
        self.top = 0
        self.apart: dict[Shape, int] = {}
        self.rules: dict[Shape, str] = {}
        self.closed: dict[tuple[str, str], str] = {}
        self.stale = True
        self.head = ""
        self.looks: int = NEVER
        # Making room.
        self.holes: dict[str, Held] = {}
        self.budget = Budget()
        self.last_yield: dict[str, tuple[int, int]] = {}
        self.yielding: dict[int, int] = {}
        # Who asked last that others leave, and why they did not.
        self.denied = ("", "")
        # What is held now, in thousandths of a GPU, and watts by pool.
        self.allocated = 0
        self.high = 0
        self.by_queue: dict[str, int] = {}
        self.watts: dict[str, float] = {}
        self._renew()

    # -- nodes --------------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """The arrays hold the nodes that have joined, and everybody keeps his places."""
        before = self.cluster
        self.cluster = Cluster(self.joined.values())
        index, names = self.cluster.index, before.names
        for run in self.running.values():
            run.places = tuple(place._replace(node=index[names[place.node]]) for place in run.places)
            for place in run.places:
                self.cluster.take(run.job.id, place, run.end)
        self.cluster.short = self.cluster.overdrawn()
        for held in self.holes.values():
            held.places = tuple(place._replace(node=index[names[place.node]]) for place in held.places)
            for place in held.places:
                self.cluster.hold(place, held.end)
        for life in self.lives.values():
            self.judge(life)
        # The nodes may draw other watts than before.
        self.watts = {}
        for run in self.running.values():
            self._draw(run, 1)
        self.admission = Admission(self.settings, kinds(self.joined.values()))
        self._lay_anew()
        self._renew()
        for entry in (
            *self.waiting.values(),
            *self.queue.entries.values(),
            *(run.entry for run in self.running.values()),
        ):
            self.placement.observe(entry.shape.terms.chunks[0].ask)

    def _lay_anew(self) -> None:
        """Those who wait lie as they fit the nodes that there are now; who fits none keeps hoping for the old ones."""
        known: dict[tuple[Shape, tuple[Part, ...]], Shape] = {}
        for entry in [*self.waiting.values(), *self.queue.entries.values()]:
            asked = self.admission.capacity.fitting(entry.job)
            if asked is None:
                continue
            shape = known.get((entry.shape, asked))
            if shape is None:
                shape = known[entry.shape, asked] = self._shape(entry.job, asked)
            smaller = self._smaller(entry.job) if entry.smaller or entry.job.least_gpus is not None else ()
            if shape is entry.shape and smaller == entry.smaller:
                continue
            queued = entry.job.id in self.queue
            if queued:
                self.queue.remove(entry.job.id)
            entry.shape, entry.smaller = shape, smaller
            if queued:
                self.queue.add(entry, self.factor(entry), self.now)

    def _renew(self) -> None:
        self.bookings = Bookings(self.cluster)
        self.placement = Placement(self.cluster, self.bookings, self.settings)
        self.turnover.settle(self.cluster, self.now)
        self.stale = True

    def live(self, life: NodeLife) -> None:
        """The node's life is this now."""
        self.lives[life.node] = life
        at = due(life, self.settings.care)
        if at is not None:
            heappush(self._lives_due, (at, life.node))
        self.judge(life)

    def judge(self, life: NodeLife) -> None:
        node = self.cluster.index.get(life.node)
        if node is not None and self.cluster.judge(node, usable(life), bad_gpus(life)):
            self.stale = True
            self.measures.due = self.now

    def lives_due(self, now: int) -> Iterator[NodeLife]:
        """The lives in which something falls due until now; each once."""
        names: dict[str, None] = {}
        while self._lives_due and self._lives_due[0][0] <= now:
            names[heappop(self._lives_due)[1]] = None
        for name in names:
            if name in self.lives:
                yield self.lives[name]

    def next_life(self) -> int:
        return self._lives_due[0][0] if self._lives_due else NEVER

    # -- jobs that wait -----------------------------------------------------------------------------------------------

    def job(self, id: str) -> Job | None:
        """A job that waits or runs."""
        entry = self.queue.entries.get(id) or self.waiting.get(id)
        if entry is not None:
            return entry.job
        run = self.running.get(id)
        return None if run is None else run.job

    def knows(self, job: str) -> bool:
        return job in self.records or job in self.outcomes

    def __contains__(self, job: object) -> bool:
        """The id is of a job that was submitted before."""
        return isinstance(job, str) and self.knows(job)

    def submit(self, job: Job, at: int) -> Entry:
        """The job is known; whoever called decides whether it waits or queues."""
        asked = self.admission.capacity.fitting(job)
        if asked is None:
            raise InvariantBroken(f"job {job.id} was admitted and fits no nodes: report it with the job as submitted")
        shape = self._shape(job, asked)
        longest = allowed(job, self.settings)
        entry = Entry(job, shape, at, UNBOUNDED if longest is None else longest)
        if job.least_gpus is not None:
            entry.smaller = self._smaller(job)
        self.records[job.id] = Record(
            job=job.id, user=job.user, account=job.account, queue=job.queue, tier=job.tier, submitted=at,
            gpus=job.gpus * job.gpu_milli, walltime=job.walltime,
        )  # fmt: skip
        self.share.enrol(entry.holder)
        self.measures.submitted(self.now)
        self.placement.observe(shape.terms.chunks[0].ask)
        return entry

    def _shape(self, job: Job, asked: tuple[Part, ...]) -> Shape:
        site = self.settings
        pool = job.pool or site.tiers[job.tier].pool
        # Work for CPUs leaves the cores that free GPUs need; preparing data may take them, for GPUs wait for it.
        spares = round(site.cores_per_gpu * 1000) if not job.gpus and not job.prepares else 0
        longest = min(job.walltime or UNBOUNDED, site.tiers[job.tier].session or UNBOUNDED)
        stays = job.gpus > 0 and sum(part.nodes for part in asked) == 1 and longest > site.turning.length
        chunks = tuple(
            Chunk(
                part.nodes,
                Ask(
                    0 if job.shares else part.gpus, part.milli if job.shares else 0,
                    (part.cpus, part.memory, part.memory_bandwidth, part.network_bandwidth), job.gpu_memory or 0,
                    job.gpu_types, pool, job.exclusive, spares, stays,
                ),
            )
            for part in asked
        )  # fmt: skip
        queue = site.queues[job.queue]
        wish = job.wish
        return self.queue.shape(
            Terms(
                chunks, wish.within, wish.required, wish.wait, job.level, job.tier,
                job.queue if queue.gpus is not None else "",
            )
        )  # fmt: skip

    def _smaller(self, job: Job) -> tuple[tuple[int, Shape], ...]:
        found = []
        for gpus in sizes(job, {node.gpus for node in self.joined.values()})[1:]:
            less = resized(job, gpus)
            asked = self.admission.capacity.fitting(less)
            if asked is not None:
                found.append((gpus, self._shape(less, asked)))
        return tuple(found)

    def factor(self, entry: Entry) -> float:
        """The fair share of the job's owner, as it was computed last."""
        if self.standing is None:
            return 1.0
        return self.standing.factor(entry.holder)

    def wait(self, entry: Entry) -> None:
        """Something must come true again before the job may start."""
        entry.waits_since = self.now
        self.waiting[entry.job.id] = entry

    def enqueue(self, entry: Entry) -> None:
        """Nothing but room is missing any more."""
        record = self.records[entry.job.id]
        if record.eligible is None:
            record.eligible = self.now
        self.queue.add(entry, self.factor(entry), self.now)

    # -- jobs that run ------------------------------------------------------------------------------------------------

    def start(self, entry: Entry, places: tuple[Place, ...], network: str, level: Level) -> Running:
        """The job holds its places from now on; whoever called takes it out of the queue."""
        job = entry.job
        end = min(self.now + entry.length, NEVER) if entry.length < UNBOUNDED else NEVER
        run = Running(entry, places, network, self.now, end)
        run.level = level
        run.rank = rank(job, self.settings, level)
        self.running[job.id] = run
        nodes = self.cluster.nodes
        for place in places:
            self.cluster.take(job.id, place, end)
            self.bookings.changed(place.node)
            run.price += self.share.tariff.price(
                place.mask.bit_count(), place.milli or WHOLE, nodes[place.node].gpu_type, place.amounts[0]
            )
        if end < NEVER:
            heappush(self._ends, (end, job.id, entry.restarts))
        self.share.start(entry.holder, run.price, self.now)
        self.records[job.id].begins(self.now, run.gpus, network)
        self._count(run, 1)
        return run

    def stop(self, job: str, how: str) -> Running:
        """The job's places are free again."""
        run = self.running.pop(job)
        for place in run.places:
            self.cluster.give(job, place.node)
        gathered = self._wants_rack(run.entry.shape)
        self.turnover.ended(self.cluster, run.places, gathered, self.now - run.started, self.now)
        self.share.stop(run.entry.holder, run.price, self.now)
        self.records[job].ran(self.now, how, run.checkpointed)
        self._count(run, -1)
        self.stale = True
        return run

    def _wants_rack(self, shape: Shape) -> bool:
        return 1 < shape.nodes <= self.cluster.by_rack.shape[1] and shape.terms.within != "any"

    def _count(self, run: Running, sign: int) -> None:
        gpus = sign * run.gpus
        self.allocated += gpus
        if run.level == "high":
            self.high += gpus
        queue = run.job.queue
        self.by_queue[queue] = self.by_queue.get(queue, 0) + gpus
        if run.job.may_be_preempted:
            self.yielding[run.rank] = self.yielding.get(run.rank, 0) + sign
        self._draw(run, sign)

    def _draw(self, run: Running, sign: int) -> None:
        pool = run.entry.shape.terms.chunks[0].ask.pool
        if (watts := self.watts_of(run.places)) > 0:
            self.watts[pool] = self.watts.get(pool, 0.0) + sign * watts

    def watts_of(self, places: Iterable[Place]) -> float:
        """What these places draw in full use, by the part of each node's GPUs."""
        cluster = self.cluster
        total = 0.0
        for place in places:
            if place.mask and cluster.watts[place.node]:
                part = place.mask.bit_count() * place.milli / WHOLE / int(cluster.size[place.node])
                total += float(cluster.watts[place.node]) * part
        return total

    def promise(self, run: Running, end: int) -> None:
        """The job's last possible end is another now."""
        run.end = end
        for place in run.places:
            self.cluster.promise(run.job.id, place.node, end)
        heappush(self._ends, (end, run.job.id, run.entry.restarts))
        self.stale = True

    def finish(self, job: str, outcome: str) -> None:
        """The job is over for good."""
        record = self.records.pop(job)
        record.ended = self.now
        record.outcome = outcome
        self.ended.append(record)
        self.learned.fold(record)
        self.measures.ended(record)
        self.outcomes[job] = outcome == "completed"
        if len(self.outcomes) > OUTCOMES:
            del self.outcomes[next(iter(self.outcomes))]
        self.last_yield.pop(job, None)

    def due(self, now: int) -> Iterator[Running]:
        """Those whose time is up."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            end, job, restarts = heappop(ends)
            run = self.running.get(job)
            if run is not None and run.entry.restarts == restarts and run.end == end:
                yield run

    def coming_ends(self) -> frozenset[tuple[int, str]]:
        """Ends at which somebody will be looked at: of those who run, and of some who do not any more."""
        return frozenset(
            (end, job)
            for end, job, restarts in self._ends
            if job in self.running and self.running[job].entry.restarts == restarts
        )

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
            Share(
                names[place.node],
                place.mask,
                place.milli,
                place.amounts[0],
                place.amounts[1],
                *self.cluster.wiring[place.node].near(place.mask),
            )
            for place in places
        )
