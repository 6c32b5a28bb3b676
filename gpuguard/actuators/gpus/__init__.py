"""Tests and resets GPUs of this machine, while our drain stands on its node and nobody uses them.

Theory. Both take longer than a request may, so they are errands: the first asking begins one and is put off, asking
again with the same key looks how far it is, and its outcome is kept for whoever asks next. There is one at a time.
After this process was started anew nothing is known of an errand before; the wish begins again, and all that must be
so is looked at again: a reset that still runs has the GPU open and is waited for, and a second reset of a GPU that
nobody uses does no harm.

Nothing of the wish is believed but which GPU it means: whether the drain stands is asked of the scheduler, and whether
the GPU is used, of the kernel. While a test runs, each asking looks at the drain too: if somebody lifted it, the test
is broken off, for jobs may come. A reset never is.

Source  nvidia-smi(1); DCGM's user guide, section DCGM Diagnostics
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gpuguard.actuators.gpus.devices import Device, devices
from gpuguard.actuators.gpus.diagnosis import Plan, diagnose, glance
from gpuguard.actuators.gpus.errand import WAITING, Errand, Steps
from gpuguard.actuators.gpus.levels import Levels
from gpuguard.actuators.gpus.reset import reset
from gpuguard.actuators.gpus.smi import Smi, found
from gpuguard.child.program import Unanswered
from gpuguard.custody.remedies import Standing
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred, ActionRefused, NotUnderstood
from gpuguard.model.actions import LET_GO, Action, Outcome
from gpuguard.model.ids import NODE, TokenId, parse_pci_address, pci_of
from gpuguard.model.units import Seconds
from gpuguard.ports import NodeReport

NAME: Final = "gpus"
# Whether the drain of this token stands now, and nothing is left on the node.
Stands = Callable[[TokenId], Standing]
# A quick end is told at once; the rest is asked after.
SOON: Final = 0.5
LOOK_AGAIN: Final = 5.0
KEPT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be done to GPUs, and with which programs; empty texts mean: in the usual places.

    All limits are for one run of a program. Which level of DCGM's diagnostic a GPU gets stands in
    rules/ladder/diagnostics.toml.
    """

    # Whether a GPU that nobody uses may be reset while our drain stands. `reset_gpus` in [policy] wishes it: both are
    # needed.
    reset: bool = False
    test: bool = True  # whether GPUs may be tested while our drain stands; `test_gpus` in [policy] wishes it
    nvidia_smi: str = ""  # the program, where it is in none of the usual folders
    dcgm: Literal["auto", "required", "off"] = "auto"  # DCGM's diagnostic: where it is installed, always, or never
    dcgmi: str = ""  # the program, where it is in none of the usual folders
    level: int = 0  # of DCGM's diagnostic, 1 to 4; 0 takes the table's
    site_tests: tuple[
        str, ...
    ] = ()  # programs of the site's own, which only root can change: 0 passed, 1 found a fault
    ask_limit: Seconds = Seconds(30.0)  # for a question to nvidia-smi; it may have to wake eight GPUs
    reset_limit: Seconds = Seconds(180.0)  # for a reset, which takes seconds for one GPU and a minute for a fabric
    site_limit: Seconds = Seconds(900.0)  # for one of the site's tests

    def __post_init__(self) -> None:
        for name in ("nvidia_smi", "dcgmi"):
            path = getattr(self, name)
            if path and not (path.startswith("/") and os.access(path, os.X_OK)):
                raise ValueError(f"{name}: must be the absolute path of a program that can be run")
        if any(not path.startswith("/") for path in self.site_tests):
            raise ValueError("site_tests: must be absolute paths")
        if not 0 <= self.level <= 4:
            raise ValueError("level: must lie between 0 and 4")
        for name in ("ask_limit", "reset_limit", "site_limit"):
            if not 0.1 <= getattr(self, name) <= 86400.0:
                raise ValueError(f"{name}: must lie between 0.1 seconds and a day")


