"""One node at one target, with its real actuator over a target in memory: what the contract and the model put to it.

A world can put the node into any state that its target can express, counts what was asked and written, lets any single
call fail before or after it took effect, and lets anybody act in between. Its clock stands still unless somebody waits.
To add a target: a subclass with what is abstract in World, and what the actuator's calls become.
"""

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar
from unittest.mock import patch

from gpuguard.custody.ownership import CONDITIONS, HOLDERS, Condition, Holder
from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import Action, Outcome, Verb
from gpuguard.model.ids import TokenId
from gpuguard.ports import Actuator

NODE = "here"
OURS, SIBLING = TokenId("7f3a"), TokenId("0b0b")
# By holder; None: no drain stands.
REASONS: Mapping[Holder, str | None] = {
    "nobody": None,
    "ours": f"gpuguard:{OURS} gpu3 lost xid95",
    "sibling": f"gpuguard:{SIBLING} gpu3 lost xid95",
    "foreign": "bob: power supply",
    "unexplained": "",
}
How = Literal["error", "hang", "garbled", "killed"]
HOWS: tuple[How, ...] = ("error", "hang", "garbled", "killed")
State = tuple[Condition, Holder]
T = TypeVar("T")


class Time:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_750_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class Failure:
    """A call fails, before it took effect or after. `killed`: the actuator's process ends in that moment."""

    how: How
    before: bool


class Killed(BaseException):
    """The end of the actuator's process: nothing may catch it."""


class World(ABC):
    """One node at one target."""

    name: ClassVar[str]
    # Where the actuator asks what time it is.
    modules: ClassVar[tuple[types.ModuleType, ...]]
    # Whether a write fails when somebody was faster; else a moment between reading and writing is left.
    compare_and_set: ClassVar[bool]
    states: ClassVar[frozenset[State]] = frozenset((c, h) for c in CONDITIONS for h in HOLDERS)
    # What it performs beside the four verbs about the drain, while our drain stands.
    remedies: ClassVar[tuple[Verb, ...]] = ()
    deadline: ClassVar[float] = 5.0

    def __init__(self) -> None:
        self.time = Time()
        self.calls = 0
        self.writes: list[str] = []
        # Reasons that were not gpuguard's and that a write of the actuator took away.
        self.trampled: list[str] = []
        self.failing: dict[int, Failure] = {}
        self.meanwhile: dict[int, Callable[[], None]] = {}
        self.away: Failure | None = None
        self.actuator = self.start()

    # What each target has in its own way

    @abstractmethod
    def start(self) -> Actuator:
        """The actuator's process as it is after a start."""

    @abstractmethod
    def be(self, condition: Condition) -> None:
        """This goes on with the node, whatever holds it."""

    @abstractmethod
    def standing(self) -> str | None:
        """The reason of the drain that stands, '' for none given; None where none stands."""

    def beside(self) -> object:
        """What the actuator says at the target besides, to compare: it comes to the same end too."""
        return None

    @abstractmethod
    def drain(self, reason: str) -> None:
        """An administrator drains the node, or writes another reason over what stands."""

    @abstractmethod
    def lift(self) -> None:
        """An administrator puts the node back into service, whoever holds it."""

    @abstractmethod
    def settle(self) -> None:
        """Nothing but a drain is left of what goes on with the node."""

    @abstractmethod
    def reboot(self, boot: str) -> None:
        """The node came back in another boot."""

    def pass_time(self, seconds: float) -> None:
        """What the target does by itself meanwhile is done."""
        self.time.now += seconds

    @abstractmethod
    def fail(self, how: How, until: float) -> object:
        """What a call comes to that fails in this way, by `until` at the latest."""

    # What all have in common

    def put(self, condition: Condition, holder: Holder) -> None:
        """The node is in this state, as others left it."""
        if (reason := REASONS[holder]) is not None:
            self.drain(reason)
        self.be(condition)

    def perform(self, action: Action) -> Outcome:
        """What the agent learns of it; the deadline was kept."""
        started = self.time.now
        try:
            with ExitStack() as stack:
                for module in self.modules:
                    stack.enter_context(patch.object(module, "time", self.time))
                outcome = self.actuator.perform(action)
        except Killed:
            self.actuator = self.start()
            return Outcome(result="deferred", message="the actuator hung up", retry_after=10.0)
        assert self.time.now <= started + self.deadline + 0.2, "it took longer than it may"
        return outcome

    def count_anew(self) -> None:
        """From here on calls are numbered from 0."""
        self.calls, self.writes = 0, []

    def call(self, until: float, do: Callable[[], T]) -> T:
        """One call of the actuator to its target, with all that was planned for it."""
        number, self.calls = self.calls, self.calls + 1
        assert number < 100, "it asks without end"
        self.time.now += 0.01
        if (act := self.meanwhile.get(number)) is not None:
            act()
        failure = self.failing.get(number) or self.away
        if failure is None:
            return do()
        if not failure.before:
            do()
        if failure.how == "killed":
            raise Killed
        if failure.how == "hang":
            self.time.now = max(self.time.now, until)
        return self.fail(failure.how, until)  # type: ignore[return-value]  # what the target's transport returns

    def wrote(self, what: str, before: str | None) -> None:
        """The target took a write over what stood `before`."""
        self.writes.append(what)
        if before is not None and parse_reason(before) is None and self.standing() != before:
            self.trampled.append(before)
