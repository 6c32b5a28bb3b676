"""Keeps the course of what is measured: a minute in memory, then on disk.

A minute that was not written yet is lost with the agent; that is the price of one write a minute instead of one a
sweep. While the disk refuses, the newest minutes are kept and older ones are let go, counted.
"""

import math
from collections import deque
from collections.abc import Callable, Collection

from gpuguard.errors import StoreFailed
from gpuguard.model.events import Sweep
from gpuguard.model.ids import SubjectId, kind_of
from gpuguard.model.samples import Stretch
from gpuguard.ports import Store

MINUTE = 60.0
# Stretches that wait for the disk, of all GPUs together: some ten minutes of eight.
WAITING = 96
# No sweep comes so often that a minute has more of one GPU; a source gone mad must not fill the memory.
PER_MINUTE = 600


class Course:
    """Takes sweeps in, and hands whole minutes to the store. `whose` names a GPU for good: its UUID where known;
    `told` is called with the reason whenever the store refuses, and with '' when it takes them again."""

    def __init__(
        self,
        store: Store,
        kept: Collection[str],
        whose: Callable[[SubjectId], str],
        told: Callable[[str], None] = lambda failure: None,
    ) -> None:
        self._store, self._kept, self._whose, self._told = store, frozenset(kept), whose, told
        self._minute: float | None = None
        self._open: dict[str, list[tuple[float, dict[str, float]]]] = {}
        self._waiting: deque[Stretch] = deque()
        self.lost = 0  # minutes of a GPU that could not be written
        self.failure = ""

    def take(self, sweep: Sweep) -> None:
        """What is kept of the sweep is remembered; a minute that is over by it is written."""
        utc = sweep.at.utc
        if utc is None:
            return
        minute = utc // MINUTE * MINUTE
        if minute != self._minute:
            self.end_minute()
            self._minute = minute
        for subject, values in sweep.rows.items():
            if kind_of(subject) != "gpu":
                continue
            told = {
                name: float(value)
                for name in self._kept & values.keys()
                if isinstance(value := values[name], int | float)
            }
            samples = self._open.setdefault(self._whose(subject), []) if told else []
            if told and len(samples) < PER_MINUTE:
                samples.append((utc, told))

    def end_minute(self) -> None:
        """What was taken in is with the store, or waits for it."""
        for gpu, samples in self._open.items():
            names = sorted({name for _, told in samples for name in told})
            columns = {name: tuple(told.get(name, math.nan) for _, told in samples) for name in names}
            # From its first sample on, since an agent that was started again within the minute adds its own part.
            start = samples[0][0]
            offsets = tuple(utc - start for utc, _ in samples)
            self._waiting.append(Stretch(gpu=gpu, grain="full", start=start, offsets=offsets, columns=columns))
        self._open.clear()
        if not self._waiting:
            return
        try:
            self._store.keep_samples(tuple(self._waiting))
        except StoreFailed as error:
            self._fails(str(error))
            while len(self._waiting) > WAITING:
                self._waiting.popleft()
                self.lost += 1
            return
        self._fails("")
        self._waiting.clear()

    def _fails(self, failure: str) -> None:
        """Why nothing can be written, '' while it can; that is told each time, and once that it can again."""
        before, self.failure = self.failure, failure
        if failure or before:
            self._told(failure)
