"""Why each job waits: a rule word, one sentence with facts, and what stands beside it.

Nothing is kept for it but what the last pass left (reservations, what preemption answered): a reason is found when it
is asked for, with the same questions that the pass puts, so no pass is slower for it and none is explained by a guess.
Ask after a pass, before more is told. A `Reasons` answers for many jobs at little more than the price of one of each
shape.

Units   instants in seconds on the caller's clock; sentences say them as from now
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from gpuguard.scheduler.cluster import NEVER, Ints
from gpuguard.scheduler.placement import Failed
from gpuguard.scheduler.queue import Entry
from gpuguard.scheduler.ranks import high_allowed
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.scheduler.shortage import SHOWN, count_of, gpus_of, names_of, shortage
from gpuguard.scheduler.standing import counted
from gpuguard.scheduler.state import State

Rule = Literal[
    "parents", "condition", "singleton", "held", "reserved", "drained", "room", "beside", "window", "network",
    "queue_limit", "power", "strict", "next_pass", "level", "preemption", "running", "ended", "unknown",
]  # fmt: skip


class Note(msgspec.Struct, frozen=True, kw_only=True):
    rule: Rule
    why: str


class Reason(Note, frozen=True, kw_only=True):
    """Why a job waits.

    Shape   until: the instant at which this ends at the latest, None: nobody can say. facts: the numbers of the
            sentence. jobs: those that it waits for. also: what is no cause and yet matters (its level, preemption)
    """

    job: str
    until: int | None = None
    facts: Mapping[str, int] = {}
    jobs: tuple[str, ...] = ()
    also: tuple[Note, ...] = ()


def reason(state: State, job: str) -> Reason:
    """Why this job waits. One that does not wait says so."""
    return Reasons(state).of(job)


def lasting(seconds: int) -> str:
    """A duration in its two largest units."""
    if seconds < MINUTE:
        return f"{max(0, seconds)} s"
    for unit, word, less, smaller in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min")):
        if seconds >= unit:
            rest = seconds % unit // less
            return f"{seconds // unit} {word} {rest} {smaller}" if rest else f"{seconds // unit} {word}"
    return f"{seconds // MINUTE} min"


class Reasons:
    """The answers at one instant. Not to be kept: the next pass makes them untrue."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._reserved = {job: booking for _, job, booking in state.reserved}
        self._failed: dict[tuple[object, int], Reason] = {}
        self._good: Ints = np.array([mask.bit_count() for mask in state.cluster.good], dtype=np.int64)

    def all(self) -> Iterator[Reason]:
        """Of every job that waits: those for whom something must come true first, then the queue in order."""
        for job in self._state.waiting:
            yield self.of(job)
        for ahead, entry in enumerate(self._state.queue.in_order()):
            yield self._queued(entry, ahead)

    def of(self, job: str) -> Reason:
        state = self._state
        if job in state.waiting:
            return self._waiting(job)
        entry = state.queue.entries.get(job)
        if entry is not None:
            return self._queued(entry)
        run = state.running.get(job)
        if run is not None:
            why = f"it does not wait: it has run for {lasting(state.now - run.started)}"
            return Reason(rule="running", why=why, job=job, until=state.now)
        if job in state.outcomes:
            return Reason(rule="ended", why="it does not wait: it has ended", job=job, until=state.now)
        return Reason(rule="unknown", why="there is no job of this id: look for a slip in it", job=job)

    # -- something must come true first -------------------------------------------------------------------------------

    def _waiting(self, job: str) -> Reason:
        state = self._state
        blocked = state.dependencies.blocked(job)
        if not blocked:
            return Reason(rule="next_pass", why="nothing stands against it: the next pass looks at it", job=job)
        until = state.dependencies.expected(job, self._end_of)
        words: dict[str, Rule] = {"condition": "condition", "singleton": "singleton"}
        parents = tuple(one.name for one in blocked if one.relation in {"afterok", "afterany"})
        said = [f"{one}{self._of_parent(one.name) if one.name in parents else ''}" for one in blocked[:SHOWN]]
        more = len(blocked) - len(said)
        why = "it " + ", and ".join(said) + (f", and {more} more" if more else "")
        booking = self._reserved.get(job)
        if booking is not None:
            why += f"; its place is planned from {lasting(booking.start - state.now)} on"
        return Reason(
            rule="parents" if parents else words[blocked[0].relation],
            why=why, job=job, until=until, jobs=parents, facts={"unmet": len(blocked)},
        )  # fmt: skip

    def _of_parent(self, job: str) -> str:
        state = self._state
        run = state.running.get(job)
        if run is not None:
            return " (runs)" if run.end >= NEVER else f" (runs, for {lasting(run.end - state.now)} at most)"
        return " (queues)" if job in state.queue else " (waits itself)"

    def _end_of(self, job: str) -> int | None:
        run = self._state.running.get(job)
        return None if run is None or run.end >= NEVER else run.end

    # -- room is missing ----------------------------------------------------------------------------------------------

    def _queued(self, entry: Entry, ahead: int | None = None) -> Reason:
        state, job = self._state, entry.job.id
        if job in state.holes:
            found = self._held(entry)
        elif not state.settings.backfill and (first := state.queue.first()) is not None and first is not entry:
            why = f"the order is strict: it waits behind job {first.job.id}, which is first and cannot start"
            found = Reason(rule="strict", why=why, job=job, jobs=(first.job.id,))
        elif (booking := self._reserved.get(job)) is not None and booking.start > state.now:
            found = self._planned(entry)
        else:
            found = self._barred(entry) or self._not_placed(entry, ahead)
        also = (*found.also, *self._beside(entry))
        return msgspec.structs.replace(found, also=also) if also else found

    def _held(self, entry: Entry) -> Reason:
        hole = self._state.holes[entry.job.id].hole
        nodes = names_of([share.node for share in hole.shares])
        wait = lasting(hole.until - self._state.now)
        if hole.leaving:
            why = f"room is held for it on {nodes} until {names_of(hole.leaving)} have left; for {wait} more at most"
        else:
            why = f"room is held for it on {nodes} and is empty: the next pass starts it"
        return Reason(
            rule="held", why=why, job=entry.job.id, until=hole.until, jobs=hole.leaving,
            facts={"leaving": len(hole.leaving)},
        )  # fmt: skip

    def _planned(self, entry: Entry) -> Reason:
        state = self._state
        booking = self._reserved[entry.job.id]
        nodes = [node for node, _ in booking.nodes]
        tenants = [tenant for node in nodes for tenant in state.cluster.tenants[node].values()]
        last = max(
            (tenant for tenant in tenants if tenant.end <= booking.start),
            key=lambda tenant: (tenant.end, tenant.job), default=None,
        )  # fmt: skip
        names = state.cluster.names
        why = (
            f"its start is planned in {lasting(booking.start - state.now)} at the latest, "
            f"on {names_of([names[node] for node in nodes])}"
        )
        if last is not None:
            why += f", once job {last.job} has left"
        return Reason(
            rule="reserved", why=why, job=entry.job.id, until=booking.start,
            jobs=() if last is None else (last.job,), facts={"nodes": len(nodes), "gpus": entry.gpus},
        )  # fmt: skip

    def _barred(self, entry: Entry) -> Reason | None:
        """Its queue holds as many GPUs as it may."""
        state, queue = self._state, entry.job.queue
        if not entry.shape.terms.limit or (cap := state.settings.queues[queue].gpus) is None:
            return None
        held = state.by_queue.get(queue, 0)
        if held + entry.gpus * entry.job.gpu_milli <= cap * WHOLE:
            return None
        why = f"queue {queue} holds {gpus_of(held)} of the {cap} GPUs that it may, and it wants {entry.gpus} more"
        return Reason(rule="queue_limit", why=why, job=entry.job.id, facts={"held": held // WHOLE, "limit": cap})

    def _not_placed(self, entry: Entry, ahead: int | None) -> Reason:
        """What the pass finds when it looks for places; the same for all of one shape and length."""
        key = (entry.shape, entry.step)
        known = self._failed.get(key)
        if known is None:
            state, since = self._state, entry.could_since
            found = state.placement.now(entry, state.now)
            entry.could_since = since  # asking is not the beginning of a wait
            if not isinstance(found, Failed):
                return self._power(entry)
            if found.rule == "network":
                return self._network(entry, found.until)
            known = self._window(entry) if found.rule == "window" else self._room(entry)
            self._failed[key] = known
        if ahead is None or entry.job.level == "high":
            ahead = self._ahead(entry)
        return Reason(
            rule=known.rule, why=f"{known.why}; {count_of(ahead, 'job')} before it", job=entry.job.id,
            until=known.until, facts={**known.facts, "ahead": ahead}, jobs=known.jobs,
        )  # fmt: skip

    def _ahead(self, entry: Entry) -> int:
        key = counted(self._state, entry)
        return sum(bisect_left(line, (key,)) for line in self._state.queue.lines().values())

    def _power(self, entry: Entry) -> Reason:
        state = self._state
        name = entry.shape.terms.chunks[0].ask.pool
        pool = state.settings.pools.get(name)
        if pool is not None and pool.watts is not None:
            now = round(state.watts.get(name, 0.0))
            why = f"it has places, but pool {name} draws {now} W of its {pool.watts:.0f} W and has too little left"
            facts = {"watts": now, "budget": round(pool.watts)}
            return Reason(rule="power", why=why, job=entry.job.id, facts=facts)
        return Reason(rule="next_pass", why="it has places: the next pass starts it", job=entry.job.id)

    def _network(self, entry: Entry, until: int | None) -> Reason:
        state, terms = self._state, entry.shape.terms
        room = "pod" if terms.within == "pod" else "rack"
        why = f"{entry.shape.nodes} nodes have room, but not in one {room}"
        if until is not None:
            why += f": it waits for that {lasting(until - state.now)} more, then takes what there is"
        elif terms.required:
            why += ", and it starts nowhere else"
        else:
            why += f", and pool {terms.chunks[0].ask.pool} lets no job span pods"
        return Reason(rule="network", why=why, job=entry.job.id, until=until, facts={"nodes": entry.shape.nodes})

    def _window(self, entry: Entry) -> Reason:
        """Whose reservation it would move: the next planned on a node where it has room."""
        state = self._state
        bookings, cluster = state.bookings, state.cluster
        blocked: dict[int, None] = {}
        for chunk in entry.shape.terms.chunks:
            flags = cluster.fits(chunk.ask)
            shut = flags & ~bookings.allow(flags, chunk.ask, state.now + entry.span)
            blocked.update(dict.fromkeys(np.nonzero(shut)[0].tolist()))
        moved = [
            (booking.start, job) for job, booking in self._reserved.items()
            if any(node in blocked for node, _ in booking.nodes)
        ]  # fmt: skip
        names = names_of([cluster.names[node] for node in blocked])
        why = f"there is room on {names}, but it may run {lasting(entry.length)} and would move the start of "
        if not moved:
            why += "a job that is before it"
            return Reason(rule="window", why=why, job=entry.job.id, facts={"nodes": len(blocked)})
        start, job = min(moved)
        why += f"job {job}, planned in {lasting(start - state.now)}"
        return Reason(
            rule="window", why=why, job=entry.job.id, until=None, jobs=(job,), facts={"nodes": len(blocked)}
        )  # fmt: skip

    def _room(self, entry: Entry) -> Reason:
        found = shortage(self._state, entry.shape.terms.chunks, self._good)
        return Reason(rule=found.rule, why=found.why, job=entry.job.id, facts=found.facts)

    # -- beside -------------------------------------------------------------------------------------------------------

    def _beside(self, entry: Entry) -> Iterator[Note]:
        state = self._state
        if entry.job.level == "high":
            asked = entry.gpus * entry.job.gpu_milli
            if not high_allowed(state.high, state.allocated, asked, state.settings.high_share):
                why = (
                    f"its level counts as normal: with it, jobs of level high would hold more than "
                    f"{state.settings.high_share:.0%} of the GPUs in use "
                    f"({gpus_of(state.high)} of {gpus_of(state.allocated)} now)"
                )
                yield Note(rule="level", why=why)
        job, answer = state.denied
        if job == entry.job.id and answer and job not in state.holes:
            yield Note(rule="preemption", why=f"nobody makes room for it: {answer}")
