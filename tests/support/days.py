"""Days in the life of a recorded machine, on a clock that nobody waits for: every sweep that the agent would take goes
through every detector and the core.

The player answers NVML's questions, the host's sources read the machine's files, and the core decides as in the agent.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from gpuguard.errors import Absent
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import AnyEvent, Booted, Sweep, Tick
from gpuguard.model.ids import NODE, EventId, SubjectId
from gpuguard.model.readings import Rate, Values
from gpuguard.ports import Onlooker
from gpuguard.runtime import plugins
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.nvml import Settings as NvmlSettings
from gpuguard.sources.nvml.played import Player, load
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sweeping.rounds import Rounds
from tests.support.core import ACTING, detectors

Rows = dict[SubjectId, Values]
HEALTHY = ("a100x8", "h100x8", "b200x8", "l40sx4", "h100x8-mig")
# Not the disk: it is that of whoever runs this.
HOST_SOURCES = ("machine", "topology", "pcie", "infiniband", "driver_stack", "process_states", "edac", "tasks")
TICK = 60.0
# The files of a recorded machine stand still: they are read anew this often, and told at every sweep that is due.
REREAD = 3600.0


@dataclass(slots=True)
class Due:
    """One kind of sweep and when it comes next. Units: seconds."""

    source: str
    rate: Rate
    every: float
    read: Callable[[], Rows]
    next: float = 0.0
    onlook: Callable[[Sweep], None] = lambda sweep: None


@dataclass(slots=True)
class Outcome:
    """What was found, in words; `sweeps` were taken, by source and class; `columns` were told or concluded."""

    found: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    sweeps: Counter[str] = field(default_factory=Counter)
    columns: set[str] = field(default_factory=set)
    health: Health | None = None


def live(root: Path, hours: float, *, fast_every: float = 0.0) -> Outcome:
    """The machine was watched for so many hours. `fast_every` makes fast sweeps rarer than the agent's settings; it
    should be no multiple of the recording's passes, or what moves in it would seem to stand still."""
    clock = ManualClock()
    began = clock.now().mono
    outcome = Outcome()
    health = Health(now=clock.now())
    number = 0

    def tell(event: AnyEvent) -> None:
        nonlocal health
        health, decision = decide(health, event, detectors(), ACTING)
        outcome.failed.update(decision.failed)
        hours_in = (event.at.mono - began) / 3600
        outcome.found += [
            f"after {hours_in:.2f} h: {entry.kind} {entry.subject}: {entry.text}"
            for entry in decision.story
            if entry.kind not in QUIET
        ]

    tell(Booted(id=EventId("start"), at=clock.now(), previous=None))
    dues = _dues(root, clock, fast_every)
    dues.append(Due("", "slow", TICK, dict, began + TICK))
    while True:
        due = min(dues, key=lambda one: one.next)
        if due.next > began + hours * 3600:
            break
        now = clock.advance(max(0.0, due.next - clock.now().mono))
        due.next = max(due.next, began) + due.every
        number += 1
        if not due.source:
            tell(Tick(id=EventId(f"tick:{number}"), at=now))
            continue
        outcome.sweeps[f"{due.source}/{due.rate}"] += 1
        rows = due.read()
        sweep = Sweep(
            id=EventId(f"{due.source}/{due.rate}:{number}"), at=now, source=due.source, rate=due.rate,
            valid_for=3 * due.every, rows=rows,
        )  # fmt: skip
        tell(sweep)
        for other in dues:
            other.onlook(sweep)
        outcome.columns.update(*rows.values())
    outcome.columns.update(*(group.values for groups in health.readings.values() for group in groups.values()))
    outcome.health = health
    return outcome


# What the core writes that is no finding.
QUIET = frozenset({"started", "booted"})


def _dues(root: Path, clock: ManualClock, fast_every: float) -> list[Due]:
    player = Player(load(root / "nvml.json"), lambda: clock.now().mono)
    player.open()
    reader, settings = Reader(player, root), NvmlSettings()

    def nvml(rate: Rate) -> Callable[[], Rows]:
        def read() -> Rows:
            rows = reader.sweep(rate)
            if rate == "fast":
                rows[NODE]["nvml_hung"] = 0
            return rows

        return read

    dues = [
        Due("nvml", "fast", fast_every or settings.fast, nvml("fast")),
        Due("nvml", "medium", fast_every or settings.medium, nvml("medium")),
        Due("nvml", "slow", settings.slow, nvml("slow")),
    ]
    modules = plugins.shelf("gpuguard.sources")
    for name in HOST_SOURCES:
        if (due := _host(name, modules[name], root, clock)) is not None:
            dues.append(due)
    return dues


def seen_all(rows: Rows) -> bool:
    """Whether a source that looks closer at what others name has been shown something."""
    return any(name != NODE for name in rows)


def _host(name: str, module: ModuleType, root: Path, clock: ManualClock) -> Due | None:
    settings = module.Settings()
    more = {"machine": (RulesFolder(name),), "topology": (root,)}.get(name, ())
    source: Rounds = module.build(settings, root, clock, *more)
    kept: Rows = {}
    read_at = float("-inf")

    def read() -> Rows:
        nonlocal kept, read_at
        now = clock.now()
        if now.mono - read_at >= REREAD or (isinstance(source, Onlooker) and not seen_all(kept)):
            kept, read_at = source.read(now), now.mono
        return kept

    try:
        read()
    except Absent:
        return None
    onlook = source.onlook if isinstance(source, Onlooker) else lambda sweep: None
    return Due(name, source.rate, source.every, read, onlook=onlook)
