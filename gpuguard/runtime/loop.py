"""One queue, one thread: events are decided one after the other, written down, and only then acted on.

A decision that only moves counts may wait a few seconds to be written with the next, together with its cursor: killed
in between, the agent reads the same lines again and counts them once. What changes a verdict or owes an action is
written at once. While the disk refuses, nothing is acted on; the decided change is kept and written when it can be.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from gpuguard.errors import StoreFailed
from gpuguard.health import machine, policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health, difference
from gpuguard.model.actions import DRY, Action, Question
from gpuguard.model.events import (
    ActionOutcome,
    AnyEvent,
    Batch,
    Cursor,
    LogLine,
    SourceChanged,
    SourceLevel,
    Sweep,
    Tick,
)
from gpuguard.model.health import Decision, Owed, Transition
from gpuguard.model.ids import EventId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.story import Change, OwedAction, StoryEntry
from gpuguard.model.units import Seconds
from gpuguard.ports import AnyDetector, Clock, Store
from gpuguard.runtime.tally import Tally

# A verdict that waits for the disk is tried this often; a refused write costs a millisecond. Units: seconds
URGENT_RETRY = 5.0
NOTHING = Decision()
# By how much of it a wait may be shorter.
SPREAD = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often the loop does what no event asks for; `[loop]` in the configuration."""

    tick: Seconds = Seconds(30.0)  # how often time alone is looked at: quiet, probation, signs of life
    # Counts alone are written this late at most.
    write_within: Seconds = Seconds(5.0)
    retry_first: Seconds = Seconds(1.0)  # before an action that got no answer is sent again; longer each time
    # It grows no longer than this: a scheduler that was away is caught up with so soon after its return.
    retry_longest: Seconds = Seconds(25.0)
    foreign_again: Seconds = Seconds(300.0)  # before a node that somebody else holds is asked for again
    # Then an action is given up; with the longest wait this is about a day of a scheduler that does not answer.
    tries: int = 3600

    def __post_init__(self) -> None:
        for name in ("tick", "write_within", "retry_first", "retry_longest", "foreign_again"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be greater than 0")
        if self.retry_longest < self.retry_first:
            raise ValueError("retry_longest: must not be less than retry_first")
        if self.tries < 1:
            raise ValueError("tries: must be at least 1")


@dataclass(slots=True)
class _Pending:
    """What is decided and not yet on disk."""

    since: Instant | None = None
    urgent: bool = False
    story: list[StoryEntry] = field(default_factory=list)
    events: list[LogLine] = field(default_factory=list)
    actions: dict[str, OwedAction] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    live: list[Instant] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


class Loop:
    """Decides batches, keeps the store true, and hands out what is owed."""

    def __init__(
        self,
        *,
        store: Store,
        health: Health,
        detectors: Sequence[AnyDetector],
        clock: Clock,
        tally: Tally,
        rules: policy.Settings,
        settings: Settings,
        act: Callable[[Action], None],
        ask: Callable[[Question], None],
        told: Callable[[Transition], None],
        heard: Callable[[LogLine], None] = lambda line: None,
        measured: Callable[[Sweep], None] = lambda sweep: None,
        decided: Callable[[Health, Health, Decision, AnyEvent], None] = lambda before, after, decision, event: None,
        chance: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.health, self.tally = health, tally
        self._store, self._detectors, self._clock = store, detectors, clock
        self._rules, self._settings = rules, settings
        self._act, self._ask, self._told = act, ask, told
        self._heard, self._measured, self._decided, self._chance = heard, measured, decided, chance
        self._written = health
        self._pending = _Pending()
        actions = store.actions()
        self.owed: dict[str, OwedAction] = {o.action.key: o for o in actions if o.state == "owed"}
        self._ended: Counter[str] = Counter(o.state for o in actions if o.state != "owed")
        self._in_flight: str | None = None
        self._waiting: set[str] = set()
        self._ticked = clock.now()
        self._store_failing = False
        self._store_retry: Instant | None = None
        self._store_wait = float(settings.retry_first)
        self.changed = True

    # --- one batch ---------------------------------------------------------------------------------------------------

    def take(self, batch: Batch) -> None:
        """The batch is decided, and on disk unless it only moved counts."""
        for event in batch.events:
            self._decide(event)
        if batch.cursor is not None:
            self._pending.cursors[batch.source] = batch.cursor
            self._mark_pending()
        self.write_when_due()
        self.send_owed()

    def _decide(self, event: AnyEvent) -> None:
        self.tally.saw(event)
        if isinstance(event, ActionOutcome):
            event = self._settle_outcome(event)
        before = self.health
        self.health, decision = decide(before, event, self._detectors, self._rules)
        # Before it is on disk: people are to hear of a lost GPU also where the disk is full.
        self._decided(before, self.health, decision, event)
        if isinstance(event, Sweep):
            self._measured(event)
            if decision == NOTHING and self.health.memory is before.memory and self.health.subjects == before.subjects:
                return  # nothing to write: what was measured is no part of the memory
        elif isinstance(event, LogLine) and not event.backlog:
            self._heard(event)
        self._keep(event, decision)
        for transition in decision.transitions:
            self._told(transition)

    def _keep(self, event: AnyEvent, decision: Decision) -> None:
        pending = self._pending
        pending.story.extend(decision.story)
        pending.questions.extend(decision.questions)
        for owed in decision.owed:
            self._owe(owed)
        for check in decision.failed:
            self.tally.check_errors[check] += 1
        if isinstance(event, LogLine):
            if decision.keep_event:
                pending.events.append(event)
            if decision.urgent and not event.backlog:
                pending.live.append(event.at)
        pending.urgent = pending.urgent or decision.urgent
        self.changed = self.changed or decision.urgent
        self._mark_pending()

    def _mark_pending(self) -> None:
        if self._pending.since is None:
            self._pending.since = self._clock.now()

    def _owe(self, owed: Owed) -> None:
        key = owed.action.key
        known = self.owed.get(key)
        if owed.cancelled:
            if known is not None and known.state == "owed":
                self._record(msgspec.structs.replace(known, state="cancelled", message="no longer wanted"))
        elif known is None:
            self._record(OwedAction(action=owed.action))

    def _record(self, owed: OwedAction) -> None:
        self._pending.actions[owed.action.key] = owed
        self._pending.urgent = True
        if owed.state == "owed":
            self.owed[owed.action.key] = owed
        else:
            self.owed.pop(owed.action.key, None)
            self._ended[owed.state] += 1

    @property
    def disk_refuses(self) -> bool:
        """Whether what was decided last could not be written."""
        return self._store_failing

    def action_counts(self) -> dict[str, int]:
        """Actions on record by state. What its target answered with "not yet" is `waiting`: for a job to end, or for
        whoever holds the node; the rest of what is owed is `owed`."""
        waiting = len(self._waiting.intersection(self.owed))
        return {**self._ended, "owed": len(self.owed) - waiting, "waiting": waiting}

    # --- the disk ----------------------------------------------------------------------------------------------------

    def write_when_due(self, *, now: bool = False) -> None:
        """What is decided is on disk, unless it can wait or the disk refuses."""
        pending, clock = self._pending, self._clock.now()
        if pending.since is None:
            return
        if self._store_retry is not None and clock.mono < self._store_retry.mono and not now:
            return
        age = clock.mono - pending.since.mono
        if not (now or pending.urgent or age >= self._settings.write_within):
            return
        puts, deletes = difference(self._written, self.health)
        change = Change(
            cursors=tuple(pending.cursors.values()), puts=puts, deletes=deletes, story=tuple(pending.story),
            events=tuple(pending.events), actions=tuple(pending.actions.values()),
        )  # fmt: skip
        try:
            self._store.commit(change)
        except StoreFailed as error:
            self._store_failed(error, clock)
            return
        self._written = self.health
        done = self._clock.now()
        for at in pending.live:
            took = seconds_between(at, done)
            if took is not None:
                self.tally.decided(max(0.0, took))
        self._pending = _Pending()
        for question in pending.questions:
            self._ask(question)
        self._store_works()

    def _store_failed(self, error: StoreFailed, now: Instant) -> None:
        self.tally.store_errors += 1
        self._store_retry = msgspec.structs.replace(now, mono=now.mono + self._store_wait)
        longest = URGENT_RETRY if self._pending.urgent else float(self._settings.retry_longest)
        self._store_wait = min(2 * self._store_wait, longest)
        if not self._store_failing:
            self._store_failing = True
            self._decide(_store_event(now, "degraded", str(error)))

    def _store_works(self) -> None:
        self._store_retry, self._store_wait = None, float(self._settings.retry_first)
        if self._store_failing:
            self._store_failing = False
            self._decide(_store_event(self._clock.now(), "watching", "the state directory can be written again"))
            self.write_when_due()

    # --- actions -----------------------------------------------------------------------------------------------------

    def send_owed(self) -> None:
        """The next action that is due is on its way, if everything it rests on is on disk and none is under way."""
        if self._in_flight is not None or (self._pending.since is not None and self._pending.urgent):
            return
        now = self._clock.now()
        due = next((owed for owed in self._sendable() if _wait_of(owed, now) == 0.0), None)
        if due is not None:
            self._in_flight = due.action.key
            self._act(due.action)

    def _sendable(self) -> Iterator[OwedAction]:
        """What may be sent now: while the site only observes, nothing that was owed for real, and the reverse."""
        return (o for o in self.owed.values() if o.action.key.endswith(DRY) is self._rules.dry_run)

    def _settle_outcome(self, event: ActionOutcome) -> ActionOutcome:
        """The action's record says what came of it; the answer as the core is to hear it.

        A target that answers "not yet", or that somebody else holds the node, is asked again for as long as it takes;
        one that does not answer is given up after `tries`, which is a refusal: a person is needed.
        """
        if self._in_flight == event.key:
            self._in_flight = None
        known = self.owed.get(event.key)
        verb = event.key.partition(":")[0]
        self.tally.answered(verb, event.result)
        if known is None:
            return event
        silent = event.result == "deferred" and event.node_state is None
        # Only silences in a row count: an answer shows that the target is there.
        tries = known.tries + 1 if silent else 1
        if silent and tries >= self._settings.tries:
            event = msgspec.structs.replace(event, result="refused", message=f"gave up after {tries}: {event.message}")
        told = msgspec.structs.replace(known, tries=tries, message=event.message)
        # A drain that met somebody else's waits for the node: our verdict stands, and theirs may be lifted.
        if event.result == "deferred" or (event.result == "foreign" and verb == "drain"):
            wait = self._wait_after(event, tries)
            not_before = msgspec.structs.replace(event.at, mono=event.at.mono + wait)
            (self._waiting.discard if silent else self._waiting.add)(event.key)
            self._record(msgspec.structs.replace(told, not_before=not_before))
        else:
            self._waiting.discard(event.key)
            self._record(msgspec.structs.replace(told, state=event.result))
        return event

    def _wait_after(self, event: ActionOutcome, tries: int) -> float:
        if event.result == "foreign":
            wait = float(self._settings.foreign_again)
        else:
            # What a target says is not to be trusted with our own pace.
            first = max(event.retry_after or 0.0, float(self._settings.retry_first))
            wait = min(first * 2.0 ** min(tries - 1, 12), float(self._settings.retry_longest))
        # A thousand nodes that lost their scheduler in one moment are not to ask for it in one moment.
        return wait * (1.0 - SPREAD * self._chance())

    # --- time --------------------------------------------------------------------------------------------------------

    def tick_when_due(self) -> bool:
        """Time has been told to the core if it was time to; whether it was."""
        now = self._clock.now()
        if now.mono - self._ticked.mono < self._settings.tick and not self._probation_over(now):
            return False
        self._ticked = now
        self._decide(Tick(id=EventId(f"tick:{now.boot[:8]}:{now.mono:.3f}"), at=now))
        self.write_when_due()
        self.send_owed()
        return True

    def _probation_over(self, now: Instant) -> bool:
        return any(due.boot == now.boot and self._ticked.mono < due.mono <= now.mono for due in self._dues())

    def _dues(self) -> Iterable[Instant]:
        for subject in self.health.subjects.values():
            yield from machine.dues(subject, self._rules.proof)

    def idle_for(self) -> float:
        """How long the loop may sleep, in seconds, if no batch comes."""
        now = self._clock.now()
        waits = [self._ticked.mono + self._settings.tick - now.mono]
        waits += [due.mono - now.mono for due in self._dues() if due.boot == now.boot and due.mono > self._ticked.mono]
        if self._store_retry is not None:
            # Until the disk can be written nothing else can be done.
            return max(0.01, min(waits[0], self._store_retry.mono - now.mono))
        if self._pending.since is not None:
            waits.append(self._pending.since.mono + self._settings.write_within - now.mono)
        if self._in_flight is None:
            waits += [_wait_of(owed, now) for owed in self._sendable()]
        return max(0.01, min(waits))


def _wait_of(owed: OwedAction, now: Instant) -> float:
    """Seconds until the action is due; what was to wait on another boot waits no longer."""
    if owed.not_before is None or owed.not_before.boot != now.boot:
        return 0.0
    return max(0.0, owed.not_before.mono - now.mono)


def _store_event(at: Instant, level: SourceLevel, reason: str) -> SourceChanged:
    event_id = EventId(f"source:store:{at.boot[:8]}:{at.mono:.3f}")
    return SourceChanged(id=event_id, at=at, source="store", level=level, reason=reason)
