"""One pass: what was told is folded into the state, what is over is ended, and whoever can start is started.

    cycle(state, events, now) -> (state, Plan)

The state is handed over and comes back changed. The same events give the same plans, byte for byte: simultaneous events
are put in one order, and nothing is ever walked through by hash.

Those who wait are looked at in order. Each starts, or gets a reservation if it is among the first, or is passed over.
What failed is remembered by shape: where nothing was given back since, only who is new has to be looked at.
"""

from collections.abc import Iterable

from gpuguard.scheduler.backfill import Booking
from gpuguard.scheduler.cluster import NEVER
from gpuguard.scheduler.events import AnyEvent
from gpuguard.scheduler.nodes import tick
from gpuguard.scheduler.placement import Failed, Placed
from gpuguard.scheduler.plan import Alert, AnyDecision, Plan, Reservation, Start
from gpuguard.scheduler.queue import OVERDUE, UNBOUNDED, Entry
from gpuguard.scheduler.ranks import high_allowed
from gpuguard.scheduler.request import WHOLE, Level
from gpuguard.scheduler.room import Room
from gpuguard.scheduler.settings import MINUTE
from gpuguard.scheduler.state import State
from gpuguard.scheduler.told import Told

ASKS = 1
"""So many of those who wait may ask others to leave in one pass, and none twice in a minute: each costs a look at
everybody who runs."""

AGAIN = 5 * MINUTE
"""What has been told to end and has not is told of again after this."""


def cycle(state: State, events: Iterable[AnyEvent], now: int) -> tuple[State, Plan]:
    """The state after these events and everything decided upon them at this instant."""
    run = _Pass(state, now)
    run.fold(events)
    run.enforce()
    run.rank()
    run.schedule()
    run.measure()
    return state, run.plan()


