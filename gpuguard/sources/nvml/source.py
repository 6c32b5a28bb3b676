"""Asks the NVML child for one sweep after the other, and lives on where the child does not.

Runs in the thread that supervision gives it. What can become of a child, and what follows:

    answers       its rows are emitted, one Sweep a class
    refuses       NVML as a whole says no (no driver, another version): the node's row says why, supervision tries again
    misses a      it is judged hung: sent SIGKILL, never waited for, and left behind. The node's row says so, and the
    deadline      next child is started after 10 s, 20 s, ... 10 minutes; where the one left behind cannot even be
                  killed, no other is started, and every 10 minutes it is looked at again
    ends          the node's row says so, and supervision starts another

While an Xid says that the driver is in trouble nothing is asked: of the GPU for 79, of all of them for 119 and 120.
Another call would hang in the driver too, and end as the next child to be left behind.
"""

import contextlib
import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

import gpuguard
from gpuguard.child.process import Child, Ended
from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, DetailValue, LogLine, Parsed, Sweep
from gpuguard.model.ids import NODE, EventId, PciAddress, SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Rate, Value, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.nvml.library import LIBRARY_NOT_FOUND, WORDS, NvmlError
from gpuguard.sources.nvml.protocol import (
    Begin,
    Begun,
    Doing,
    InCall,
    Look,
    Refused,
    Report,
    Request,
    Seen,
    Xid,
    decode_report,
    encode,
)
from gpuguard.sources.nvml.rates import Rates

NAME = "nvml"
RECORDING = "nvml.json"
CHILD = "gpuguard.sources.nvml.child"
RATES: tuple[Rate, ...] = ("fast", "medium", "slow")
HOLDS_GPU = frozenset({79})
HOLDS_NODE = frozenset({119, 120})
RECOVERY_CHANGED = 154
INTERVALS = 3  # a row is good for so many: one sweep may be late, and one be lost
FIRST_WINDOW = 0.2  # seconds between the first two looks; the counters behind GPM are renewed every 100 ms
TELLS_WITHIN = 0.3  # seconds for a stuck child to say where; that thread is not stuck
ENDS_WITHIN = 3.5  # seconds for a child to leave the driver in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often the GPUs are looked at, and how patiently. Units: seconds."""

    fast: Seconds = Seconds(5.0)  # what moves: clocks, temperatures, power, activity
    medium: Seconds = Seconds(30.0)  # what counts: links, ECC, PCIe, fabric, processes
    slow: Seconds = Seconds(600.0)  # what identifies and limits; and whenever that changes
    # A sweep takes milliseconds. A hang is found within fast + fast_deadline, and that is to be less than 10 s.
    fast_deadline: Seconds = Seconds(4.0)
    medium_deadline: Seconds = Seconds(8.0)  # it asks more, and no finding waits for it
    slow_deadline: Seconds = Seconds(8.0)  # the same
    init_deadline: Seconds = Seconds(30.0)  # without persistence mode each GPU is woken up, a second or two for each
    first_wait: Seconds = Seconds(10.0)  # before another child is started after one hung; doubled each time
    longest_wait: Seconds = Seconds(600.0)  # the doubling ends here; an hour without a hang makes it short again
    forgiven_after: Seconds = Seconds(3600.0)  # so long without a hang, and the wait begins anew
    hold_for: Seconds = Seconds(60.0)  # nothing is asked for so long after Xid 79, 119 or 120

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.fast, self.medium, self.slow) < 1.0:
            raise ValueError("fast, medium and slow must be at least 1")
        if min(self.fast_deadline, self.medium_deadline, self.slow_deadline, self.init_deadline) <= 0:
            raise ValueError("deadlines must be above 0")
        if not 0.0 < self.first_wait <= self.longest_wait:
            raise ValueError("first_wait must be above 0 and not above longest_wait")

    def every(self, rate: Rate) -> float:
        """Seconds between two sweeps of this class."""
        return {"fast": self.fast, "medium": self.medium}.get(rate, self.slow)

    def deadline(self, rate: Rate) -> float:
        """Seconds that a sweep of this class may take."""
        return {"fast": self.fast_deadline, "medium": self.medium_deadline}.get(rate, self.slow_deadline)


