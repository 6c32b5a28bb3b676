"""Stands between a scheduler and every drain that no person asked for: the fleet's budget is asked first.

Theory. The node decides alone that its GPU is unfit, and cannot see that a thousand others decide the same. So a drain
by gpuguard is entered into the fleet's book before it is written, under a key that makes the second sending harmless:

1. The node is looked at first. What the table of custody would not write is not asked for, and takes no room.
2. The book says no: the drain is `held`. Nothing is written, and nothing is tried again by itself; a person decides.
3. The book gives no answer: the drain is `deferred`. It is never written without an answer. Where it cannot come before
   a person has done something, as where a right is missing, the drain is `refused`, and says what.
4. The book says yes: the target writes. What it did not write after all is withdrawn, as well as can be.
5. A release, a word about a drain that stands, and a drain that a person wants never wait for the book. It is told
   afterwards as well as can be; what it was not told, it learns from the scheduler within a minute (custody/budget).
6. A drain of which its target once told that it stands (`Action.known`), and that stands still, is settled: nothing is
   asked about it and nobody steps back from it. If it stands no longer, as after a reboot, it is asked for like a new
   one.

A process that ends between two steps leaves an entry: sent again, the same key finds it and gets the same answer; or
the drain stands already, which the first look finds; or nobody sends it again, and the entry ends by itself, as the
scheduler does not show it.

To add a ledger, add a row to `LEDGERS`, and its target to `AUTO` where it is to be that target's choice.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from gpuguard import __version__
from gpuguard.custody.budget import GPUGUARD, Answer, Ask, Limits
from gpuguard.custody.ownership import judge, unwritten
from gpuguard.errors import ConfigInvalid, NotUnderstood, ReadFailed, ReadRefused
from gpuguard.model.actions import DRY_TARGET, Action, Outcome
from gpuguard.model.units import Seconds
from gpuguard.ports import Actuator, Bookkeeper, FleetReport, Ledger, NodeReport, Overseer, Rehearser
from gpuguard.runtime.fleet_book import FleetBook, OrRecords, Recorded, Shared
from gpuguard.store.ledger import DirectoryLedger

# When a book that gave no answer is asked again; spread, as it may be that all nodes ask. Units: seconds
ASK_AGAIN: Final = (5.0, 15.0)

# When one that may not be asked is tried again: a right may come. Units: seconds
RIGHTS_AGAIN: Final = 20.0

Kind = Literal["auto", "directory", "lease", "scheduler", "records", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the fleet keeps the book of its drains."""

    # "directory": files that all nodes share; "lease": an object of Kubernetes; "scheduler": the bundled scheduler;
    # "records": the scheduler's own list of drained nodes; "none": a machine alone, nothing is asked. "auto" takes the
    # directory where one is named, else what the target brings.
    ledger: Kind = "auto"
    directory: str = ""  # shared by all nodes, for root alone to write to, with a file `gpuguard-fleet` in it
    deadline: Seconds = Seconds(2.0)  # for all that is asked of the book before a drain, and as much after it

    def __post_init__(self) -> None:
        if self.directory and not self.directory.startswith("/"):
            raise ValueError("directory: must be an absolute path")
        if self.ledger == "directory" and not self.directory:
            raise ValueError('directory: must be named where ledger is "directory"')
        if self.directory and self.ledger not in ("auto", "directory"):
            raise ValueError(f'directory: is not used where ledger is "{self.ledger}"; leave one of the two out')
        if not 0.1 <= self.deadline <= 30.0:
            raise ValueError("deadline: must lie between 0.1 and 30 seconds")


@runtime_checkable
class Target(Actuator, Overseer, Protocol):
    """A scheduler's actuator that can say how the whole fleet stands."""


class Maker(msgspec.Struct, frozen=True):
    """How a ledger is made, and for which targets there is one; for all where none is named."""

    make: Callable[[Settings, Target], Ledger]
    targets: tuple[str, ...] = ()


def _directory(settings: Settings, target: Target) -> Ledger:
    return DirectoryLedger(settings.directory)


def _brought(settings: Settings, target: Target) -> Ledger:
    if not isinstance(target, Bookkeeper):
        raise ConfigInvalid((f"[fleet] ledger: {target.name} keeps no book for a fleet; name a directory",))
    return target.ledger()


LEDGERS: Final[Mapping[str, Maker]] = {
    "directory": Maker(_directory),
    "lease": Maker(_brought, ("kubernetes",)),
    "scheduler": Maker(_brought, ("bundled",)),
}
# What a target brings where the site names nothing.
AUTO: Final[Mapping[str, Kind]] = {
    "bundled": "scheduler", "dry_run": "none", "kubernetes": "lease", "slurm": "records",
}  # fmt: skip


