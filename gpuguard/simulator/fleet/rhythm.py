"""When a node looks at itself, and which of these looks may be skipped.

Theory. An agent ticks every 30 s and sweeps as often as every 5 s: 30,000 node-days are 500 million looks, of which
nearly all find what the one before them found. Skipping those changes nothing:

1. A sweep that reads what the last one read moves no detector's memory. `Held` remembers since when something is so,
   and a look that finds it still so changes nothing; a `Counter` whose value is the last one changes nothing either.
   All it can do is let a hold run out (`hold`, at most 300 s) or a window pass (`within`, 6 h or a day).
2. A tick acts on what stands, on what is owed and on what returns, and on nothing else; each of these has a moment at
   which time alone would change it, and what of it a tick finds hangs on that tick's own time, not on those before it.
3. So it is enough to look (a) at every beat while something is restless: for longer than the longest hold after
   anything measured changed, around the end of each window, and while a node shows that it is well; (b) at the beats
   at which something falls due; and (c) once, at the last beat of each kind before anything else happens, so that
   what happens finds the node as the looks in between would have left it.

The beats are the same whether or not those in between are skipped, which `whole` runs all of: a test holds both to the
same decisions at the same instants.

Units   seconds
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# In the order in which those of one instant are taken.
KINDS: Final = ("slow", "medium", "fast", "infiniband", "edac", "tick")
# The longest hold of a check is 300 s; one look more must see that it is over.
HOLDS = 330.0
# The windows of counters: link flaps, memory errors. At their end a look must see that the growth is old.
WINDOWS = (21600.0, 86400.0)
AROUND = 130.0
# While nothing is wrong one look of each kind is enough to know it.
BRIEFLY = 35.0
# Beats are computed, not counted up: a moment this close to one is it.
ALMOST = 1e-7

# When looks count again, and of which kinds.
Window = tuple[float, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often the agent does each, as its settings are.

    Shape   after: of each kind the first, after the start
    """

    fast: float = 5.0
    medium: float = 30.0
    slow: float = 600.0
    infiniband: float = 30.0
    edac: float = 60.0
    tick: float = 30.0
    after: float = 1.0

    def every(self, kind: str) -> float:
        """Between two of one kind."""
        value: float = getattr(self, kind)
        return value


class Rhythm:
    """The beats of one run of the agent. `whole` skips none; `windows` are those of the run before, which end all the
    same."""

    def __init__(self, pace: Pace, began: float, *, whole: bool, windows: Sequence[Window] = ()) -> None:
        self._every = {kind: pace.every(kind) for kind in KINDS}
        self._first = began + pace.after
        self._told = dict.fromkeys(KINDS, -1)
        self._restless = dict.fromkeys(KINDS, float("inf") if whole else began)
        self.windows: list[Window] = list(windows)

    def disturb(self, now: float, lasts: float, kinds: Sequence[str] = KINDS) -> None:
        """Every beat of these kinds counts from now on for so long."""
        for kind in kinds:
            self._restless[kind] = max(self._restless[kind], now + lasts)

    def measured(self, now: float, kinds: Sequence[str] = KINDS) -> None:
        """Something that these kinds measure changed: their beats count until no hold can run, and around the end of
        each window."""
        self.disturb(now, HOLDS, kinds)
        self.windows += [(now + window - AROUND, kinds) for window in WINDOWS]
        self.windows.sort(key=lambda window: window[0])

    def missed(self, now: float) -> Iterator[tuple[float, str]]:
        """The last beat of each kind until now that was not taken; each counts as taken from then on."""
        due = []
        for place, (kind, every) in enumerate(self._every.items()):
            number = math.floor((now - self._first) / every + ALMOST)
            if number > self._told[kind]:
                self._told[kind] = number
                due.append((self._first + number * every, place, kind))
        due.sort()
        for at, _, kind in due:
            yield at, kind

    def next(self, now: float, due: float | None) -> float | None:
        """The next beat that counts, when something falls due at `due`; None while nothing does."""
        while self.windows and self.windows[0][0] <= now:
            began, kinds = self.windows.pop(0)
            self.disturb(began, 2 * AROUND, kinds)
        waits = [self._after(now, kind) for kind in KINDS if self._restless[kind] > now]
        if self.windows:
            waits.append(self.windows[0][0])
        if due is not None:
            waits.append(max(self._tick_at(due), self._after(now, "tick")))
        return min(waits, default=None)

    def _after(self, now: float, kind: str) -> float:
        """The first beat after now."""
        every = self._every[kind]
        return self._first + (math.floor((now - self._first) / every + ALMOST) + 1) * every

    def _tick_at(self, due: float) -> float:
        """The first tick that is not before this moment."""
        every = self._every["tick"]
        return self._first + math.ceil((due - self._first) / every - ALMOST) * every
