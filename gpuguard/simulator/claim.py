"""What a claim is, what it is given, and what it finds: the shape of each file on the shelf `claims/`.

A claim is measured first and judged after, and the two do not know each other: `measure` runs the scenario and writes
down what came out, `judge` holds that against what was claimed. So a scenario cannot be bent until it holds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.simulator.trace import Trace

Measured = Mapping[str, Any]  # Any: figures, and tables of them, as JSON has them
Made = TypeVar("Made")


class Dice(Protocol):
    """Chance, from outside; `random.Random` is one. `seed` makes each claim's throws its own, whichever ran before."""

    def seed(self, a: str, /) -> None: ...

    def getrandbits(self, k: int, /) -> int: ...

    def random(self) -> float: ...

    def expovariate(self, lambd: float, /) -> float: ...

    def lognormvariate(self, mu: float, sigma: float, /) -> float: ...

    def randrange(self, start: int, /) -> int: ...


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A job trace, read, and nodes for its jobs."""

    trace: Trace
    nodes: tuple[NodeJoined, ...]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim may use.

    Shape   traces: those that are there. say: is told in a few words what goes on. made: what several claims need, by
            name, made once for all of them
    """

    traces: Mapping[str, Recorded]
    dice: Dice
    say: Callable[[str], None] = lambda _: None
    made: dict[str, Any] = {}  # Any: each name has its own type, which `once` knows

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, the first time; then the same again."""
        if name not in self.made:
            self.made[name] = make()
        found: Made = self.made[name]
        return found


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What came out, and what had to be assumed for it."""

    measured: Measured
    assumptions: tuple[str, ...]


class Row(msgspec.Struct, frozen=True):
    """One part of a claim beside what was measured; both as people read them."""

    what: str
    claimed: str
    measured: str
    holds: bool


class Claim(Protocol):
    """A file of the shelf. CLAIMED: the figures of the claim. NEEDS: names of traces without which it says nothing."""

    ID: str
    CLAIM: str
    CLAIMED: str
    NEEDS: tuple[str, ...]

    def measure(self, given: Given, /) -> Finding: ...

    def judge(self, measured: Measured, /) -> Sequence[Row]: ...


def ratio(above: float | None, below: float | None, digits: int = 2) -> float | None:
    """One over the other; None where there is nothing to divide or to divide by."""
    return None if above is None or not below else round(above / below, digits)


def at_least(value: float | None, least: float) -> bool:
    """There is a value, and it reaches the least."""
    return value is not None and value >= least


def shown(value: float | None, unit: str = "", digits: int = 1) -> str:
    """A figure for people; - where nothing was measured."""
    return "-" if value is None else f"{value:,.{digits}f}{unit}"