class Guarded:
    """A target whose drains are asked for first."""

    def __init__(self, target: Target, book: FleetBook, *, version: str = __version__) -> None:
        self.name = target.name
        self._target, self._book, self._version = target, book, version
        self._node = ""

    def perform(self, action: Action) -> Outcome:
        """What came of it; `held` where the fleet's budget forbids it."""
        if action.verb == "drain":
            return self._drain(action) if action.by == GPUGUARD else self._wanted(action)
        outcome = self._target.perform(action)
        if action.verb == "release" and outcome.result in ("done", "foreign") and self._book.tells:
            return self._told(outcome, lambda: self._book.give_back(self._name(), action.token))
        return outcome

    def read_state(self) -> NodeReport:
        """What the scheduler says of this node."""
        report = self._target.read_state()
        self._node = report.node or self._node
        return report

    def rehearse(self, action: Action) -> Outcome:
        """What the target makes of a drain that is only told; the fleet's budget has nothing to do with it."""
        if isinstance(self._target, Rehearser):
            return self._target.rehearse(action)
        return Outcome(result="done", message="observe-only: nothing was written", node_state=DRY_TARGET)

    def read_fleet(self) -> FleetReport:
        """What the scheduler says of the whole fleet."""
        return self._target.read_fleet()

    def _drain(self, action: Action) -> Outcome:
        report = self.read_state()
        if report.refused:
            return Outcome(result="refused", message=report.error or "the scheduler knows no such node")
        judgement = judge(report, "drain", action.token)
        ask = self._ask(action, report.node)
        if judgement.call == "done":
            stands = self._target.perform(action)
            # A scheduler dates the text of a drain: who rewords it makes an old one look new.
            return stands if action.known else self._confirmed(action, ask, stands, again=True)
        # A node that is silent for a moment is looked at again by the target itself.
        if judgement.call != "write" and judgement.condition != "silent":
            return unwritten(judgement, report)
        try:
            answer = self._book.enter(ask)
        except ReadRefused as error:
            message = f"nothing was written, as the fleet's budget may not be asked: {error}"
            return Outcome(result="deferred", message=message, retry_after=RIGHTS_AGAIN, node_state=report.state)
        except (ReadFailed, NotUnderstood) as error:
            message = f"nothing was written, as the fleet's budget could not be asked: {error}"
            return Outcome(
                result="deferred", message=message, retry_after=random.uniform(*ASK_AGAIN), node_state=report.state
            )
        if not answer.granted:
            return _held(answer, report.state)
        outcome = self._target.perform(action)
        if outcome.result == "done":
            return self._confirmed(action, ask, outcome, again=False)
        if self._book.tells and self._stands_not(outcome, action):
            return self._told(outcome, lambda: self._book.withdraw(ask.key))
        return outcome

    def _confirmed(self, action: Action, ask: Ask, outcome: Outcome, *, again: bool) -> Outcome:
        """The outcome where the drain may stand; otherwise it was lifted again, or is to be."""
        if outcome.result != "done":
            return outcome
        try:
            answer = self._book.confirm(ask, again=again)
        except (ReadFailed, NotUnderstood) as error:
            message = f"it is drained, and the fleet's budget could not be asked again: {error}"
            return Outcome(
                result="deferred", message=message, retry_after=random.uniform(*ASK_AGAIN),
                node_state=outcome.node_state,
            )  # fmt: skip
        if answer is None or answer.granted:
            return outcome
        back = self._target.perform(msgspec.structs.replace(action, verb="release", key=f"{action.key}:back"))
        if back.result in ("done", "foreign"):
            return _held(answer, outcome.node_state)
        message = f"it is drained beyond the fleet's budget, and to be lifted again: {back.message}"
        return Outcome(result="deferred", message=message, retry_after=5.0, node_state=outcome.node_state)

    def _wanted(self, action: Action) -> Outcome:
        """A person's drain, which the book is told of."""
        outcome = self._target.perform(action)
        if outcome.result != "done" or not self._book.tells:
            return outcome
        return self._told(outcome, lambda: self._entered(self._ask(action, self._name())))

    def _entered(self, ask: Ask) -> None:
        self._book.enter(ask)

    def _told(self, outcome: Outcome, tell: Callable[[], None]) -> Outcome:
        """The outcome, whether or not the book heard of it."""
        try:
            tell()
        except (ReadFailed, NotUnderstood) as error:
            message = f"{outcome.message}; the fleet's book was not told and mends itself within minutes ({error})"
            return msgspec.structs.replace(outcome, message=message)
        return outcome

    def _stands_not(self, outcome: Outcome, action: Action) -> bool:
        """Whether it is certain that nothing of ours stands: a write that was put off may have been made."""
        if outcome.result != "deferred":
            return True
        report = self.read_state()
        return report.error is None and report.ours != action.token

    def _ask(self, action: Action, node: str) -> Ask:
        return Ask(
            node=node, key=f"{node}/{action.key}", token=action.token, code=action.code, by=action.by,
            version=self._version,
        )  # fmt: skip

    def _name(self) -> str:
        """What the scheduler calls this node.

        Raises  ReadFailed
        """
        if not self._node and (report := self.read_state()).error is not None and not report.node:
            raise ReadFailed(report.error)
        return self._node


def guarded(target: Actuator, settings: Settings, limits: Limits) -> Actuator:
    """The target with the fleet's budget before it, as the site has it.

    Raises  ConfigInvalid where the site wants a ledger that this target has not
    """
    kind: Kind | None = settings.ledger
    if kind == "auto":
        kind = "directory" if settings.directory else AUTO.get(target.name)
    if kind is None:
        # No drain without a word about the fleet, for want of a row above.
        raise ConfigInvalid((f"[fleet] ledger: {target.name} brings none; name one",))
    if kind == "none":
        return target
    maker = LEDGERS.get(kind)
    fits = kind == "records" or (maker is not None and (not maker.targets or target.name in maker.targets))
    if not fits or not isinstance(target, Target):
        raise ConfigInvalid(
            (f'[fleet] ledger: "{kind}" is none that {target.name} has; leave it out to have the usual one',)
        )
    if maker is None:
        return Guarded(target, Recorded(target, limits))
    shared = Shared(maker.make(settings, target), target, limits, settings.deadline, __version__)
    if settings.ledger == "auto" and kind == "lease":
        # Nobody asked for a Lease: an account without the right to one is no reason for no drain.
        return Guarded(target, OrRecords(shared, Recorded(target, limits)))
    return Guarded(target, shared)


def _held(answer: Answer, state: str | None) -> Outcome:
    return Outcome(result="held", message=f"not drained: {answer.text}", node_state=state)
