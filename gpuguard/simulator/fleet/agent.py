"""The agent of one node: the real core over what its sources would bring, and the loop around it.

Theory. `decide` is the one that ships, with the detectors that ship; what it remembers is immutable, so what is on disk
is the health as it was when it was written last. A crash loses what came after that: the lines since are read again
from the ring, the actions that were owed are sent again. That is `runtime/loop` without threads and files; the times
of its tries are its own. What the kernel prints while no agent runs waits in the ring until the machine reboots.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gpuguard.errors import InvariantBroken
from gpuguard.health import machine as states
from gpuguard.health import policy
from gpuguard.health.decide import ASK_AGAIN_AT, decide
from gpuguard.health.state import Health, difference, restore
from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.actions import Action, Outcome, Question
from gpuguard.model.events import (
    Acknowledged,
    ActionOutcome,
    AnyEvent,
    Booted,
    GpuProbed,
    LogLine,
    OperatorAsked,
    SourceChanged,
    SourceLevel,
    Sweep,
    Tick,
)
from gpuguard.model.health import Decision
from gpuguard.model.ids import NODE, EventId, SubjectId, pci_of
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values
from gpuguard.ports import AnyDetector
from gpuguard.simulator.fleet.faults import DAY
from gpuguard.simulator.fleet.machine import ADDRESSES, EPOCH, Machine
from gpuguard.simulator.fleet.rhythm import BRIEFLY, HOLDS, KINDS, Pace, Rhythm
from gpuguard.simulator.fleet.scheduler import GIVES_UP, TAKES, Scheduler

# As `[loop]` ships. Units: seconds
RETRY_FIRST, RETRY_LONGEST, TRIES, WRITE_WITHIN = 1.0, 300.0, 300, 5.0
# How long answers to a question take: of the bus, and of journalctl.
PROBED_WITHIN, FOUND_WITHIN = 0.02, 0.3
# A call of NVML that was not answered in time, and when another process tries again.
NVML_DEADLINE, NVML_FIRST, NVML_LONGEST = 4.0, 10.0, 600.0
# A node that returns shows within this that it is well, or a person has to look.
SHOWS_WITHIN = 1800.0
SOURCES = ("kmsg", "journal", "pci_config", "nvml", "infiniband", "edac")
SWEPT_BY = {"fast": "nvml", "medium": "nvml", "slow": "nvml", "infiniband": "infiniband", "edac": "edac"}
WORKS: dict[str, Rate] = {"fast": "fast", "medium": "medium", "slow": "slow", "infiniband": "medium", "edac": "medium"}

Rows = dict[SubjectId, Values]
Later = Callable[[float, Callable[[float], None]], None]


class Listener(Protocol):
    """Who is told what the agent decides, and what came of its actions."""

    def decided(self, agent: "Agent", at: float, event: AnyEvent, decision: Decision) -> None: ...

    def answered(self, agent: "Agent", at: float, action: Action, outcome: Outcome) -> None: ...


class OwedAction(msgspec.Struct, frozen=True, kw_only=True):
    """An action that is owed still. Units: `not_before` in seconds since the first day"""

    action: Action
    tries: int = 0
    not_before: float = 0.0


class _Disk(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart finds. `read` is how far the ring was read, in which boot."""

    health: Health | None = None
    owed: dict[str, OwedAction] = {}
    read: int = 0
    boots: int = 0