class _Pass:
    def __init__(self, state: State, now: int) -> None:
        self._state = state
        # An instant before the last one is that of a clock that was set back: time stands until it has caught up.
        self._now = state.now = max(state.now, now)
        self._decisions: list[AnyDecision] = []
        self._told = Told(state, self._decisions, now)
        self._asks = ASKS
        self._hopeless = state.hopeless
        self._planned = False
        self._held_back: list[str] = []

    def fold(self, events: Iterable[AnyEvent]) -> None:
        self._tick()
        self._told.fold(events)
        # What was told late may be due already.
        self._tick()

    def _tick(self) -> None:
        state = self._state
        for life in state.lives_due(self._now):
            later, decisions = tick(life, self._now, state.settings.care)
            self._decisions.extend(decisions)
            state.live(later)

    # -- what is over -------------------------------------------------------------------------------------------------

    def enforce(self) -> None:
        """Walltimes and sessions end, and holds that nobody came to use."""
        state = self._state
        for run in state.due(self._now):
            if run.signalled is not None:
                state.promise(run, self._now + AGAIN)
                why = f"told to end {self._now - run.signalled} s ago ({run.why}), and still there"
                self._decisions.append(Alert(rule="does_not_end", about=run.job.id, why=why, cause=run.job.id))
                continue
            session = state.settings.tiers[run.job.tier].session
            over = session is not None and self._now - run.started >= session
            word = "session" if over else "walltime"
            self._told.kill(run, word, word, f"its {self._now - run.started} s are used up")
        for job, held in list(state.holes.items()):
            standing = held.hole.standing(self._now)
            if standing == "timeout":
                self._told.release(job, "those who should have left did not, or it did not start in time")
            elif standing == "ready" and not all(state.cluster.keeps(place) for place in held.places):
                # What is left is anybody's, and the job asks anew.
                self._told.release(job, "a node or a GPU of it went bad meanwhile")

    # -- the order ----------------------------------------------------------------------------------------------------

    def rank(self) -> None:
        """Fair share is computed anew now and then, and who has waited too long goes to the front."""
        state, order = self._state, self._state.settings.order
        if state.settings.key == "fifo":
            return
        many = len(state.share.ledger.holders) > 1
        if many and (state.standing is None or self._now - state.ranked >= order.refresh):
            state.standing = state.share.standing(self._now)
            state.ranked = self._now
            state.queue.reshare(state.standing.factor)
            state.stale = True
        late = list(state.queue.overdue(self._now))
        if late:
            state.queue.rekey([(entry, state.factor(entry)) for entry in late], self._now)
            state.stale = True

    # -- who starts ---------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        state = self._state
        fresh = [entry for entry in self._told.fresh if entry.job.id in state.queue]
        if state.stale or state.looks <= self._now or self._in_turn(fresh):
            self._everyone()
            return
        for entry in sorted(fresh, key=lambda entry: entry.key):
            if self._try(entry):
                state.queue.remove(entry.job.id)
        self._hold_back()

    def _in_turn(self, fresh: list[Entry]) -> bool:
        """Somebody new stands before others who have to be looked at first."""
        state = self._state
        if not state.settings.backfill:
            return bool(fresh)
        reserved = state.reserved
        if not reserved:
            return False
        last = max(reserved[0][0], reserved[-1][0])
        return any(entry.key < last for entry in fresh)

    def _everyone(self) -> None:
        state = self._state
        state.stale = False
        self._planned = True
        self._turn()
        state.bookings.clear()
        state.dead.clear()
        self._hopeless.renew(state.queue.sorts)
        state.top = int(state.cluster.count.max(initial=0))
        state.apart.clear()
        state.rules.clear()
        state.closed.clear()
        state.reserved = []
        state.denied = ("", "")
        state.looks = NEVER
        strict = not state.settings.backfill
        awaited = self._awaited()
        started: list[str] = []
        head = self._head()
        if head is not None and self._try(head):
            started.append(head.job.id)
        walk = state.queue.walk()
        stopped = strict and head is not None and not started
        while not stopped and (entry := walk.next()) is not None:
            if entry is head:
                walk.go_on()
                continue
            if entry.job.level == "high" and self._level(entry) != "high" and walk.put_off(state.settings):
                continue
            if not (entry.smaller or state.holes or self._has_reservation_left()) and (
                entry.step >= state.dead.get(entry.shape, UNBOUNDED) or self._hopeless.covers(entry)
            ):
                continue
            while awaited and awaited[-1][0].key < entry.key and self._has_reservation_left():
                self._reserve(*awaited.pop())
            if self._try(entry):
                started.append(entry.job.id)
                walk.go_on()
                continue
            if strict:
                break
            if self._has_reservation_left() or self._is_own_case(entry) or state.rules.get(entry.shape) == "network":
                walk.go_on()
        while awaited and self._has_reservation_left() and not strict:
            self._reserve(*awaited.pop())
        for job in started:
            state.queue.remove(job)
        self._hold_back()

    def _turn(self) -> None:
        """As many racks are turned over as it takes by now; no more than before while the head has its plan there."""
        state = self._state
        head = state.queue.entries.get(state.head)
        stays = head is not None and head.shape.terms.chunks[0].ask.stays
        state.turnover.turn(state.cluster, not stays)

    def _hold_back(self) -> None:
        """Those who may not run beside one that just started wait for it."""
        state = self._state
        for job in self._held_back:
            if job in state.queue:
                state.wait(state.queue.remove(job))

    def _head(self) -> Entry | None:
        """The job that was first when it had to wait; nobody of its class goes before it until it has started."""
        state = self._state
        if state.settings.key == "fifo":
            return None
        head = state.queue.entries.get(state.head)
        first = state.queue.first()
        if head is None or first is None or first.key[0] < head.key[0]:
            return None
        return head if self._level(head) == head.job.level else None

    def _has_reservation_left(self) -> bool:
        return len(self._state.reserved) < self._state.settings.reservations

    def _awaited(self) -> list[tuple[Entry, int]]:
        """Those who wait for jobs that run, planned from when these end; the one that goes first stands last."""
        state = self._state
        if not state.waiting or not state.settings.reservations:
            return []
        found = []
        children = {job: None for run in state.running for job in state.dependencies.waiters(run)}
        for job in children:
            entry = state.waiting.get(job)
            if entry is None:
                continue
            at = state.dependencies.expected(job, self._end_of)
            if at is not None and self._now < at < UNBOUNDED and entry.shape.gpus:
                entry.key = state.queue.key_of(entry, state.factor(entry), self._now)
                found.append((entry, at))
        found.sort(key=lambda one: one[0].key, reverse=True)
        # Half of the reservations at most: who waits for nobody has a place in the plan too.
        return found[-max(1, state.settings.reservations // 2) :]

    def _end_of(self, job: str) -> int | None:
        """When a job that runs ends at the latest."""
        run = self._state.running.get(job)
        return None if run is None or run.end >= NEVER else run.end

    def _try(self, entry: Entry) -> bool:
        """The job starts, or is given a reservation where one is due to it."""
        state = self._state
        held = state.holes.get(entry.job.id)
        if held is not None:
            return self._use(entry)
        dead = state.dead.get(entry.shape, UNBOUNDED)
        has_left = self._has_reservation_left()
        if entry.step >= dead:
            if entry.takes_less and self._less(entry):
                return True
            if has_left and state.rules.get(entry.shape) not in _LIMITS:
                self._reserve(entry)
            return False
        if entry.step >= state.apart.get(entry.shape, UNBOUNDED) and self._gathers(entry):
            return False
        level = self._level(entry)
        barred = self._barred(entry)
        found = Failed(barred) if barred else self._place(entry)
        if isinstance(found, Placed):
            if not self._has_power(entry, found):
                found = Failed("power")
            elif not state.dependencies.held(entry.job.id):
                self._start(entry, found, level)
                return True
            else:
                return False
        if entry.takes_less and not barred and self._less(entry):
            return True
        state.rules[entry.shape] = found.rule
        if entry.key[0] == OVERDUE and found.rule in _LIMITS:
            # Else those who ask less would use up for ever what this one waits for.
            state.closed.setdefault(self._limit(entry, found.rule), entry.job.id)
        if found.rule != "network":
            state.dead[entry.shape] = entry.step if found.rule == "window" else 0
        if found.rule in _MEASURED:
            self._hopeless.add(entry, 0 if found.rule == "room" else entry.step)
        if found.until is not None:
            state.apart[entry.shape] = entry.step
            state.looks = min(state.looks, found.until)
        if barred or found.rule == "power":
            return False
        if self._asks and entry.asks_from <= self._now and Room.could(state, entry, level):
            self._asks -= 1
            entry.asks_from = self._now + MINUTE
            room = Room(state, entry, level)
            state.denied = (entry.job.id, room.make(self._decisions))
            if entry.job.id in state.holes:
                return False
            if (again := room.again()) is not None:
                state.looks = min(state.looks, max(again, self._now + MINUTE))
        if has_left:
            self._reserve(entry)
        return False

    def _place(self, entry: Entry) -> Placed | Failed:
        """Where it goes now; nobody looks where somebody failed who asked no more than it does, for no longer."""
        state = self._state
        if entry.shape.terms.chunks[0].ask.gpus > state.top:
            return Failed("room")
        if self._hopeless.covers(entry):
            return Failed("window")
        return state.placement.now(entry, self._now)

    def _gathers(self, entry: Entry) -> bool:
        """The job waits for its room as those of its shape before it do, for none has come together since."""
        state = self._state
        if not state.placement.gathers(entry, self._now):
            return False
        if entry.could_since is None:
            entry.could_since = self._now
        state.looks = min(state.looks, entry.could_since + state.placement.wait(entry))
        if self._has_reservation_left():
            self._reserve(entry)
        return True

    def _is_own_case(self, entry: Entry) -> bool:
        """That it does not start says nothing of the next of its line: it waits for others, or takes less than it."""
        state, job = self._state, entry.job.id
        return job in state.holes or state.dependencies.held(job) or entry.takes_less

    def _use(self, entry: Entry) -> bool:
        """The job starts where room was made for it, once that is empty."""
        state, job = self._state, entry.job.id
        held = state.holes[job]
        if held.hole.standing(self._now) != "ready":
            return False
        found = Placed(held.places, state.placement.reach(held.places))
        if state.dependencies.held(job) or self._barred(entry) or not self._has_power(entry, found):
            # Somebody of its name, or queue, or pool was faster: the room is kept as long as it was to be.
            return False
        for place in held.places:
            state.cluster.unhold(place)
        del state.holes[job]
        self._start(entry, found, self._level(entry), "room")
        return True

    def _less(self, entry: Entry) -> bool:
        """A job that is started again takes fewer GPUs, the most there are."""
        state = self._state
        shape, gpus = entry.shape, entry.gpus
        for fewer, smaller in entry.smaller:
            if entry.step >= state.dead.get(smaller, UNBOUNDED):
                continue
            entry.shape = smaller
            found = state.placement.now(entry, self._now)
            entry.shape = shape
            if isinstance(found, Placed) and self._has_power(entry, found):
                self._start(entry, found, self._level(entry), "elastic", f"on {fewer} of {gpus} GPUs")
                return True
        return False

    def _level(self, entry: Entry) -> Level:
        """High jobs beyond their share of the GPUs count as normal."""
        state = self._state
        if entry.job.level != "high":
            return entry.job.level
        asked = entry.gpus * entry.job.gpu_milli
        return "high" if high_allowed(state.high, state.allocated, asked, state.settings.high_share) else "normal"

    def _barred(self, entry: Entry) -> str:
        """What stands against a start apart from room."""
        state, job = self._state, entry.job.id
        for rule in _LIMITS if state.closed else ():
            if state.closed.get(self._limit(entry, rule), job) != job:
                return rule
        if entry.shape.terms.limit:
            cap = state.settings.queues[entry.job.queue].gpus
            held = state.by_queue.get(entry.job.queue, 0)
            if cap is not None and held + entry.gpus * entry.job.gpu_milli > cap * WHOLE:
                return "queue_limit"
        return ""

    def _limit(self, entry: Entry, rule: str) -> tuple[str, str]:
        """What the rule limits: the job's queue, or its pool."""
        return rule, entry.job.queue if rule == "queue_limit" else entry.shape.terms.chunks[0].ask.pool

    def _has_power(self, entry: Entry, found: Placed) -> bool:
        """The pool's budget of watts, which all end as heat, allows it."""
        state = self._state
        name = entry.shape.terms.chunks[0].ask.pool
        pool = state.settings.pools.get(name)
        if pool is None or pool.watts is None:
            return True
        return state.watts.get(name, 0.0) + state.watts_of(found.places) <= pool.watts + 1e-6

    def _start(self, entry: Entry, found: Placed, level: Level, rule: str = "order", why: str = "") -> None:
        state = self._state
        state.start(entry, found.places, found.network, level)
        if level != entry.job.level:
            why = f"as {level}: high jobs hold their {state.settings.high_share:.0%} of the GPUs"
        self._decisions.append(
            Start(
                rule=rule, job=entry.job.id, shares=state.shares(found.places), network=found.network,
                run=entry.runs, why=why,
            )
        )  # fmt: skip
        self._held_back += state.dependencies.started(entry.job.id).held

    def _reserve(self, entry: Entry, least: int = 0) -> None:
        state = self._state
        booking = self._booking(entry, max(least, self._now))
        if booking is None:
            return
        state.bookings.book(booking)
        if not state.reserved:
            state.head = entry.job.id
        state.reserved.append((entry.key, entry.job.id, booking))
        if booking.start > self._now:
            state.looks = min(state.looks, booking.start)

    def _booking(self, entry: Entry, least: int) -> Booking | None:
        state = self._state
        terms, bookings, cluster = entry.shape.terms, state.bookings, state.cluster
        apart = entry.shape.nodes == 1 or terms.within == "any" or not cluster.has_racks
        if apart or not state.settings.topology:
            return bookings.earliest(terms.chunks, entry.span, least)
        table = cluster.by_rack if terms.within == "rack" else cluster.by_pod
        near = bookings.earliest(terms.chunks, entry.span, least, table)
        if terms.required or (near is not None and state.placement.gathers(entry, self._now)):
            return near
        anywhere = bookings.earliest(terms.chunks, entry.span, least)
        if near is None or anywhere is None:
            return anywhere
        return near if near.start <= anywhere.start else anywhere

    def measure(self) -> None:
        """What lasts from here on, and a word where too many have waited for long."""
        state = self._state
        measures = state.measures
        measures.sample(self._now, state.cluster, state.allocated, len(state.queue), len(state.running))
        told = measures.warn(self._now, state.settings.queued_share)
        if told is not None:
            self._decisions.append(told)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        state = self._state
        overdue = None if state.settings.key == "fifo" else state.queue.next_overdue()
        holes = [held.hole.until + 1 for held in state.holes.values()]
        wake = min([state.looks, state.next_end(), state.next_life(), NEVER if overdue is None else overdue, *holes])
        return Plan(
            at=self._now,
            decisions=tuple(self._decisions),
            reservations=self._reservations(),
            wake=wake if wake < NEVER else None,
            counts={
                "queued": len(state.queue), "waiting": len(state.waiting), "running": len(state.running),
                "allocated_milli": state.allocated,
            },
        )  # fmt: skip

    def _reservations(self) -> tuple[Reservation, ...]:
        state = self._state
        names = state.cluster.names
        if len(state.planned) != len(state.reserved) or self._planned:
            state.planned = tuple(
                Reservation(job=job, start=booking.start, nodes=tuple(names[node] for node, _ in booking.nodes))
                for _, job, booking in state.reserved
            )
        return state.planned


_LIMITS = ("queue_limit", "power")
"""Limits of a queue and of a pool. Who has waited beyond patience for one closes it to others until he starts."""

_MEASURED = frozenset({"room", "window"})
"""Rules that stop one job and say nothing of the next of its shape."""
