"""Who waits, in order, sorted into shapes: jobs of one shape fail or fit together, so a pass looks at shapes, not jobs.

The order of a job is (class, virtual time, submit, id), less is earlier. Its virtual time is when it was submitted,
moved by its size, length, queue, QoS and fair share; each move is bounded, so whoever waits is overtaken by nobody who
comes more than that bound later. One who waited longer than the site's patience goes before all others.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from math import log2
from typing import NamedTuple
from weakref import WeakValueDictionary

from gpuguard.scheduler.cluster import NEVER, Ask
from gpuguard.scheduler.request import Job, Level
from gpuguard.scheduler.settings import HOUR, MINUTE, Order, Settings
from gpuguard.scheduler.usage import Holder

Key = tuple[int, float, int, str]
OVERDUE = -1
BANDS = 2
"""Bands of each level: tiers that go first, and the others."""
UNBOUNDED = 1 << 40
"""The length of a job without a walltime."""

SHORT = 2 * HOUR
"""Up to about this length jobs count as equally short: it is the shortest walltime that people ask for."""

STEPS = 4
"""Walltimes are planned in steps of a fourth of a doubling, rounded up: the plan may only be too careful."""


class Chunk(NamedTuple):
    """So many nodes that each give the same."""

    nodes: int
    ask: Ask


class Terms(NamedTuple):
    """What decides whether a job fits, its length apart. `limit`: its queue, where that has a cap on GPUs."""

    chunks: tuple[Chunk, ...]
    within: str
    required: bool
    wait: int | None
    level: Level
    tier: str
    limit: str


class Shape:
    """The same terms are the same Shape, so that it is found by identity: a pass asks for thousands."""

    __slots__ = ("__weakref__", "gpus", "nodes", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.nodes = sum(chunk.nodes for chunk in terms.chunks)
        self.gpus = sum(chunk.nodes * chunk.ask.gpus for chunk in terms.chunks)


class Entry:
    """A job that waits. Not frozen: the core folds what happens to it."""

    __slots__ = (
        "asks_from", "base", "could_since", "gpus", "holder", "job", "key", "length", "rank", "restarts",
        "resume", "runs", "shape", "smaller", "span", "step", "submitted", "waits_since",
    )  # fmt: skip

    def __init__(self, job: Job, shape: Shape, submitted: int, length: int) -> None:
        self.job = job
        self.shape = shape
        self.submitted = submitted
        self.waits_since = submitted
        self.holder = Holder(job.account, job.user)
        self.base = 0.0
        self.rank = 0
        self.length = length
        self.gpus = job.gpus
        self.smaller: tuple[tuple[int, Shape], ...] = ()
        self.step, self.span = stepped(length)
        self.key: Key = (0, 0.0, submitted, job.id)
        self.could_since: int | None = None
        self.asks_from = 0
        self.restarts = 0
        self.runs = 0
        self.resume = False

    @property
    def takes_less(self) -> bool:
        """It ran before, and may start again on fewer GPUs."""
        return self.runs > 0 and bool(self.smaller)


def line_of(entry: Entry) -> tuple[Shape, int]:
    """The line in which the job stands: those of one shape and step; who takes less than it asked stands apart."""
    return entry.shape, ~entry.step if entry.takes_less else entry.step


def stepped(length: int) -> tuple[int, int]:
    """The step of a length and the longest that is in it, both rounded up."""
    if length <= MINUTE:
        return 0, MINUTE
    step = -int(-STEPS * log2(length / MINUTE) // 1)
    if length >= UNBOUNDED:
        # Nobody is planned behind it, however late.
        return step, NEVER
    span = int(MINUTE * 2 ** (step / STEPS)) + 1
    return step, max(span, length)


def earlier(order: Order, entry: Entry) -> float:
    """Hours by which a job counts as submitted earlier for its GPUs, and for the nodes that it needs at one time."""
    return order.size * log2(max(entry.gpus, 1)) + (order.several if entry.shape.nodes > 1 else 0.0)


def as_normal(key: Key, settings: Settings) -> Key:
    """Where a job of level high stands when it counts as normal."""
    return (key[0] + BANDS * (settings.levels["normal"] - settings.levels["high"]), *key[1:])


class Queue:
    """Those that may start, in order."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.entries: dict[str, Entry] = {}
        # One that nobody of has come for long is forgotten.
        self._shapes: WeakValueDictionary[Terms, Shape] = WeakValueDictionary()
        self._lines: dict[tuple[Shape, int], list[tuple[Key, Entry]]] = {}
        self._oldest: list[tuple[int, str]] = []
        self.gpus = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, job: str) -> bool:
        return job in self.entries

    def shape(self, terms: Terms) -> Shape:
        """The one Shape of these terms."""
        shape = self._shapes.get(terms)
        if shape is None:
            shape = self._shapes[terms] = Shape(terms)
        return shape

    def _stand(self, entry: Entry) -> None:
        """Where the job stands apart from its owner's fair share: its class, and when it counts as submitted."""
        order, job = self._settings.order, entry.job
        size = earlier(order, entry)
        length = order.length * log2(1.0 + entry.length / SHORT)
        moved = length - size
        moved = max(-order.most, min(order.most, moved))
        moved += self._settings.tiers[job.tier].delay
        moved -= order.qos.get(job.qos, 0.0)
        queue = self._settings.queues.get(job.queue)
        if queue is not None:
            moved -= queue.weight
        entry.base = entry.submitted + moved * HOUR
        entry.rank = self._settings.levels[job.level] * BANDS + (not self._settings.tiers[job.tier].first)

    def key_of(self, entry: Entry, factor: float, now: int) -> Key:
        """The job's key at this instant; `factor` is its owner's fair share, 1 for who had least."""
        settings = self._settings
        if settings.key == "fifo":
            return (0, float(entry.submitted), entry.submitted, entry.job.id)
        if now - entry.submitted > settings.order.patience:
            return (OVERDUE, float(entry.submitted), entry.submitted, entry.job.id)
        self._stand(entry)
        virtual = round(entry.base + settings.order.share * (1.0 - factor) * HOUR, 6)
        return (entry.rank, virtual, entry.submitted, entry.job.id)

    def add(self, entry: Entry, factor: float, now: int) -> None:
        entry.key = self.key_of(entry, factor, now)
        self.entries[entry.job.id] = entry
        self.gpus += entry.gpus
        line = self._lines.get(place := line_of(entry))
        if line is None:
            line = self._lines[place] = []
        insort(line, (entry.key, entry))
        if entry.key[0] != OVERDUE:
            insort(self._oldest, (entry.submitted, entry.job.id))

    def remove(self, job: str) -> Entry:
        entry = self.entries.pop(job)
        self.gpus -= entry.gpus
        self._unline(entry)
        if entry.key[0] != OVERDUE:
            at = bisect_left(self._oldest, (entry.submitted, job))
            del self._oldest[at]
        return entry

    def _unline(self, entry: Entry) -> None:
        line = self._lines[place := line_of(entry)]
        at = bisect_left(line, (entry.key,))
        del line[at]
        if not line:
            del self._lines[place]

    def reshare(self, factor_of: Callable[[Holder], float]) -> None:
        """All stand where the fair shares of their owners put them now."""
        share = self._settings.order.share * HOUR
        moves: dict[Holder, float] = {}
        for entry in self.entries.values():
            if entry.key[0] == OVERDUE:
                continue
            move = moves.get(entry.holder)
            if move is None:
                move = moves[entry.holder] = share * (1.0 - factor_of(entry.holder))
            entry.key = (entry.rank, round(entry.base + move, 6), entry.submitted, entry.job.id)
        self._realign()

    def rekey(self, entries: Iterable[tuple[Entry, float]], now: int) -> None:
        """These stand where their new keys put them."""
        for entry, factor in entries:
            before = entry.key[0]
            entry.key = self.key_of(entry, factor, now)
            if entry.key[0] == OVERDUE and before != OVERDUE:
                del self._oldest[bisect_left(self._oldest, (entry.submitted, entry.job.id))]
        self._realign()

    def _realign(self) -> None:
        for place, line in self._lines.items():
            fresh = [(entry.key, entry) for _, entry in line]
            fresh.sort(key=_key)
            self._lines[place] = fresh

    def overdue(self, now: int) -> Iterator[Entry]:
        """Those who have waited beyond patience, and stand where they stood."""
        for submitted, job in self._oldest:
            if now - submitted <= self._settings.order.patience:
                return
            yield self.entries[job]

    def oldest(self) -> list[tuple[int, str]]:
        """Those whose patience has not ended, by when they were submitted."""
        return list(self._oldest)

    def next_overdue(self) -> int | None:
        """When somebody's patience ends next."""
        return self._oldest[0][0] + self._settings.order.patience + 1 if self._oldest else None

    def first(self) -> Entry | None:
        """Who stands before all others."""
        return min((line[0] for line in self._lines.values()), default=(None, None))[1]

    @property
    def sorts(self) -> int:
        """Shapes and lengths that wait."""
        return len(self._lines)

    def lines(self) -> dict[tuple[Shape, int], list[tuple[Key, Entry]]]:
        return self._lines

    def walk(self) -> "Walk":
        return Walk(self._lines)

    def in_order(self) -> list[Entry]:
        """All of them, first to last."""
        return sorted(self.entries.values(), key=lambda entry: entry.key)


class Walk:
    """One pass over the queue in order; a line that cannot fit is left out as a whole."""

    def __init__(self, lines: dict[tuple[Shape, int], list[tuple[Key, Entry]]]) -> None:
        self._heap = [(line[0][0], 0, line) for line in lines.values()]
        heapify(self._heap)
        self._at: tuple[int, list[tuple[Key, Entry]]] = (0, [])
        self._key: Key | None = None

    def next(self) -> Entry | None:
        """The next in order, of those lines that are not left out."""
        if not self._heap:
            return None
        self._key, at, line = heappop(self._heap)
        self._at = (at + 1, line)
        return line[at][1]

    def put_off(self, settings: Settings) -> bool:
        """The one that `next` gave comes again as a normal one; false when it has come as one, or is overdue."""
        at, line = self._at
        key = line[at - 1][0]
        if self._key != key or key[0] == OVERDUE:
            return False
        heappush(self._heap, (as_normal(key, settings), at - 1, line))
        return True

    def go_on(self) -> None:
        """The one after that which `next` gave, of the same line, is to be looked at too."""
        at, line = self._at
        if at < len(line):
            heappush(self._heap, (line[at][0], at, line))


def _key(item: tuple[Key, Entry]) -> Key:
    return item[0]