class Gpus:
    """The hands on this machine's GPUs. `proc` is where the driver and the processes are told of."""

    name = NAME

    def __init__(
        self, settings: Settings, stands: Stands, levels: Levels | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._settings, self._stands, self._proc = settings, stands, proc
        self._plan = Plan(
            dcgm=settings.dcgm, dcgmi=settings.dcgmi, level=settings.level, site_tests=settings.site_tests,
            site_limit=settings.site_limit, levels=levels or Levels(),
        )  # fmt: skip
        self._errand: Errand | None = None
        self._outcomes: dict[str, Outcome] = {}

    def perform(self, action: Action) -> Outcome:
        """The GPU is tested or reset, or will be, or the outcome says who acts next. Safe to send twice."""
        try:
            return self._perform(action)
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except ActionRefused as no:
            return Outcome(result="refused", message=str(no))

    def read_state(self) -> NodeReport:
        """Says that nothing is known: GPUs have no scheduler's state."""
        return NodeReport(target=self.name, node="", error="no scheduler is asked about GPUs")

    def busy(self) -> bool:
        """Whether an errand is at work; the process must not end meanwhile."""
        return self._errand is not None and not self._errand.ended(0.0)

    def stop(self, within: float | None = None) -> None:
        """The errand is told to end and has ended, or `within` seconds passed: by default as many as a reset that has
        begun may take, with persistence mode put back behind it."""
        if self._errand is not None:
            self._errand.stop()
            limit = self._settings.reset_limit + self._settings.ask_limit
            self._errand.ended(limit if within is None else within)

    def _perform(self, action: Action) -> Outcome:
        targets = self._asked(action)
        self._gather()
        if (known := self._outcomes.get(action.key)) is not None:
            return known
        if action.drain is None and action.verb != "test":
            raise ActionRefused(
                f"it is not told which drain must stand for a {action.verb}; this is a bug, please report it"
            )
        # A test without a drain is a glance: the driver is asked, and nothing else is done.
        now = (
            self._stands(action.drain)
            if action.drain is not None
            else Standing(call="go", why="only the driver is asked")
        )
        if (errand := self._errand) is not None:
            return self._under_way(errand, action, now)
        if now.call != "go":
            result: Literal["foreign", "deferred"] = "foreign" if now.call == "never" else "deferred"
            message = f"{now.why}; no {action.verb} was begun"
            return Outcome(result=result, message=message, retry_after=now.retry_after, node_state=now.state)
        every = list(devices(self._proc).values())
        chosen = every if targets is None else [device for device in every if device.pci == targets]
        if not chosen:
            raise ActionRefused(
                f"the driver lists no GPU at {targets}; nothing was done; reboot the node, and if it is missing still, "
                "see to the machine"
            )
        self._errand = Errand(action.key, action.verb, action.subject, self._work(action, every, chosen))
        if self._errand.ended(SOON):
            outcome = self._errand.outcome()
            self._gather()
            return outcome
        return _goes_on(action, f"the {action.verb} of {action.subject} has begun")

    def _asked(self, action: Action) -> str | None:
        """The address of the one GPU that is meant, None for all.

        Raises  ActionRefused for a wish that is none of ours, or that the site has not switched on
        """
        if action.verb not in ("test", "reset"):
            raise ActionRefused(f"{action.verb} is no wish about a GPU; this is a bug, please report it")
        if parse_reason(action.reason) != action.token:
            raise ActionRefused(
                f"the reason {action.reason[:80]!r} does not carry the token {action.token}; nothing was done; "
                "this is a bug, please report it"
            )
        switched_on = self._settings.reset if action.verb == "reset" else self._settings.test
        if not switched_on:
            raise ActionRefused(
                f"this site lets gpuguard {action.verb} no GPU; set `{action.verb} = true` in [actuators.gpus]"
            )
        if action.subject == NODE:
            return None
        address = pci_of(action.subject) or ""
        try:
            meant = parse_pci_address(address)
        except NotUnderstood as error:
            raise ActionRefused(f"{action.subject[:60]!r} is no GPU; this is a bug, please report it") from error
        if action.subject != f"gpu:{meant}":
            raise ActionRefused(f"{action.subject[:60]!r} is no GPU; this is a bug, please report it")
        return meant

    def _under_way(self, errand: Errand, action: Action, now: Standing) -> Outcome:
        told = f"the {errand.verb} of {errand.what} is under way for {errand.seconds:.0f} s"
        if errand.key != action.key:
            message = f"{told}; one thing at a time"
            return Outcome(result="deferred", message=message, retry_after=LOOK_AGAIN, node_state=WAITING)
        if now.call == "never" and errand.verb == "test":
            errand.stop()
            return Outcome(result="foreign", message=f"{now.why}; the test was broken off", node_state=now.state)
        return _goes_on(action, told)

    def _gather(self) -> None:
        """The outcome of an errand that has ended is kept for who asks; one that was only put off may begin again."""
        if self._errand is None or not self._errand.ended(0.0):
            return
        outcome = self._errand.outcome()
        if outcome.result != "deferred":
            self._outcomes[self._errand.key] = outcome
            while len(self._outcomes) > KEPT:
                del self._outcomes[next(iter(self._outcomes))]
        self._errand.close()
        self._errand = None

    def _work(self, action: Action, every: list[Device], chosen: list[Device]) -> Callable[[Steps], Outcome]:
        def work(steps: Steps) -> Outcome:
            smi = Smi(found(self._settings.nvidia_smi), steps, self._settings.ask_limit)
            try:
                if action.verb == "reset":
                    return reset(smi, self._proc, every, chosen, self._settings.reset_limit)
                if action.drain is None:
                    return glance(smi, chosen)
                return diagnose(steps, smi, self._proc, chosen, self._plan)
            except Unanswered as error:
                raise ActionDeferred(
                    f"the {action.verb} of {action.subject} broke off: {error}", error.next_in
                ) from error

        return work


def _goes_on(action: Action, told: str) -> Outcome:
    """It is at work: a state word of its own tells this from a target that does not answer."""
    word = LET_GO if action.verb == "reset" else "under_way"
    return Outcome(result="deferred", message=told, retry_after=LOOK_AGAIN, node_state=word)


def build(settings: Settings) -> Gpus:
    """The hands on GPUs; as nobody is there who can say that a drain stands, they do nothing."""
    return Gpus(
        settings, lambda drain: Standing(call="wait", why="nobody can say whether our drain stands", retry_after=60.0)
    )
