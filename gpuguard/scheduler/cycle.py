"""One pass: what was told is folded into the state, what is over is ended, and whoever can start is started.

    cycle(state, events, now) -> (state, Plan)

The state is handed over and comes back changed. The same events give the same plans, byte for byte: simultaneous events
are put in one order here, and nothing is ever walked through by hash.
"""

from collections.abc import Iterable
from typing import assert_never

from gpuguard.scheduler.backfill import Booking
from gpuguard.scheduler.cluster import NEVER, Ask
from gpuguard.scheduler.events import AnyEvent, Ended, NodeJoined, Submitted
from gpuguard.scheduler.placement import Failed, Placed
from gpuguard.scheduler.plan import AnyDecision, Finish, Kill, Plan, Reservation, Start
from gpuguard.scheduler.queue import Chunk, Entry, Terms
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.state import State

_LONG = 1 << 40


def cycle(state: State, events: Iterable[AnyEvent], now: int) -> tuple[State, Plan]:
    """The state after these events and everything decided upon them at this instant."""
    run = _Pass(state, now)
    run.fold(events)
    run.enforce()
    run.schedule()
    return state, run.plan()


class _Pass:
    def __init__(self, state: State, now: int) -> None:
        self._state = state
        self._now = state.now = max(state.now, now)
        self._decisions: list[AnyDecision] = []
        self._fresh: list[Entry] = []

    # -- what was told ------------------------------------------------------------------------------------------------

    def fold(self, events: Iterable[AnyEvent]) -> None:
        state = self._state
        joined = False
        for event in sorted(events, key=_order):
            match event:
                case NodeJoined():
                    state.joined[event.node] = event
                    joined = True
                case Submitted():
                    self._submit(event)
                case Ended():
                    if event.job in state.running:
                        state.stop(event.job)
                        self._decisions.append(Finish(rule="ended", job=event.job, outcome="completed"))
                case _:
                    pass
        if joined:
            state.rebuild()

    def _submit(self, event: Submitted) -> None:
        state, job = self._state, event.job
        entry = Entry(
            job, state.queue.shape(_terms(job, state.cluster.most)), event.at, job.walltime or _LONG, job.gpus
        )
        state.queue.add(entry, 1.0, self._now)
        self._fresh.append(entry)

    # -- what is over -------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        for run in self._state.due(self._now):
            if run.signalled is None:
                run.signalled = self._now
                self._decisions.append(
                    Kill(rule="walltime", job=run.job.id, why=f"its {run.entry.length} s are used up")
                )

    # -- who starts ---------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        state = self._state
        if state.stale or state.looks <= self._now or self._in_turn():
            self._everyone()
        else:
            for entry in sorted(self._fresh, key=lambda entry: entry.key):
                if self._try(entry):
                    state.queue.remove(entry.job.id)

    def _in_turn(self) -> bool:
        """Somebody new stands before others who have to be looked at first."""
        state = self._state
        if not state.settings.backfill:
            return bool(self._fresh)
        reserved = state.reserved
        return bool(reserved) and any(entry.key < reserved[-1][0] for entry in self._fresh)

    def _everyone(self) -> None:
        state = self._state
        state.stale = False
        state.bookings.clear()
        state.dead.clear()
        state.reserved = []
        state.looks = NEVER
        started: list[str] = []
        walk = state.queue.walk()
        strict = not state.settings.backfill
        while (entry := walk.next()) is not None:
            if self._try(entry):
                started.append(entry.job.id)
                walk.go_on()
                continue
            if strict:
                break
            if len(state.reserved) < state.settings.reservations:
                walk.go_on()
        for job in started:
            state.queue.remove(job)

    def _try(self, entry: Entry) -> bool:
        """The job starts, or is given a reservation where one is due to it."""
        state = self._state
        room = len(state.reserved) < state.settings.reservations
        dead = state.dead.get(entry.shape, _LONG)
        if entry.step >= dead and not room:
            return False
        found = Failed("room") if entry.step >= dead else state.placement.now(entry, self._now)
        if isinstance(found, Placed):
            self._start(entry, found)
            return True
        state.dead[entry.shape] = min(dead, 0 if found.rule == "room" else entry.step)
        if found.until is not None:
            state.looks = min(state.looks, found.until)
        if room:
            self._reserve(entry)
        return False

    def _start(self, entry: Entry, found: Placed) -> None:
        state = self._state
        state.start(entry, found.places, found.network)
        self._decisions.append(
            Start(
                rule="order", job=entry.job.id, shares=state.shares(found.places), network=found.network,
                restart=entry.restarts,
            )
        )  # fmt: skip

    def _reserve(self, entry: Entry) -> None:
        state = self._state
        booking = self._booking(entry)
        if booking is None:
            return
        state.bookings.book(booking)
        state.reserved.append((entry.key, entry.job.id, booking))
        state.looks = min(state.looks, booking.start) if booking.start > self._now else state.looks

    def _booking(self, entry: Entry) -> Booking | None:
        state = self._state
        terms, bookings, cluster = entry.shape.terms, state.bookings, state.cluster
        anywhere = bookings.earliest(terms.chunks, entry.span, self._now)
        if entry.shape.nodes == 1 or anywhere is None or terms.within == "any" or not cluster.has_racks:
            return anywhere
        if not state.settings.topology:
            return anywhere
        near = bookings.earliest(terms.chunks, entry.span, self._now, cluster.by_rack)
        if near is None:
            return anywhere
        pool = state.settings.pools.get(terms.chunks[0].ask.pool)
        wait = terms.wait if terms.wait is not None else pool.wait if pool is not None else 0
        if terms.required or near.start <= anywhere.start + wait:
            return near
        return anywhere

    # -- what came of it ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        state = self._state
        names = state.cluster.names
        wake = min(state.looks, state.next_end())
        del names
        return Plan(
            at=self._now,
            decisions=tuple(self._decisions),
            reservations=tuple(
                Reservation(job=job, start=booking.start, shares=()) for _, job, booking in state.reserved
            ),
            wake=wake if wake < NEVER else None,
        )


def _terms(job: Job, most: int) -> Terms:
    def ask(gpus: int) -> Ask:
        return Ask(gpus, 0, (0, 0, 0, 0), 0, job.gpu_types, "training", False, 0)

    whole, rest = divmod(job.gpus, most)
    chunks = [Chunk(whole, ask(most))] if whole else []
    if rest:
        chunks.append(Chunk(1, ask(rest)))
    return Terms(tuple(chunks), job.wish.within, job.wish.required, job.wish.wait, job.level, job.tier, "")


def _order(event: AnyEvent) -> tuple[int, int, str]:
    match event:
        case NodeJoined():
            return (0, event.at, event.node)
        case Ended():
            return (1, event.at, event.job)
        case Submitted():
            return (2, event.at, event.job.id)
        case _:
            return (3, event.at, "")
    assert_never(event)
