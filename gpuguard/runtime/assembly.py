"""Puts the parts together: configuration, detectors, memory and sources, the same for every process.

One engine for the daemon, for `check` without a daemon, for `replay` and for a person's word while no daemon runs: the
same lines lead to the same verdict everywhere.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from gpuguard.custody import budget
from gpuguard.errors import ConfigInvalid, InvariantBroken
from gpuguard.health import policy
from gpuguard.health.state import Health, restore
from gpuguard.jobs import activity, derive, tasks, verdict
from gpuguard.model.events import Booted, Cursor
from gpuguard.model.ids import BootId, EventId
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import JOB_QUANTITIES
from gpuguard.model.quantities import GPU_QUANTITIES
from gpuguard.model.readings import Quantity
from gpuguard.model.units import Seconds
from gpuguard.ports import AnyDetector, Clock, Source, StoreReader
from gpuguard.runtime import actuator_settings, guard, loop, nvrx_settings, plugins, supervise, telling_settings
from gpuguard.runtime.assets import asset, read_text
from gpuguard.runtime.config import Config, load_config
from gpuguard.store import retention

STATE_DIR = Path("/var/lib/gpuguard")
LISTEN = "127.0.0.1:9818"
DATABASE = "gpuguard.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The daemon itself; `[agent]` in the configuration."""

    state_dir: str = str(STATE_DIR)  # where the memory, the snapshot and the agent's sockets are
    listen: str = LISTEN  # HOST:PORT of /metrics; an empty text serves none
    compat: Literal["", "dcgm"] = ""  # "dcgm" also serves /metrics/dcgm, in the names and units of dcgm-exporter
    # What is read. kmsg is the one the node cannot do without; the journal stands in while it is blind.
    sources: tuple[str, ...] = (
        "kmsg", "journal", "pci_config", "nvml", "machine", "dcgm", "pcie", "infiniband", "driver_stack",
        "process_states", "edac", "disk", "topology", "heartbeats", "watchers", "tasks", "slurm",
        "flight_recorder",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # lines below this are not logged
    # How long a start or a single pass waits for sources to have read what was there.
    settle: Seconds = Seconds(10.0)


class RulesFolder:
    """The tables of one detector, and those that all share, from the rules that ship with gpuguard."""

    def __init__(self, detector: str) -> None:
        self._detector = detector

    def text(self, name: str) -> str:
        """The text of one table.

        Raises  Absent when it was not installed
        """
        return read_text("rules", "detectors", self._detector, name)

    def texts(self, folder: str) -> dict[str, str]:
        """The text of every table in a folder of rules/, by its name without `.toml`.

        Raises  Absent when it was not installed
        """
        files = sorted(asset("rules", folder).glob("*.toml"))
        return {file.stem: read_text("rules", folder, file.name) for file in files}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that configuration decides."""

    config: Config
    agent: Settings
    policy: policy.Settings
    loop: loop.Settings
    detectors: tuple[AnyDetector, ...]
    source_modules: Mapping[str, ModuleType]


def sections() -> dict[str, type]:
    """The `Settings` of every part, by the section of the configuration that fills it."""
    return {
        "agent": Settings,
        "policy": policy.Settings,
        "loop": loop.Settings,
        "supervise": supervise.Settings,
        "store": retention.Settings,
        "actuator": actuator_settings.Settings,
        "nvrx": nvrx_settings.Settings,
        "notify": telling_settings.Settings,
        "fleet": guard.Settings,
        "fleet.budget": budget.Limits,
        "jobs": derive.Settings,
        "jobs.verdict": verdict.Settings,
        "jobs.activity": activity.Settings,
        "jobs.tasks": tasks.Settings,
        **plugins.sections("notify", plugins.shelf("gpuguard.notices")),
        **plugins.sections("compat", plugins.shelf("gpuguard.compat")),
        **plugins.sections("detectors", plugins.shelf("gpuguard.detectors")),
        **plugins.sections("sources", plugins.shelf("gpuguard.sources")),
        **plugins.sections("actuators", plugins.shelf("gpuguard.actuators")),
    }


def assemble(path: Path | None = None, *, with_sources: bool = True) -> Parts:
    """The parts as the configuration at `path` wants them.

    Raises  ConfigInvalid with every mistake
    """
    detector_modules = plugins.shelf("gpuguard.detectors")
    source_modules = plugins.shelf("gpuguard.sources")
    config = load_config(path, sections())
    agent: Settings = config.settings("agent")
    missing = [name for name in agent.sources if name not in source_modules]
    if missing and with_sources:
        known = ", ".join(source_modules)
        raise ConfigInvalid([f"[agent] sources: no source {name!r}; there are {known}" for name in missing])
    return Parts(
        config=config, agent=agent, policy=config.settings("policy"), loop=config.settings("loop"),
        detectors=(
            derive.build(
                config.settings("jobs"), config.settings("jobs.verdict"), config.settings("jobs.activity"),
                config.settings("jobs.tasks"),
                RulesFolder("jobs"),
            ),
            *(
                module.build(config.settings(f"detectors.{name}"), RulesFolder(name))
                for name, module in detector_modules.items()
            ),
        ),
        source_modules=source_modules,
    )  # fmt: skip


def build_sources(parts: Parts, root: Path, clock: Clock) -> dict[str, Source]:
    """The sources that the site wants, by name; none of them runs yet."""
    return {name: _build_source(parts, name, root, clock) for name in parts.agent.sources}


def _build_source(parts: Parts, name: str, root: Path, clock: Clock) -> Source:
    """One source; one that asks for them gets the tables of rules/ or the agent's own folder as well."""
    build = parts.source_modules[name].build
    offered = {"rules": RulesFolder(name), "state_dir": Path(parts.agent.state_dir)}
    asked = {what: offered[what] for what in offered.keys() & inspect.signature(build).parameters.keys()}
    source: Source = build(parts.config.settings(f"sources.{name}"), root, clock, **asked)
    return source


def quantities(modules: Mapping[str, ModuleType]) -> dict[str, Quantity]:
    """Everything that can be measured, by column: the GPU's, the jobs', and what each source declares beside its code.

    Raises  InvariantBroken when two sources mean different things by one column
    """
    known = {quantity.name: quantity for quantity in (*GPU_QUANTITIES, *JOB_QUANTITIES)}
    for name, module in modules.items():
        for quantity in getattr(module, "QUANTITIES", ()):
            if known.setdefault(quantity.name, quantity) != quantity:
                raise InvariantBroken(f"sources.{name} declares {quantity.name} otherwise than another source does")
    return known


def remember(reader: StoreReader | None, parts: Parts, clock: Clock) -> tuple[Health, Booted, dict[str, Cursor]]:
    """The memory on disk, the event that says in which boot it goes on, and how far each source had read.

    Raises  msgspec.ValidationError when a part of the memory does not decode
    """
    now = clock.now()
    state = reader.load_state() if reader is not None else {}
    health = restore(state, parts.detectors, now)
    previous = health.boot if state else None
    return health, booted(now, previous), reader.cursors() if reader is not None else {}


def booted(now: Instant, previous: BootId | None) -> Booted:
    """The event that every run begins with."""
    return Booted(id=EventId(f"start:{now.boot[:8]}:{now.mono:.3f}"), at=now, previous=previous)


def under(parts: Parts, changed: policy.Settings) -> Parts:
    """The parts under another policy."""
    return dataclasses.replace(parts, policy=changed)
