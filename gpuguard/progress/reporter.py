"""What one process tells of itself, from the loop's own calls; no thread, and nothing that could stop the loop.

The newest state stands in a page of memory; a call writes it there. Datagrams announce the page, say what the page
does not hold, and are repeated every REPEAT seconds, so that an agent that is started later learns of it. Where there
is no page, datagrams alone carry the state, one each SPACING seconds at most.

Nothing here raises into the program that calls it. A wrong argument, such as a step that is no number, is told once on
the log `gpuguard.progress` and counts as a word of life. A process that was forked off, such as a data loader, is
silent: it closes what it inherited, writes to nobody's page and reports only after `init` of its own.

Calls from several threads are harmless: at worst one call's state stands until the next.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import math
import mmap
import operator
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import SupportsFloat, SupportsIndex

from .place import Place, find
from .preemption import Preemption
from .transport import Mail, SharedPage, shared_page
from .wire import (
    CHECKPOINT,
    FLAG_DONE,
    FLAG_LOSS,
    NONE,
    PAGE,
    PAGE_MAGIC,
    PARTS,
    PREEMPT_READY,
    PREEMPT_SAVED,
    PREEMPT_TOLD,
    PREEMPT_UNKNOWN,
    START,
    STEP,
    encode,
    phase_bytes,
)

REPEAT = 10.0  # seconds; as long may an agent that was started anew not know of a rank that gets on
SPACING = 0.1  # seconds between two datagrams: the limit where there is no page, and for phases that change quickly
PATIENCE = (0.1, 10.0)  # seconds until it is tried again after nobody took one; doubled each time

_BASE_START, _BASE_STEP, _CHECKPOINT = phase_bytes(START), phase_bytes(STEP), phase_bytes(CHECKPOINT)
_pack_into = PAGE.pack_into


class Phase:
    """`with` it, the process is in that phase; afterwards in the one around it, whatever happened inside."""

    __slots__ = ("_reporter", "began", "label")

    def __init__(self, reporter: Reporter, label: bytes) -> None:
        self._reporter = reporter
        self.label = label
        self.began = 0.0

    def __enter__(self) -> Phase:
        self._reporter.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reporter.leave(self)


class Reporter:
    """One process's word. `gpuguard.progress` has one for the process; programs that are several ranks make more."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        page: Callable[[], SharedPage | None] = shared_page,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._make_page = page
        self._mistakes: set[str] = set()
        self._lock = threading.Lock()
        self._guard: Preemption | None = None
        self._preempt = PREEMPT_UNKNOWN
        # Microseconds since boot: an image that was exec'ed into this pid goes on above what the one before it said,
        # and whoever reads JSON numbers as doubles still reads them exactly.
        self._numbers = itertools.count(time.monotonic_ns() // 1000)
        self._page: SharedPage | None = None
        self._mail = Mail("")
        self._clear()
        _all.add(self)

    def _clear(self) -> None:
        self._place: Place | None = None
        self._same: dict[str, object] = {}
        self._memory: mmap.mmap | None = None
        self._silent = False
        self._step, self._saved = NONE, NONE
        self._at = self._since = self._clock()
        self._saved_at = 0.0
        self._loss = math.nan
        self._loss_step = self._flat = 0
        self._flags = 0
        self._base = self._label = _BASE_START
        self._spells: list[Phase] = []
        self._usual_holds: str | None = None
        self._holds: str | None = None
        self._blocked: float | None = None
        self._took: float | None = None
        self._told_at = NONE
        self._due = self._free = -math.inf
        self._failures = 0
        self.heard = False  # whether the newest datagram was taken

    def init(
        self,
        job: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        restart: int | None = None,
        holds: str | Iterable[str] | None = None,
        socket: str | None = None,
    ) -> None:
        """From here on it reports as this rank; what is not given is found in the environment.

        Needed only for that, and in a forked process that is a rank of its own. `holds` is what every checkpoint
        holds, of "model optimizer loader seeds"; an empty `socket` reports to nobody.
        """
        try:
            self.close()
            self._clear()
            self._usual_holds = self._holds = _parts(holds)
            for given in (job, socket):
                if given is not None and not isinstance(given, str):
                    raise TypeError(f"{given!r:.40} is no text")
            self._begin(job, _count(rank), _count(world), _count(restart), socket)
            self._write(self._clock())
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("init", error)
            self.alive()

    def step(self, n: SupportsIndex, loss: SupportsFloat | None = None) -> None:
        """Step `n` is complete. Call it at the end of each; the first ends the phase "start".

        A loss that is on a GPU is waited for: give it every hundredth step or so.
        """
        try:
            number = operator.index(n)
            if not NONE < number < -NONE:
                raise ValueError(f"step {number} is beyond 64 bits")
            self._step = number
            if loss is not None:
                value = float(loss)
                # Infinity is no more of a loss than NaN is; both less themselves are not 0. No NaN is equal to another.
                value = value if value - value == 0.0 else math.nan
                # One that is none again is flat as well: so what came once can be told from what stays so.
                again = value == self._loss or (
                    math.isnan(value) and math.isnan(self._loss) and self._flags & FLAG_LOSS
                )
                if not again:
                    self._loss_step = number
                self._loss, self._flat = value, max(0, number - self._loss_step)
                self._flags |= FLAG_LOSS
            now = self._at = self._clock()
            if self._base is _BASE_START:
                self._started(now)
            self._write(now)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("step", error)
            self.alive()
        if self._guard is not None:
            self._guard.at_step_end(self._step)

    def alive(self) -> None:
        """It gets on, within a step or a phase that takes long."""
        try:
            now = self._at = self._clock()
            self._write(now)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("alive", error)

    def phase(self, name: str) -> Phase:
        """A block that is no ordinary step: "checkpoint", "evaluation", "compile", or a word of your own."""
        try:
            if not isinstance(name, str) or not name:
                raise TypeError(f"a phase is named by a word, not {name!r:.40}")
            label = phase_bytes(name if name.isprintable() else "".join(c if c.isprintable() else "_" for c in name))
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("phase", error)
            label = b"unnamed"
        return Phase(self, label)

    def saved(self, step: SupportsIndex, holds: str | Iterable[str] | None = None) -> None:
        """A checkpoint of `step` is complete: written, and fit to go on from.

        Within or after `phase("checkpoint")` it also tells how long that phase held up the loop. `holds` is what is in
        it, where that differs from what `init` was told.
        """
        try:
            number = operator.index(step)
            if not NONE < number < -NONE:
                raise ValueError(f"step {number} is beyond 64 bits")
            parts = _parts(holds)
            now = self._at = self._saved_at = self._clock()
            self._saved = number
            self._holds = self._usual_holds if parts is None else parts
            around = next((spell for spell in reversed(self._spells) if spell.label == _CHECKPOINT), None)
            self._blocked = self._took if around is None else now - around.began
            self._took = None
            if self._preempt == PREEMPT_TOLD and number >= self._told_at:
                self._preempt = PREEMPT_SAVED
            self._write(now, told=self._failures == 0)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("saved", error)

    def done(self) -> None:
        """The work is complete, as it was meant to be. Nothing else says so: an end without it is suspicious."""
        try:
            now = self._at = self._clock()
            self._flags |= FLAG_DONE
            self._write(now, told=True)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("done", error)

    def on_preempt(
        self,
        save: Callable[[int], object] | None = None,
        barrier: Callable[[], object] | None = None,
        *,
        agree: Callable[[bool], bool] | None = None,
        every: int = 1,
        signals: Iterable[int] = (signal.SIGTERM,),
        exit_code: int = 0,
        chain: bool = True,
    ) -> Preemption:
        """From here on SIGTERM does not kill; the loop finishes its step, saves and ends. See `Preemption`.

        With `save`, the next `step` calls `save(step)`, reports it, calls `barrier()` and raises SystemExit. `agree`
        has all ranks decide together, at each step that `every` divides. With `chain` a handler that was there before
        is called as well.
        """
        guard = Preemption(
            self, save=save, barrier=barrier, agree=agree, every=every if isinstance(every, int) and every > 0 else 1,
            exit_code=exit_code, chain=chain,
        )  # fmt: skip
        try:
            for given in (save, barrier, agree):
                if given is not None and not callable(given):
                    raise TypeError(f"on_preempt was given {given!r:.40}, which cannot be called")
            if self._guard is not None:
                self._guard.restore()
            guard.arm(signals)
            self._guard = guard
            if self._preempt == PREEMPT_UNKNOWN:
                self._preempt = PREEMPT_READY
            self._write(self._clock(), told=True)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("on_preempt", error)
        return guard

    def told_to_end(self) -> None:
        """It is reported that this process was told to end. Being told is no progress."""
        try:
            if self._preempt < PREEMPT_TOLD:
                self._preempt = PREEMPT_TOLD
                self._told_at = self._step
                self._write(self._clock(), told=True)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("on_preempt", error)

    def stood_down(self) -> None:
        """From here on it would no longer save when told to end."""
        try:
            self._guard = None
            if self._preempt == PREEMPT_READY:
                self._preempt = PREEMPT_UNKNOWN
                self._write(self._clock(), told=True)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("on_preempt", error)

    @property
    def awaited(self) -> frozenset[int]:
        """The signals that it was asked to obey."""
        return frozenset() if self._guard is None else self._guard.signals

    @property
    def obeyed(self) -> bool:
        """Whether it saved since it was told to end."""
        return self._preempt == PREEMPT_SAVED

    def close(self) -> None:
        """Nothing is open any more. What the agent was given stays with it; nothing is said."""
        page, self._page, self._memory = self._page, None, None
        if page is not None:
            page.close()
        self._mail.close()

    def enter(self, spell: Phase) -> None:
        """That phase begins."""
        try:
            spell.began = self._clock()
            self._spells.append(spell)
            self._turn(spell.began, spell.label)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("phase", error)

    def leave(self, spell: Phase) -> None:
        """That phase is over; the one around it goes on."""
        try:
            now = self._clock()
            if spell in self._spells:
                self._spells.remove(spell)
            if spell.label == _CHECKPOINT:
                took = now - spell.began
                if self._saved_at >= spell.began:  # told of from within, before it was over
                    self._blocked = took
                else:
                    self._took = took
            self._turn(now, self._spells[-1].label if self._spells else self._base)
        except Exception as error:  # noqa: BLE001 - somebody else's program goes on
            self._mistaken("phase", error)

    def _turn(self, now: float, label: bytes) -> None:
        self._label = label
        self._since = self._at = now
        self._due = min(self._due, self._free)
        self._write(now)

    def _started(self, now: float) -> None:
        """The first step is complete: what goes on beneath all phases is now stepping."""
        self._base = _BASE_STEP
        if not self._spells:
            self._label, self._since = _BASE_STEP, now
            self._due = min(self._due, self._free)

    def _write(self, now: float, told: bool = False) -> None:
        """The state stands in the page; a datagram goes out where one is due, or this must be told at once."""
        if self._memory is not None:
            _pack_into(
                self._memory, 0, PAGE_MAGIC, next(self._numbers), self._at, self._step, self._label, self._since,
                self._loss, self._saved, self._saved_at, self._flags, self._preempt,
                self._flat,
            )  # fmt: skip
        if now >= self._due or told:
            self._tell(now)

    def _tell(self, now: float) -> None:
        if self._silent:
            return
        self._due = now + REPEAT  # also where something below fails: it would do so at each call
        if self._place is None:
            self._begin()
            if self._place is not None:
                self._write(now, told=True)  # the page must be written before anybody is given it
            return
        if self._page is not None and not self._page.stands():
            self._renew(now)
        fd = None if self._page is None else self._page.fd
        self.heard = self._mail.send(encode(self._message()), fd)
        if self.heard:
            self._failures = 0
            self._free = now + SPACING
            self._due = now + (SPACING if fd is None else REPEAT)
        else:
            first, most = PATIENCE
            self._due = self._free = now + min(first * 2**self._failures, most)
            self._failures = min(self._failures + 1, 16)

    def _renew(self, now: float) -> None:
        """Somebody closed the page's descriptor under us: the state stands in another one from now on."""
        if self._page is not None:
            self._page.close()
        self._page = self._make_page()
        self._memory = None if self._page is None else self._page.memory
        self._due = now + REPEAT
        self._write(now)

    def _begin(
        self,
        job: str | None = None,
        rank: int | None = None,
        world: int | None = None,
        restart: int | None = None,
        socket: str | None = None,
    ) -> None:
        # Whoever finds it taken has another thread do it, or is a signal handler in the midst of it.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._place is None:
                place = find(self._environ, job=job, rank=rank, world=world, restart=restart, socket=socket)
                self._same = place.told()
                encode(self._same)  # what was given can be written at all
                self._mail = Mail(place.socket)
                self._page = self._make_page() if place.socket else None
                self._memory = None if self._page is None else self._page.memory
                self._place = place
        finally:
            self._lock.release()

    def _message(self) -> dict[str, object]:
        return {
            **self._same,
            "n": next(self._numbers),
            "step": None if self._step == NONE else self._step,
            "phase": self._label.decode(),
            "since": _shortly(self._since),
            "at": _shortly(self._at),
            "saved": None if self._saved == NONE else self._saved,
            "saved_at": None if self._saved == NONE else _shortly(self._saved_at),
            "blocked": None if self._blocked is None else round(self._blocked, 3),
            "holds": self._holds,
            "loss": self._loss if self._flags & FLAG_LOSS else None,
            "flat": self._flat if self._flags & FLAG_LOSS else None,
            "done": True if self._flags & FLAG_DONE else None,
            "preempt": self._preempt or None,
        }

    def _mistaken(self, where: str, error: Exception) -> None:
        """A mistake in calling this, or of ours, is told once for each place."""
        if where in self._mistakes:
            return
        self._mistakes.add(where)
        with contextlib.suppress(Exception):  # a program may have handlers of its own making
            import logging

            logging.getLogger("gpuguard.progress").warning("%s: %s: %s", where, type(error).__name__, error)

    def hush(self) -> None:
        """In a process that was forked off from one that reports: nothing of it reaches the agent, or our page."""
        self._lock = threading.Lock()
        if self._guard is not None:
            # A pool ends its processes by SIGTERM and waits for them: ours would not go.
            self._guard.restore()
            self._guard = None
        if self._place is None:
            self._at = self._since = self._clock()  # it cannot have got on before it was there
            return
        self.close()
        self._silent = True
        self._due = self._free = math.inf
        self._preempt = PREEMPT_UNKNOWN


def _count(given: SupportsIndex | None) -> int | None:
    if given is None:
        return None
    number = operator.index(given)
    if not 0 <= number < 2**24:
        raise ValueError(f"{number} counts no ranks and no starts")
    return number


def _shortly(at: float) -> float:
    """To the millisecond, and never later: what is to be believed beside it is the page, which says it exactly."""
    return math.floor(at * 1000) / 1000


def _parts(holds: str | Iterable[str] | None) -> str | None:
    """What a checkpoint holds, in the wire's words and order.

    Raises  ValueError for another word
    """
    if holds is None:
        return None
    words = set(holds.replace(",", " ").split() if isinstance(holds, str) else holds)
    if not words <= set(PARTS):
        raise ValueError(f"a checkpoint holds of {' '.join(PARTS)}, not {' '.join(map(str, words - set(PARTS)))[:80]}")
    return " ".join(part for part in PARTS if part in words)


_all: weakref.WeakSet[Reporter] = weakref.WeakSet()
_masks = threading.local()  # of the thread that forks


def _hold_signals() -> None:
    """Until a child has its own handlers, what is sent to it waits: Python forgets what it took down before."""
    numbers = {number for reporter in list(_all) for number in reporter.awaited}
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None


def _let_signals() -> None:
    if getattr(_masks, "before", None) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _hush_all() -> None:
    for reporter in list(_all):
        reporter.hush()
    _let_signals()


def _close_all() -> None:
    for reporter in list(_all):
        reporter.close()


os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_hush_all)
atexit.register(_close_all)
