"""A bar on standard error that tells how far long work is; a line now and then where no terminal shows it."""

import sys
import time
from types import TracebackType
from typing import TextIO

from gpuguard.runtime.words import printable, span

WIDTH = 79  # a terminal's last column would begin a new line
BAR = 24
EVERY = 0.1  # seconds between two pictures on a terminal
EVERY_LINE = 5.0  # and in a log


class Bar:
    """How far the work is. `shown`: always, where a log reads it too; None: only for a person who watches.

    Shape   on a terminal one line that is drawn anew and is gone at the end; elsewhere a line of its own each time
    """

    def __init__(self, label: str, unit: str, *, shown: bool | None = None, stream: TextIO | None = None) -> None:
        self._label = label
        self._unit = unit
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._shown = self._terminal if shown is None else shown
        self._began = self._last = time.monotonic()
        self._drawn = False
        self._ended = False
        self._said = ""

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.make_way()

    def make_way(self) -> None:
        """The line is gone until something is said again: what is printed now stands where it stood."""
        if self._drawn and self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
            self._said = ""

    def show(self, done: int, total: int) -> None:
        """So many of so many are done; drawn unless it was drawn a moment ago."""
        if not self._shown:
            return
        now = time.monotonic()
        ended = done >= total and not self._ended
        if now - self._last < (EVERY if self._terminal else EVERY_LINE) and not ended:
            return
        self._ended = done >= total
        self._last = now
        self._drawn = True
        text = line(self._label, done, total, self._unit, now - self._began)
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """What goes on now, where nobody knows how much is left; said once until it is something else."""
        text = printable(f"{self._label}: {text}")[:WIDTH]
        if not self._shown or text == self._said:
            return
        self._said = text
        self._drawn = True
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()


def line(label: str, done: int, total: int, unit: str, taken: float) -> str:
    """One picture of the bar, in one line of a terminal.

    Units   taken: seconds since the work began, from which follows how long it goes on; nothing is said of that before
            there is something to go by
    """
    share = min(1.0, done / total) if total else 1.0
    bar = "#" * int(share * BAR)
    left = ""
    if 0.02 <= share < 1.0 and taken >= 1.0:
        left = f", {span(max(1.0, taken * (1.0 - share) / share))} left"
    elif share >= 1.0:
        left = f", {span(max(1.0, taken))}"
    return f"{label} [{bar:.<{BAR}}] {100 * share:3.0f} %  {done:,} of {total:,} {unit}{left}"[:WIDTH]
