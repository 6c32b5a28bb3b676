"""Who performs: the scheduler that the site chose, with the fleet's budget before its drains, and what is beside it.

Only the chosen target is loaded: what another one needs (TLS, a parser) costs memory that a node has better uses for.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from gpuguard.actuators import TARGETS, dry_run, gpus, processes
from gpuguard.actuators.gpus.levels import RULES, read_levels
from gpuguard.custody.budget import Limits
from gpuguard.custody.remedies import standing
from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.actions import Action, Outcome, Verb
from gpuguard.ports import Actuator, NodeReport
from gpuguard.runtime import actuator_settings, guard
from gpuguard.runtime.assets import read_text
from gpuguard.runtime.config import Config, load_config

# The one whose jobs leave processes behind that can be told from others'.
SLURM = "slurm"


class Hands:
    """A scheduler's actuator, and beside it those that do for some verbs what no scheduler does."""

    def __init__(self, scheduler: Actuator, beside: Mapping[Verb, Actuator], long: gpus.Gpus | None = None) -> None:
        """`long` is the one whose work may outlast a request."""
        self.name = scheduler.name
        self._scheduler, self._beside, self._long = scheduler, beside, long

    def perform(self, action: Action) -> Outcome:
        """What came of it, done by the one whose affair it is."""
        return self._beside.get(action.verb, self._scheduler).perform(action)

    def read_state(self) -> NodeReport:
        """What the scheduler says of this node."""
        return self._scheduler.read_state()

    def busy(self) -> bool:
        """Whether something is at work that was begun by a request and goes on after it."""
        return self._long is not None and self._long.busy()

    def stop(self) -> None:
        """What is at work is told to end, and has ended."""
        if self._long is not None:
            self._long.stop()


def load(path: Path | None) -> Config:
    """What the configuration says to a process that performs; other sections belong to the agent.

    Raises  ConfigInvalid with every mistake, also where the target itself is one
    """
    try:
        settings = load_config(path, {"actuator": actuator_settings.Settings}, whole=False).settings("actuator")
    except ConfigInvalid:
        return load_config(path, sections(*TARGETS), whole=False)
    return load_config(path, sections(settings.target), whole=False)


def sections(*targets: str) -> dict[str, type]:
    """The `Settings` of every part that performs for these targets, by the section of the configuration."""
    return {
        "actuator": actuator_settings.Settings,
        **{f"actuators.{target}": _module(target).Settings for target in targets},
        "actuators.processes": processes.Settings,
        "actuators.gpus": gpus.Settings,
        "fleet": guard.Settings,
        "fleet.budget": Limits,
    }


def chosen(config: Config) -> str:
    """The target that the site chose."""
    return str(config.settings("actuator").target)


def straight(config: Config) -> Actuator:
    """The scheduler's actuator alone, with nothing asked before it: for whoever only looks.

    Raises  ConfigInvalid
    """
    name = chosen(config)
    actuator: Actuator = _module(name).build(config.settings(f"actuators.{name}"))
    return actuator


def guarded(config: Config) -> Actuator:
    """The scheduler's actuator, with the fleet's budget before its drains.

    Raises  ConfigInvalid
    """
    return _guarded(straight(config), config)


def hands(config: Config) -> Hands:
    """The scheduler's actuator with all that stands beside it; a dry run has nothing beside it.

    Raises  ConfigInvalid
    """
    scheduler = straight(config)
    if isinstance(scheduler, dry_run.DryRun):
        return Hands(scheduler, {})
    left_over = None
    if chosen(config) == SLURM:
        left_over = processes.LeftOver(config.settings("actuators.processes"), _runs_here(scheduler))
    return hands_of(_guarded(scheduler, config), left_over, config.settings("actuators.gpus"))


def hands_of(scheduler: Actuator, left_over: Actuator | None, gpu_settings: gpus.Settings) -> Hands:
    """A scheduler's actuator, and those that are made beside it.

    Raises  ConfigInvalid
    """
    try:
        levels = read_levels(read_text(*RULES.split("/")))
    except Absent as error:
        raise ConfigInvalid((str(error),)) from error
    cards = gpus.Gpus(gpu_settings, lambda drain: standing(scheduler.read_state(), drain), levels)
    beside: dict[Verb, Actuator] = {"test": cards, "reset": cards}
    if left_over is not None:
        beside["reclaim"] = left_over
    return Hands(scheduler, beside, cards)


def _guarded(scheduler: Actuator, config: Config) -> Actuator:
    if isinstance(scheduler, dry_run.DryRun):
        return scheduler
    return guard.guarded(scheduler, config.settings("fleet"), config.settings("fleet.budget"))


def _runs_here(scheduler: Actuator) -> processes.RunsHere:
    from gpuguard.actuators.slurm import Slurm

    if not isinstance(scheduler, Slurm):
        raise ConfigInvalid(("[actuator] target: only slurm has jobs whose processes can be told",))
    return scheduler.runs_here


def _module(target: str) -> ModuleType:
    """The target's module; its name is one of the shelf's, which the settings saw to."""
    return importlib.import_module(f"gpuguard.actuators.{target}")