class Agent:
    """Runs on one machine. Time is the simulation's."""

    def __init__(
        self, machine: Machine, scheduler: Scheduler, detectors: Sequence[AnyDetector], settings: policy.Settings, *,
        pace: Pace, whole: bool, later: Later, listener: Listener,
    ) -> None:  # fmt: skip
        """It does not run yet."""
        self.machine, self.alive = machine, False
        self.health = Health(now=machine.instant(0.0))
        self.owed: dict[str, OwedAction] = {}
        self.failed: list[str] = []
        self.origins: dict[EventId, str] = {}
        self._scheduler, self._detectors, self._settings = scheduler, tuple(detectors), settings
        self._pace, self._whole, self._later, self._listener = pace, whole, later, listener
        self._disk = _Disk()
        self._unwritten: float | None = None
        self._ring: list[LogLine] = []
        self._read = 0
        self._run = 0
        self._tries_at = float("inf")
        self._blind = False
        self._hung = False
        self._in_flight: str | None = None
        self._rhythm = Rhythm(pace, 0.0, whole=True)
        self._beat_at = float("inf")

    # --- its life ----------------------------------------------------------------------------------------------------

    def start(self, at: float) -> None:
        """It runs, with the memory that is on disk, and has looked at everything once."""
        if self.alive:
            return
        self.alive, self._run, self._blind, self._in_flight = True, self._run + 1, False, None
        self._beat_at = self._tries_at = float("inf")
        now = self.machine.instant(at)
        disk = self._disk
        self.health = Health(now=now)
        if disk.health is not None:
            puts, _ = difference(Health(now=now), disk.health)
            self.health = restore(puts, self._detectors, now)
        self.owed = dict(disk.owed)
        self._read = disk.read if disk.boots == self.machine.boots else 0
        self._unwritten = None
        self._rhythm = Rhythm(self._pace, at, whole=self._whole, windows=self._rhythm.windows)
        quiet = self.machine.well and not any(s.standing for s in self.health.subjects.values())
        self._rhythm.disturb(at, BRIEFLY if quiet else HOLDS)
        previous = disk.health.boot if disk.health is not None else None
        self._tell(at, Booted(id=self._id("start", at), at=now, previous=previous))
        for source in SOURCES:
            self._source(at, source, "watching", "")
        for line in self._ring[self._read :]:
            self._tell(at, msgspec.structs.replace(line, backlog=True))
        self._read = len(self._ring)
        for slot in range(self.machine.gpus):
            self._tell(at, self._probe(at, slot))
        if self._hung:
            self._later(at + NVML_DEADLINE, self._still_hung(NVML_FIRST))
        self.send(at)
        self._plan(at)

    def kill(self, at: float) -> None:
        """It runs no more; what was written stays."""
        if self._unwritten is not None and at - self._unwritten >= WRITE_WITHIN:
            self._commit()
        self.alive = False
        self._run += 1

    def reboots(self, at: float) -> None:
        """The machine's ring is empty, and nothing hangs any more; `start` follows."""
        self.machine.reboot(at)
        self._ring, self._read, self._hung = [], 0, False

    def _while_running(self, what: Callable[[float], None]) -> Callable[[float], None]:
        """Done unless this run of the agent has ended."""
        run = self._run
        return lambda at: what(at) if self.alive and self._run == run else None

    # --- what its sources bring --------------------------------------------------------------------------------------

    def prints(self, at: float, text: str, repeated: int, origin: str) -> None:
        """The kernel printed a line."""
        parsed = parse_text(text)
        if parsed is None:
            raise InvariantBroken(f"the simulated driver prints what no grammar reads: {text!r}")
        boot = self.machine.boot
        line = LogLine(
            id=EventId(f"kmsg:{boot}:{len(self._ring)}"), at=self.machine.instant(at), source="kmsg", parsed=parsed,
            raw=text, repeated=repeated,
        )  # fmt: skip
        self.origins[line.id] = origin
        self._ring.append(line)
        if not self.alive:
            return
        if self._blind:
            self._happens(at, self._of_journal(line))
            return
        self._read = len(self._ring)
        self._happens(at, line)

    def rotated(self, at: float, since: float) -> None:
        """The log was rotated, and what was printed since then is read a second time, from the journal."""
        if not self.alive:
            return
        again = [line for line in self._ring if self._moment(line.at) >= since]
        for line in again:
            self._happens(at, msgspec.structs.replace(self._of_journal(line), backlog=True))

    def blinded(self, at: float) -> None:
        """The ring cannot be read; the journal stands in."""
        if self.alive and not self._blind:
            self._blind = True
            self._catch_up(at)
            self._source(at, "kmsg", "blind", "the ring cannot be read")
            self._plan(at)

    def sees(self, at: float) -> None:
        """The ring is read again, from where it was left."""
        if not (self.alive and self._blind):
            return
        self._blind = False
        self._catch_up(at)
        self._source(at, "kmsg", "watching", "")
        for line in self._ring[self._read :]:
            self._tell(at, msgspec.structs.replace(line, backlog=True))
        self._read = len(self._ring)
        self._plan(at)

    def measures(self, at: float, change: Callable[[], None], kinds: Sequence[str] = KINDS) -> None:
        """What these sweeps measure changes now: the looks until now found the old state, those after it the new."""
        if self.alive:
            self._catch_up(at)
        change()
        self._rhythm.measured(at, kinds)
        if self.alive:
            self._plan(at)

    def before(self, at: float) -> None:
        """The looks until now are taken: what comes now is of another clock."""
        self._catch_up(at)

    def hangs(self, at: float) -> None:
        """A call of NVML does not come back."""
        if self.alive:
            self._catch_up(at)
        self._hung = True
        self._later(at + NVML_DEADLINE, self._while_running(self._still_hung(NVML_FIRST)))

    def _still_hung(self, wait: float) -> Callable[[float], None]:
        """Whoever asks NVML gave up, says so, and tries again after `wait`."""

        def told(at: float) -> None:
            if not self._hung:
                return
            row: Values = {
                "nvml_hung": 1,
                "nvml_hung_for_seconds": NVML_DEADLINE,
                "nvml_hung_call": "nvmlDeviceGetFieldValues",
            }
            self._happens(at, self._sweep(at, "nvml", "fast", {NODE: row}, 2 * NVML_LONGEST))
            follow = self._while_running(self._still_hung(min(2 * wait, NVML_LONGEST)))
            self._later(at + wait + NVML_DEADLINE, follow)

        return told

    def answers_again(self, at: float) -> None:
        """NVML comes back."""
        if self._hung:
            if self.alive:
                self._catch_up(at)
            self._hung = False
            self._rhythm.disturb(at, HOLDS)
            if self.alive:
                self._plan(at)

    def probe(self, at: float, slot: int) -> None:
        """The GPU is looked at on its bus."""
        if self.alive:
            self._happens(at, self._probe(at, slot))

    # --- what people tell it -----------------------------------------------------------------------------------------

    def acknowledge(self, at: float, by: str) -> bool:
        """A person clears whatever makes a subject unfit; whether there was any."""
        codes = [
            (name, standing.finding.code)
            for name, subject in self.health.subjects.items() if subject.state == "unfit"
            for standing in states.deciding(subject)
        ]  # fmt: skip
        for name, code in codes:
            said = Acknowledged(
                id=self._id(f"ack:{name}:{code}", at),
                at=self.machine.instant(at),
                code=code,
                subject=name,
                by=by,
                reason="looked at",
            )
            self._happens(at, said)
        return bool(codes)

    def asked(self, at: float, wish: Literal["drain", "release"], by: str) -> None:
        """A person wants a drain, or a release."""
        said = OperatorAsked(
            id=self._id("person", at), at=self.machine.instant(at), wish=wish, by=by, reason="by hand",
        )  # fmt: skip
        self._happens(at, said)

    # --- time --------------------------------------------------------------------------------------------------------

    def _plan(self, at: float) -> None:
        """The next beat that counts will come."""
        if self._returns(at):
            self._rhythm.disturb(at, 60.0)
        beat = self._rhythm.next(at, self._due(at))
        if beat is None:
            self._beat_at = float("inf")
        elif beat != self._beat_at:
            self._beat_at = beat
            self._later(beat, self._while_running(self._beat))

    def _beat(self, at: float) -> None:
        if at != self._beat_at:
            return  # another one was planned since
        self._beat_at = float("inf")
        self._catch_up(at)
        self._plan(at)

    def _catch_up(self, at: float) -> None:
        """The node is as the looks until now would have left it."""
        for moment, kind in self._rhythm.missed(at):
            if kind == "tick":
                self._tell(moment, Tick(id=self._id("tick", moment), at=self.machine.instant(moment)))
            elif not (self._hung and SWEPT_BY[kind] == "nvml"):
                good_for = 3 * self._pace.every(kind)
                self._tell(moment, self._sweep(moment, SWEPT_BY[kind], kind, self.machine.rows(kind), good_for))
        self.send(at)

    def _returns(self, at: float) -> bool:
        """Whether a subject shows just now that it is well."""
        starts = [
            self._moment(subject.probation_from)
            for subject in self.health.subjects.values()
            if subject.state == "returning" and subject.probation_from is not None
        ]
        return self.health.drain is not None and any(at - start < SHOWS_WITHIN for start in starts)

    def _due(self, at: float) -> float | None:
        """When time alone would next change what is decided."""
        dues: list[float] = []
        for subject in self.health.subjects.values():
            dues += [self._moment(due) for due in states.dues(subject, self._settings.proof)]
        for _, standing in policy.held_back(self.health.subjects.values()):
            dues += [self._moment(standing.first) + age for age in ASK_AGAIN_AT]
        drain = self.health.drain
        if drain is not None and drain.told is not None:
            dues.append(self._moment(drain.told) + self._settings.reason_every)
        # So many releases a day: the next one may come a day after the oldest of them.
        dues += [self._moment(released) + DAY for released in self.health.released]
        return min((due for due in dues if due > at), default=None)

    def _moment(self, at: Instant) -> float:
        """When that was, in seconds since the first day."""
        if at.boot == self.machine.boot:
            return self.machine.booted + at.mono
        return (at.utc if at.utc is not None else EPOCH) - EPOCH - self.machine.clock

    # --- deciding and acting -----------------------------------------------------------------------------------------

    def _happens(self, at: float, event: AnyEvent) -> None:
        """Something other than a beat: the beats before it come first."""
        self._catch_up(at)
        self._tell(at, event)
        self.send(at)
        self._plan(at)

    def _tell(self, at: float, event: AnyEvent) -> None:
        self.health, decision = decide(self.health, event, self._detectors, self._settings)
        self.failed += decision.failed
        for owed in decision.owed:
            if owed.cancelled:
                self.owed.pop(owed.action.key, None)
            elif owed.action.key not in self.owed:
                self.owed[owed.action.key] = OwedAction(action=owed.action)
        if decision.urgent or isinstance(event, ActionOutcome):
            self._commit()
        elif self._unwritten is None:
            self._unwritten = at
        elif at - self._unwritten >= WRITE_WITHIN:
            self._commit()
        for question in decision.questions:
            self._ask(at, question)
        self._listener.decided(self, at, event, decision)

    def _commit(self) -> None:
        self._disk = _Disk(health=self.health, owed=dict(self.owed), read=self._read, boots=self.machine.boots)
        self._unwritten = None

    def send(self, at: float) -> None:
        """The next action that is due is on its way, if none is."""
        if self._in_flight is not None or not self.alive:
            return
        waits = [owed for owed in self.owed.values() if owed.not_before > at]
        due = next((owed for owed in self.owed.values() if owed.not_before <= at), None)
        if due is None:
            if waits and (again := min(owed.not_before for owed in waits)) != self._tries_at:
                self._tries_at = again
                self._later(again, self._while_running(self.send))
            return
        action = due.action
        self._in_flight = action.key
        outcome = self._scheduler.begin(self.machine.node, action, at)
        if outcome is not None:
            wait = GIVES_UP if outcome.node_state is None and outcome.result == "deferred" else TAKES
            self._later(at + wait, self._while_running(lambda now: self._hear(now, action, outcome)))
            return

        def write(now: float) -> None:
            # The actuator is a process of its own: it writes whether or not the agent still lives.
            self._after_write(now, action, self._scheduler.finish(self.machine.node, action, now))

        self._later(at + TAKES, write)

    def _after_write(self, at: float, action: Action, outcome: Outcome) -> None:
        if self.alive and self._in_flight == action.key:
            self._hear(at, action, outcome)
        else:
            self._listener.answered(self, at, action, outcome)

    def _hear(self, at: float, action: Action, outcome: Outcome) -> None:
        """What came of an action, as the loop takes it."""
        self._catch_up(at)
        self._in_flight = None
        owed = self.owed.pop(action.key, None)
        result, message = outcome.result, outcome.message
        if owed is not None:
            silent = result == "deferred" and outcome.node_state is None
            tries = owed.tries + 1 if silent else 1
            if silent and tries >= TRIES:
                result, message = "refused", f"gave up after {tries}: {message}"
            if result == "deferred" or (result == "foreign" and action.verb == "drain"):
                first = max(outcome.retry_after or 0.0, RETRY_FIRST)
                wait = RETRY_LONGEST if result == "foreign" else min(first * 2.0 ** min(tries - 1, 12), RETRY_LONGEST)
                self.owed[action.key] = msgspec.structs.replace(owed, tries=tries, not_before=at + wait)
        self._listener.answered(self, at, action, outcome)
        told = ActionOutcome(
            id=self._id(f"outcome:{action.key}", at), at=self.machine.instant(at), key=action.key, result=result,
            message=message, retry_after=outcome.retry_after, node_state=outcome.node_state,
        )  # fmt: skip
        self._tell(at, told)
        self.send(at)
        self._plan(at)

    def _ask(self, at: float, question: Question) -> None:
        """The bus answers for a GPU, the journal for a line."""
        pci = pci_of(question.subject)
        if pci in ADDRESSES[: self.machine.gpus]:
            slot = ADDRESSES.index(pci)
            self._later(at + PROBED_WITHIN, self._while_running(lambda now: self.probe(now, slot)))
        if question.raw and question.source != "journal":
            found = next((line for line in reversed(self._ring) if line.raw == question.raw), None)
            if found is not None:
                line = self._of_journal(found)
                self._later(at + FOUND_WITHIN, self._while_running(lambda now: self._happens(now, line)))

    # --- events ------------------------------------------------------------------------------------------------------

    def _id(self, what: str, at: float) -> EventId:
        return EventId(f"{what}:{self.machine.boot}:{at - self.machine.booted:.6f}")

    def _of_journal(self, line: LogLine) -> LogLine:
        name = EventId(line.id.replace("kmsg:", "journal:", 1))
        self.origins[name] = self.origins[line.id]
        return msgspec.structs.replace(line, id=name, source="journal")

    def _source(self, at: float, name: str, level: SourceLevel, reason: str) -> None:
        said = SourceChanged(
            id=self._id(f"source:{name}", at), at=self.machine.instant(at), source=name, level=level, reason=reason
        )
        self._tell(at, said)

    def _sweep(self, at: float, source: str, kind: str, rows: Rows, good_for: float) -> Sweep:
        return Sweep(
            id=self._id(f"{source}/{kind}", at), at=self.machine.instant(at), source=source, rate=WORKS[kind],
            valid_for=good_for, rows=rows,
        )  # fmt: skip

    def _probe(self, at: float, slot: int) -> GpuProbed:
        lost = self.machine.lost(slot)
        return GpuProbed(
            id=self._id(f"probe:{slot}", at), at=self.machine.instant(at), source="pci_config",
            pci=self.machine.address(slot), present=True, answers=not lost,
            uuid=None if lost else self.machine.uuid(slot),
        )  # fmt: skip
