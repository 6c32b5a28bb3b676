"""Keeps each source running in a thread of its own, and knows at any time what each of them can see.

Levels, and who moves a source between them:

    blind      not started yet; ended by an error or absent; or silent: its thread lives but has not been heard for
               `silent_after` (a read that hangs looks exactly so)
    watching   its first batch came: an empty one is enough, and sources send one as soon as they stand
    degraded   it works, but lost lines within the last minute, or was started `flapping` times within five

A source says that it is alive by any batch that is not about its own failure, at least once a minute, and by an empty
one that it has read all that was there when it began. A failed source is started again at its newest cursor after
0.5 s, then 1 s, 2 s, ... 60 s; a run of a minute without failure makes the next wait short again.
The waits carry no jitter: nothing here is shared between nodes.

A stand-in (the journal for kmsg) works only while the source that it stands in for is blind.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from gpuguard.errors import Absent, GpuguardError
from gpuguard.model.actions import Action, Outcome, Question
from gpuguard.model.events import Batch, Cursor, LinesLost, LogLine, SourceChanged, SourceLevel, Sweep
from gpuguard.model.health import SourceView
from gpuguard.model.ids import EventId
from gpuguard.model.instants import Instant
from gpuguard.model.units import Seconds
from gpuguard.ports import Actuator, Clock, Holder, Listener, NodeReport, Onlooker, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How patient supervision is. Units: seconds."""

    first_wait: Seconds = Seconds(0.5)  # before a source that failed is started again; doubled each time
    longest_wait: Seconds = Seconds(60.0)  # the doubling ends here
    quiet: Seconds = Seconds(60.0)  # a run of this length forgives earlier failures; a loss is forgotten after it
    absent_wait: Seconds = Seconds(300.0)  # what is not there is looked for again: a driver may be loaded later
    silent_after: Seconds = Seconds(
        180.0
    )  # without a word for so long a source counts as hung: three missed signs of life
    start_within: Seconds = Seconds(15.0)  # a source must have read what was there by then: a ring of 32 MiB takes 2 s
    flapping: int = 3  # a source that failed this often lately is degraded, though it runs again
    flapping_within: Seconds = Seconds(300.0)  # what lately means

    def __post_init__(self) -> None:
        """Raises ValueError for a wait that could spin."""
        if not 0.0 < self.first_wait <= self.longest_wait:
            raise ValueError("first_wait must be above 0 and not above longest_wait")


# Until a source was heard or failed for the first time, or took too long for either, there is nothing to say about it.
CRASHED_AGAIN_AFTER = 5.0
NOT_STARTED = "not heard since it was started: its first read hangs"


@runtime_checkable
class StandIn(Protocol):
    """A source that can take over for another one: it reads on from `since`, or stops doing so."""

    def stand_in(self, active: bool, since: Instant | None) -> None: ...


@dataclass(slots=True)
class _Watch:
    source: Source
    cursor: Cursor | None
    optional: bool
    stands_in_for: str | None
    since: Instant
    level: SourceLevel = "blind"
    reason: str = "not started yet"
    heard: bool = False  # since the current run began
    caught_up: bool = False
    last_success: Instant | None = None
    last_loss: Instant | None = None
    loss: str = ""
    failure: str | None = NOT_STARTED
    absent: bool = False
    failures_in_a_row: int = 0
    restarts: list[Instant] = field(default_factory=list)
    restarts_total: int = 0
    lost: int = 0
    announced: bool = False
    thread: threading.Thread | None = None


