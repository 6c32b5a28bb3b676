"""The loop of a source that measures everything in one go, again and again."""

import threading
from collections.abc import Callable

from gpuguard.model.actions import Question
from gpuguard.model.events import Batch, Cursor, Sweep
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values
from gpuguard.ports import Clock

Rows = dict[SubjectId, Values]

# Supervision wants a sign of life at least once a minute.
SIGN_OF_LIFE = 50.0
# What was measured holds until two sweeps in a row have failed to come.
SWEEPS_VALID = 3.0


class Rounds:
    """A source made of one function that measures.

    `read` gives the rows of one sweep at the given moment; it ends within a few seconds whatever hangs, and raises
    Absent or ReadFailed as `ports.Source` tells. Rows without a subject are no event.
    """

    def __init__(
        self, name: str, read: Callable[[Instant], Rows], clock: Clock, *, every: float, rate: Rate = "medium",
        rest: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        """Reads nothing yet. `rest` tells after each sweep how long to wait for the next, where that is not `every`."""
        self._rest = rest
        self.name = name
        self.read, self._clock, self.every, self.rate = read, clock, every, rate
        self._stopping = threading.Event()

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """A sweep was emitted at once and then in every interval, until told to stop.

        Raises  what `read` raises
        """
        caught_up = False
        while not self._stopping.is_set():
            now = self._clock.now()
            rows = self.read(now)
            emit(Batch(source=self.name, events=(self._sweep(now, rows),) if rows else ()))
            if rows and not caught_up:
                emit(Batch(source=self.name, events=()))
            caught_up = True
            self._rest_until(now.mono + (self.every if self._rest is None else self._rest()), emit)

    def _rest_until(self, due: float, emit: Callable[[Batch], None]) -> None:
        while (left := due - self._clock.now().mono) > 0:
            if self._stopping.wait(min(left, SIGN_OF_LIFE)):
                return
            if left > SIGN_OF_LIFE:
                emit(Batch(source=self.name, events=()))

    def _sweep(self, now: Instant, rows: Rows) -> Sweep:
        return Sweep(
            id=EventId(f"{self.name}/{self.rate}:{now.boot[:8]}:{now.mono:.3f}"), at=now, source=self.name,
            rate=self.rate, valid_for=SWEEPS_VALID * self.every, rows=rows,
        )  # fmt: skip

    def stop(self) -> None:
        """`run` returns as soon as a read in progress has ended."""
        self._stopping.set()

    def ask(self, question: Question) -> None:
        """It is no witness of single faults; its next sweep says what it can."""