class Talk(Protocol):
    """A child as the source needs it; `child.process.Child` is one."""

    def send(self, message: bytes) -> None: ...

    def receive(self, timeout: float, *wakes: int) -> bytes | None: ...

    def gone(self) -> bool: ...

    def stop(self, within: float) -> bool: ...

    def abandon(self) -> None: ...


@dataclass(slots=True)
class _Hang:
    """A child hung: when it was asked, for what, which call it was in, how often in a row, and when to try again."""

    asked: float
    judged: float
    call: str
    in_a_row: int
    wait: float

    def words(self) -> str:
        return f"NVML hangs in {self.call}; another child is started {self.wait:.0f} s after; see `dmesg | grep NVRM`"


class _Stopping(Exception):
    """The source was told to stop."""


class _LettingGo(Exception):
    """A GPU is to be reset, which nobody may have open."""


class Nvml:
    """The source. `start` gives a new child; `rest(seconds)` waits, less where it is woken; tests hand in their own."""

    name = NAME

    def __init__(
        self,
        settings: Settings,
        root: Path,
        clock: Clock,
        *,
        start: Callable[[], Talk] | None = None,
        rest: Callable[[float], None] | None = None,
    ) -> None:
        """Starts nothing yet."""
        self._settings, self._root, self._clock = settings, root, clock
        self._start = start or self._start_child
        self._rest = rest or self._rest_awake
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._asked = False
        self._hang: _Hang | None = None  # the newest; it may be over
        self._hanging = False
        self._left: list[Talk] = []
        self._abandoned = 0
        self._failing, self._failure = False, ""
        self._looked_at: set[Rate] = set()  # classes that this child has looked at
        self._known: dict[str, PciAddress] = {}
        self._held: dict[PciAddress, float] = {}
        self._node_held = 0.0
        self._gone_until = 0.0
        self._waits_for_window = False  # some activity was not known at the last look
        self._rates = Rates()
        self._taken = 0
        self._due = 0
        self._dues: dict[Rate, float] = {}  # when the next sweep of each class is due; empty before the first
        self._number = 0
        self._emit: Callable[[Batch], None] = lambda batch: None

    # --- seams -------------------------------------------------------------------------------------------------------

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Every sweep was taken when it was due, until told to stop.

        Raises  Absent where there is no NVML; ReadFailed where it hangs, ended or refuses
        """
        self._emit = emit
        try:
            while True:
                self._wait_out_hang()
                child = self._begin()
                try:
                    self._watch(child)
                except _LettingGo:
                    continue  # the next child waits until the GPUs may be opened again
                finally:
                    self._part_with(child)
        except _Stopping:
            return
        except Ended as error:
            raise self._failed(f"the process that asks NVML ended: {error}") from error
        except msgspec.MsgspecError as error:
            raise self._failed(f"the process that asks NVML does not keep to its protocol: {error}") from error

    def _failed(self, why: str) -> ReadFailed:
        """What to raise, after the node's row said so: supervision knows that this is blind, the node is to know it."""
        self._failing, self._failure = True, why
        self._tell_failure({**self._well(), **self._counts()})
        return ReadFailed(why)

    def _well(self) -> Values:
        """Whether children end or are refused; it is over when one has looked at everything once."""
        return {"nvml_failing": 1, "nvml_failure": self._failure} if self._failing else {"nvml_failing": 0}

    def stop(self) -> None:
        """`run` returns soon: at once while it waits, within a sweep's deadline otherwise."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """The next fast sweep comes at once: what there is to say of a GPU is in it."""
        if question.subject == NODE or question.subject.startswith("gpu:"):
            self._asked = True
            os.eventfd_write(self._wake, 1)

    def let_go(self, seconds: float) -> None:
        """The child ends, and no other has NVML open for so long."""
        self._gone_until = self._clock.now().mono + seconds
        os.eventfd_write(self._wake, 1)

    def overhear(self, line: LogLine) -> None:
        """A log's word that the driver is in trouble holds our calls back."""
        parsed = line.parsed
        if parsed.kind != "xid" or parsed.xid is None or parsed.xid not in HOLDS_GPU | HOLDS_NODE:
            return
        now = self._clock.now()
        age = seconds_between(line.at, now)
        if age is None or age >= self._settings.hold_for:
            return
        self._hold(parsed.xid, parsed.pci, now.mono + self._settings.hold_for - max(0.0, age))

    def _hold(self, xid: int, pci: PciAddress | None, until: float) -> None:
        if xid in HOLDS_NODE or pci is None:
            self._node_held = max(self._node_held, until)
        else:
            self._held[pci] = until  # in place: another thread may set one while this one looks

    # --- children ----------------------------------------------------------------------------------------------------

    def _start_child(self) -> Child:
        arguments = [sys.executable, "-m", CHILD]
        if self._root != Path("/"):
            arguments += ["--root", str(self._root), "--play", str(self._root / RECORDING)]
        environment = dict(os.environ)
        environment["MALLOC_ARENA_MAX"] = "1"  # glibc keeps memory for each thread otherwise
        home = Path(gpuguard.__file__).parents[1]
        if home.name not in ("site-packages", "dist-packages"):  # a checkout: the child is to be of the same
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
        return Child(arguments, environment=environment)

    def _begin(self) -> Talk:
        """A child that has NVML open.

        Raises  Absent, ReadFailed
        """
        if self._root != Path("/") and not (self._root / RECORDING).is_file():
            raise Absent(f"{self._root / RECORDING} does not exist; NVML of this machine was not recorded")
        self._wait_while_held()
        self._looked_at.clear()
        child = self._start()
        try:
            report = self._answer(child, Begin(self._known), self._settings.init_deadline, Begun)
        except (_Stopping, Ended, msgspec.MsgspecError):
            # In order even now: a process that is killed while it opens NVML has wedged GPUs before.
            self._part_with(child)
            raise
        if isinstance(report, Refused):
            self._part_with(child)
            if report.code == LIBRARY_NOT_FOUND:
                self._tell_refused(report.code)
                raise Absent("libnvidia-ml.so.1 is not installed; without NVIDIA's driver there is no GPU to look at")
            self._refused(report)
        return child

    def _part_with(self, child: Talk) -> None:
        """The child ends in order, so that no call is cut short; one that was left behind is past that."""
        if child not in self._left and not child.stop(ENDS_WITHIN):
            self._left.append(child)

    def _tell_refused(self, code: int) -> None:
        self._tell_failure({"nvml_init_error": code, **self._well(), **self._counts()})

    def _refused(self, report: Refused) -> None:
        """Raises ReadFailed, after the node's row said why."""
        why = f"NVML refuses: {NvmlError(report.code)}; see `dmesg | grep NVRM`"
        if report.code not in WORDS:  # those have findings of their own: driver_absent, driver_mismatch
            self._failing, self._failure = True, why
        self._tell_refused(report.code)
        raise ReadFailed(why)

    def _answer(self, child: Talk, request: Request, deadline: float, wanted: type[Report]) -> Report:
        """What the child answers to a request; what it says otherwise meanwhile is taken.

        Raises  ReadFailed when it misses the deadline, and is left behind
        """
        asked = self._clock.now().mono
        child.send(encode(request))
        report = self._next(child, asked + deadline, wanted)
        if report is not None:
            return report
        child.send(encode(Doing()))
        told = self._next(child, self._clock.now().mono + TELLS_WITHIN, wanted, InCall)
        if told is not None and not isinstance(told, InCall):
            return told  # late, but not hung
        call = told.call if isinstance(told, InCall) and told.call else type(request).__name__.lower()
        self._judge_hung(child, asked, call)
        raise ReadFailed(self._hang.words() if self._hang else "")

    def _next(self, child: Talk, ends: float, *wanted: type[Report]) -> Report | None:
        """The next report of a wanted class, or a refusal; None when time is up.

        Raises  _Stopping
        """
        while True:
            left = ends - self._clock.now().mono
            if self._stopping:
                raise _Stopping
            if left <= 0:
                return None
            message = child.receive(left, self._wake)
            if message is None:
                self._drain()
                continue
            report = decode_report(message)
            if isinstance(report, (*wanted, Refused)):
                return report
            if isinstance(report, Xid):
                self._witness(report)

    def _judge_hung(self, child: Talk, asked: float, call: str) -> None:
        child.abandon()
        self._left = [left for left in self._left if not left.gone()]
        self._left.append(child)
        self._abandoned += 1
        now = self._clock.now()
        before = self._hang
        again = before is not None and now.mono - before.judged < self._settings.forgiven_after
        in_a_row = before.in_a_row + 1 if before is not None and again else 1
        wait = min(self._settings.longest_wait, self._settings.first_wait * 2.0 ** min(in_a_row - 1, 30))
        self._hang = _Hang(asked, now.mono, call, in_a_row, wait)
        self._hanging = True
        self._tell_hung()

    def _tell_hung(self) -> None:
        """The node's row says that NVML hangs; good until after the next try, whenever supervision makes it."""
        assert self._hang is not None
        now = self._clock.now()
        row: Values = {
            "nvml_hung": 1, "nvml_hung_for_seconds": round(now.mono - self._hang.asked, 3),
            "nvml_hung_call": self._hang.call, **self._counts(),
        }  # fmt: skip
        self._tell_failure(row)

    def _tell_failure(self, row: Values) -> None:
        settings = self._settings
        good_for = settings.longest_wait + settings.init_deadline + INTERVALS * settings.fast
        event = self._sweep(self._clock.now(), "fast", {NODE: row}, good_for)
        self._emit(Batch(source=NAME, events=(event,), alive=False))

    def _wait_out_hang(self) -> None:
        """It is time to try again after a hang; the node's row says that it still stands.

        Raises  ReadFailed where no child may be started; _Stopping
        """
        hang = self._hang
        if hang is None or not self._hanging:
            return
        settings = self._settings
        wait = hang.wait
        while (now := self._clock.now().mono) < hang.judged + wait:
            self._left = [left for left in self._left if not left.gone()]
            # One that not even SIGKILL ends is stuck in the driver, where the next would be too.
            wait = settings.longest_wait if self._left else hang.wait
            self._pause(min(settings.fast, hang.judged + wait - now))
            self._count_missed(self._clock.now().mono)
            self._tell_hung()
        self._left = [left for left in self._left if not left.gone()]
        if self._left:
            hang.judged = now
            raise ReadFailed(
                f"NVML hangs in {hang.call}, in a process that cannot even be ended; no other is started until it is "
                "gone: reset the GPU, or reboot"
            )

    def _pause(self, seconds: float) -> None:
        if self._stopping:
            raise _Stopping
        self._rest(max(0.0, seconds))
        if self._stopping:
            raise _Stopping

    def _rest_awake(self, seconds: float) -> None:
        if select.select([self._wake], [], [], seconds)[0]:
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody woke us: time is up
            os.eventfd_read(self._wake)

    # --- sweeps ------------------------------------------------------------------------------------------------------

    def _watch(self, child: Talk) -> None:
        """Sweeps are taken when they are due; events of the driver as they come.

        Raises  ReadFailed, Ended, _LettingGo, _Stopping
        """
        began = self._clock.now().mono
        self._count_missed(began)
        dues = self._dues = dict.fromkeys(RATES, began)
        forced = float("-inf")
        first, settled = True, False
        while True:
            for rate in RATES:
                now = self._clock.now().mono
                if now < dues[rate]:
                    continue
                every = self._settings.every(rate)
                intervals = 1 + int((now - dues[rate]) / every)
                dues[rate] += intervals * every
                self._due += intervals
                changed = self._take(child, rate)
                if rate == "fast" and changed and now - forced >= self._settings.medium:
                    forced = now
                    dues["medium"] = dues["slow"] = min(now, dues["medium"], dues["slow"])
            if first and self._waits_for_window:
                # Activity is measured between two looks; who asks now is not to wait for a whole interval.
                dues["fast"] = self._clock.now().mono + FIRST_WINDOW
            elif not settled:
                settled = True
                self._emit(Batch(source=NAME, events=()))
            first = False
            self._idle(child, dues)

    def _count_missed(self, now: float) -> None:
        """Sweeps that were due while nobody asked count as due; none was taken."""
        for rate, due in self._dues.items():
            missed = max(0, int((now - due) / self._settings.every(rate)))
            self._dues[rate] = due + missed * self._settings.every(rate)
            self._due += missed

    def _idle(self, child: Talk, dues: dict[Rate, float]) -> None:
        """It is time for a sweep; what the driver reported meanwhile was told."""
        while True:
            if self._stopping:
                raise _Stopping
            if self._clock.now().mono < self._gone_until:
                raise _LettingGo
            if self._asked:
                self._asked = False
                dues["fast"] = self._clock.now().mono
            left = min(dues.values()) - self._clock.now().mono
            if left <= 0:
                return
            message = child.receive(left, self._wake)
            if message is None:
                self._drain()
            elif isinstance(report := decode_report(message), Xid):
                self._witness(report)
            elif isinstance(report, Refused):
                self._refused(report)

    def _take(self, child: Talk, rate: Rate) -> bool:
        """Whether what there is has changed; the rows were told. While the node is held nothing is asked."""
        now = self._clock.now().mono
        if now < self._node_held:
            self._emit(Batch(source=NAME, events=()))
            return False
        held = tuple(pci for pci, until in list(self._held.items()) if now < until)
        report = self._answer(child, Look(rate, held), self._settings.deadline(rate), Seen)
        if isinstance(report, Refused):
            self._refused(report)
        assert isinstance(report, Seen)
        self._taken += 1
        self._looked_at.add(rate)
        if len(self._looked_at) == len(RATES):
            self._failing = False
        if report.known is not None:
            self._known = report.known
        node = report.rows.setdefault(NODE, {})
        node[f"nvml_{rate}_sweep_seconds"] = round(report.seconds, 6)
        if rate == "fast":
            self._hanging = False
            node["nvml_hung"] = node["nvml_init_error"] = 0
            node.update(self._well())
            node["nvml_call_seconds"] = report.calls
            node.update(self._counts())
            self._waits_for_window = any(
                "sm_active_ratio" in row and row["sm_active_ratio"] is None for row in report.rows.values()
            )
        at = self._clock.now()
        if rate == "fast":
            self._rates.fill(report.rows, at.mono)
        self._sweep_of(at, rate, report.rows)
        return report.changed

    def _wait_while_held(self) -> None:
        """NVML may be opened, which touches every GPU.

        Raises  _Stopping
        """
        while (until := max((self._node_held, self._gone_until, *self._held.values()))) > (
            now := self._clock.now().mono
        ):
            self._emit(Batch(source=NAME, events=()))
            self._pause(min(until - now, self._settings.fast))

    def _counts(self) -> dict[str, Value]:
        return {
            "nvml_children_abandoned_total": self._abandoned,
            "samples_due_total": self._due,
            "samples_taken_total": self._taken,
        }

    def _sweep_of(self, now: Instant, rate: Rate, rows: dict[SubjectId, Values]) -> None:
        self._hand_over(self._sweep(now, rate, rows, INTERVALS * self._settings.every(rate)))

    def _sweep(self, now: Instant, rate: Rate, rows: dict[SubjectId, Values], good_for: float) -> Sweep:
        return Sweep(id=self._id(now, rate), at=now, source=NAME, rate=rate, valid_for=good_for, rows=rows)

    def _witness(self, report: Xid) -> None:
        """The core has a second witness of an Xid."""
        now = self._clock.now()
        detail: dict[str, DetailValue] = {} if report.gpu_instance is None else {"gpu_instance": report.gpu_instance}
        parsed = Parsed(kind="xid", xid=report.xid, pci=report.pci, detail=detail)
        if report.xid in HOLDS_GPU | HOLDS_NODE:
            self._hold(report.xid, report.pci, now.mono + self._settings.hold_for)
        if report.xid == RECOVERY_CHANGED:
            self._asked = True  # the event does not say to what; the next fast sweep does
        raw = f"NVML event: Xid {report.xid}"
        self._hand_over(LogLine(id=self._id(now, "xid"), at=now, source=NAME, parsed=parsed, raw=raw))

    def _hand_over(self, event: AnyEvent) -> None:
        self._emit(Batch(source=NAME, events=(event,)))

    def _id(self, now: Instant, what: str) -> EventId:
        self._number += 1
        return EventId(f"{NAME}:{now.boot[:8]}:{what}:{now.mono:.3f}-{self._number}")


def build(settings: Settings, root: Path, clock: Clock) -> Nvml:
    """The source for the machine under `root`; a recorded one is played."""
    return Nvml(settings, root, clock)