class Supervisor:
    """Runs sources, hands their batches on, and reports their levels as SourceChanged events through `put`."""

    def __init__(
        self,
        clock: Clock,
        put: Callable[[Batch], None],
        *,
        settings: Settings | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """Nothing runs yet. `wait(seconds)` sleeps and is true when it is time to stop; tests hand in their own."""
        self._clock = clock
        self._put = put
        self._settings = settings or Settings()
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._watches: dict[str, _Watch] = {}
        self._onlookers: list[tuple[str, Onlooker]] = []
        self._changed = threading.Condition()
        self._patrol: threading.Thread | None = None

    def add(
        self,
        source: Source,
        cursor: Cursor | None = None,
        *,
        optional: bool = False,
        stands_in_for: str | None = None,
    ) -> None:
        """The source is known, blind until `start`; `optional` ones are not missed where the machine lacks them."""
        self._watches[source.name] = _Watch(
            source=source, cursor=cursor, optional=optional, stands_in_for=stands_in_for, since=self._clock.now()
        )
        if isinstance(source, Onlooker):
            self._onlookers.append((source.name, source))

    def start(self) -> None:
        """Each source runs in a thread of its own."""
        for watch in self._watches.values():
            watch.thread = threading.Thread(
                target=self.keep_running, args=(watch.source.name,), name=f"source-{watch.source.name}", daemon=True
            )
            watch.thread.start()
        self._patrol = threading.Thread(target=self._patrol_levels, name="supervise", daemon=True)
        self._patrol.start()

    def stop(self, deadline: float = 5.0) -> tuple[str, ...]:
        """Every source was told to stop; the names of those whose threads did not end in time.

        A stuck thread is left behind: it is a daemon thread, and ends with the process.
        """
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for watch in self._watches.values():
            watch.source.stop()
        ends = self._clock.now().mono + deadline
        for watch in self._watches.values():
            if watch.thread is not None:
                watch.thread.join(max(0.0, ends - self._clock.now().mono))
        return tuple(name for name, watch in self._watches.items() if watch.thread and watch.thread.is_alive())

    def ask(self, question: Question) -> tuple[str, ...]:
        """Every source but the one that saw it first was asked for a second witness; the names of those who failed."""
        failed = []
        for name, watch in self._watches.items():
            if name == question.source or watch.absent:
                continue
            try:
                watch.source.ask(question)
            except Exception as error:  # noqa: BLE001 - one of the three homes: one broken source blinds no other
                failed.append(name)
                with self._changed:
                    watch.loss = f"could not be asked: {_words(error)}"
                    watch.last_loss = self._clock.now()
                    self._judge(watch)
        return tuple(failed)

    def overheard(self, line: LogLine) -> None:
        """Every source that wants to know what the logs say of the driver has been told."""
        for name, watch in self._watches.items():
            if name != line.source and isinstance(watch.source, Listener):
                watch.source.overhear(line)

    def let_go(self, seconds: float) -> None:
        """Every source that has GPUs open lets go of them for so long."""
        for watch in self._watches.values():
            if isinstance(watch.source, Holder):
                watch.source.let_go(seconds)

    def _show(self, sweep: Sweep) -> None:
        """Every source that looks closer at what another one found has been shown it."""
        for name, onlooker in self._onlookers:
            if name != sweep.source and not all(v.keys().isdisjoint(onlooker.onlooks) for v in sweep.rows.values()):
                onlooker.onlook(sweep)

    def views(self) -> tuple[SourceView, ...]:
        """What each source can see now; an optional source that this machine lacks is left out."""
        with self._changed:
            return tuple(
                SourceView(
                    name=name,
                    level=watch.level,
                    reason=watch.reason,
                    last_success_utc=watch.last_success.utc if watch.last_success else None,
                    lost=watch.lost,
                    restarts=watch.restarts_total,
                )
                for name, watch in self._watches.items()
                if not (watch.absent and watch.optional)
            )

    def caught_up(self, timeout: float) -> bool:
        """Whether every source has, within `timeout` seconds, read what was there when it began, or failed to."""

        def done() -> bool:
            return all(
                w.caught_up or (w.announced and w.failure is not None) or w.absent for w in self._watches.values()
            )

        with self._changed:
            return self._changed.wait_for(done, timeout)

    def tick(self) -> float | None:
        """Levels that time alone moves are up to date; seconds until the next could move, None when none can."""
        with self._changed:
            for watch in self._watches.values():
                self._judge(watch)
            return min((due for w in self._watches.values() if (due := self._next_due(w)) is not None), default=None)

    def keep_running(self, name: str) -> None:
        """Returns only once stopped: until then the source runs, or waits to be started again."""
        watch = self._watches[name]
        while not self._stopping.is_set():
            began = self._clock.now()
            try:
                watch.source.run(lambda batch: self._emitted(watch, batch), watch.cursor)
                error: Exception = GpuguardError("ended without being told to")
            except Exception as caught:  # noqa: BLE001 - one of the three homes: whatever it is, it is started again
                error = caught
            if self._stopping.is_set():
                return
            if self._wait(self._failed(watch, began, error)):
                return
            with self._changed:
                watch.restarts_total += 1
                watch.restarts = [*watch.restarts[-self._settings.flapping :], self._clock.now()]

    def _failed(self, watch: _Watch, began: Instant, error: Exception) -> float:
        settings = self._settings
        now = self._clock.now()
        with self._changed:
            ran_well = watch.heard and now.mono - began.mono >= settings.quiet
            watch.failures_in_a_row = 1 if ran_well else watch.failures_in_a_row + 1
            watch.failure = _words(error)
            watch.absent = isinstance(error, Absent)
            watch.heard = False
            self._judge(watch)
            self._changed.notify_all()
            if watch.absent:
                return settings.absent_wait
            # 2.0 ** 1024 overflows after a week of failures
            return min(settings.longest_wait, settings.first_wait * 2.0 ** min(watch.failures_in_a_row - 1, 30))

    def _emitted(self, watch: _Watch, batch: Batch) -> None:
        if not batch.alive:
            self._put(batch)
            return
        now = self._clock.now()
        losses = [event for event in batch.events if isinstance(event, LinesLost)]
        with self._changed:
            first, caught_up = not watch.heard, watch.caught_up
            watch.heard = True
            watch.failure = None
            watch.absent = False
            watch.last_success = now
            if losses:
                watch.lost += sum(event.count for event in losses)
                watch.last_loss = now
                watch.loss = f"lost {sum(event.count for event in losses)} lines: {losses[-1].reason}"
            watch.caught_up = watch.caught_up or (not batch.events and batch.cursor is None)
            if first or losses or watch.level != "watching":
                self._judge(watch)
            if first or losses or watch.caught_up != caught_up:
                self._changed.notify_all()
        self._put(batch)
        for event in batch.events:
            if isinstance(event, Sweep):
                self._show(event)
        if batch.cursor is not None:
            watch.cursor = batch.cursor

    def _level(self, watch: _Watch, now: Instant) -> tuple[SourceLevel, str]:
        settings = self._settings
        if watch.failure is not None:
            return "blind", watch.failure
        if watch.last_success and now.mono - watch.last_success.mono >= settings.silent_after:
            return "blind", f"not heard for {settings.silent_after:.0f} s: a read hangs; see `gpuguard status`"
        if watch.last_loss and now.mono - watch.last_loss.mono < settings.quiet:
            return "degraded", watch.loss
        recent = [at for at in watch.restarts if now.mono - at.mono < settings.flapping_within]
        if len(recent) >= settings.flapping:
            return "degraded", f"started again {len(recent)} times within {settings.flapping_within:.0f} s"
        return "watching", ""

    def _next_due(self, watch: _Watch) -> float | None:
        settings, now = self._settings, self._clock.now().mono
        if watch.failure is NOT_STARTED and not watch.announced:
            return max(0.0, watch.since.mono + settings.start_within - now)
        if watch.failure is not None or watch.last_success is None:
            return None
        dues = [watch.last_success.mono + settings.silent_after]
        if watch.last_loss:
            dues.append(watch.last_loss.mono + settings.quiet)
        dues += [at.mono + settings.flapping_within for at in watch.restarts]
        return min((due - now for due in dues if due > now), default=None)

    def _judge(self, watch: _Watch) -> None:
        """Caller holds the lock."""
        now = self._clock.now()
        if watch.failure is NOT_STARTED and now.mono - watch.since.mono < self._settings.start_within:
            return  # no news yet: starting takes its time
        level, reason = self._level(watch, now)
        if watch.absent and watch.optional:
            watch.level, watch.reason = level, reason
            return
        moved = level != watch.level or not watch.announced
        if not moved and (level != "blind" or reason == watch.reason):
            watch.reason = reason  # a count that grows is no news of its own
            return
        watch.level, watch.reason, watch.announced = level, reason, True
        watch.since = now if moved else watch.since
        name = watch.source.name
        event = SourceChanged(
            id=EventId(f"source:{name}:{now.boot[:8]}:{now.mono:.6f}"), at=now, source=name, level=level, reason=reason
        )
        self._put(Batch(source=name, events=(event,)))
        if moved:
            self._tell_stand_ins(watch)

    def _tell_stand_ins(self, watch: _Watch) -> None:
        for other in self._watches.values():
            if other.stands_in_for == watch.source.name and isinstance(other.source, StandIn):
                other.source.stand_in(watch.level == "blind", watch.last_success)

    def _patrol_levels(self) -> None:
        while not self._stopping.is_set():
            due = self.tick()
            with self._changed:
                if not self._stopping.is_set():
                    self._changed.wait(None if due is None else due + 0.01)


def perform_safely(actuator: Actuator, action: Action) -> Outcome:
    """What came of the action; an actuator that crashes is asked again later, and its words are told."""
    try:
        return actuator.perform(action)
    except Exception as error:  # noqa: BLE001 - one of the three homes: whatever a target says, actions go on
        message = f"{actuator.name} crashed with {_words(error)}; nothing is known of what was written"
        return Outcome(result="deferred", message=message, retry_after=CRASHED_AGAIN_AFTER)


def read_safely(actuator: Actuator) -> NodeReport:
    """What the target says of this node; where the actuator crashes, a report whose error has its words."""
    try:
        return actuator.read_state()
    except Exception as error:  # noqa: BLE001 - the same home
        return NodeReport(target=actuator.name, node="", error=f"{actuator.name} crashed with {_words(error)}")


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, GpuguardError) else f"{type(error).__name__}: {error}"
