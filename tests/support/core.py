"""The core under test: lines in, decisions out, with real detectors and real tables."""

from collections.abc import Iterable, Mapping
from functools import cache

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.jobs import activity, derive, tasks, verdict
from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.events import AnyEvent, Booted, GpuProbed, LogLine, Sweep, Tick
from gpuguard.model.health import Decision
from gpuguard.model.ids import BootId, EventId, SubjectId, gpu, parse_pci_address
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values
from gpuguard.ports import AnyDetector
from gpuguard.runtime import plugins
from gpuguard.runtime.assembly import RulesFolder

BOOT = BootId("aaaaaaaa-0000-4000-8000-000000000001")
UTC = 1_750_000_000.0
ACTING = policy.Settings(mode="drain")


@cache
def detectors() -> tuple[AnyDetector, ...]:
    """Every detector on the shelf, with its defaults, and the deriver whose rows some of them judge."""
    modules = plugins.shelf("gpuguard.detectors")
    jobs = derive.build(
        derive.Settings(), verdict.Settings(), activity.Settings(), tasks.Settings(), RulesFolder("jobs")
    )
    return (jobs, *(module.build(module.Settings(), RulesFolder(name)) for name, module in modules.items()))


def instant(mono: float, boot: BootId = BOOT) -> Instant:
    """A moment of a boot; UTC runs with it."""
    return Instant(boot=boot, mono=mono, utc=UTC + mono)


def line(text: str, mono: float, *, source: str = "kmsg", backlog: bool = False, boot: BootId = BOOT) -> LogLine:
    """The event of a kernel message, as a source would make it."""
    parsed = parse_text(text)
    assert parsed is not None, f"no grammar reads {text!r}"
    event_id = EventId(f"{source}:{boot[:8]}:{mono}:{text[:40]}")
    return LogLine(id=event_id, at=instant(mono, boot), source=source, parsed=parsed, raw=text, backlog=backlog)


def xid(pci: str, code: int, mono: float, rest: str = "", **more: object) -> LogLine:
    """An Xid line of the newest form."""
    text = f"NVRM: Xid (PCI:{pci}): {code}" + (f", {rest}" if rest else "")
    return line(text, mono, **more)  # type: ignore[arg-type]


def probed(pci: str, mono: float, *, answers: bool) -> GpuProbed:
    """What the second witness says of a GPU."""
    address = parse_pci_address(pci)
    event_id = EventId(f"pci_config:{pci}:{mono}")
    return GpuProbed(id=event_id, at=instant(mono), source="pci_config", pci=address, present=True, answers=answers)


def sweep(
    rows: Mapping[str, Values], mono: float, *, source: str = "nvml", rate: Rate = "fast", boot: BootId = BOOT
) -> Sweep:
    """What a source measured in one go."""
    return Sweep(
        id=EventId(f"{source}/{rate}:{mono}"), at=instant(mono, boot), source=source, rate=rate, valid_for=30.0,
        rows={SubjectId(name): values for name, values in rows.items()},
    )  # fmt: skip


def tick(mono: float, boot: BootId = BOOT) -> Tick:
    """Time went by."""
    return Tick(id=EventId(f"tick:{mono}"), at=instant(mono, boot))


def looks(start: float, boot: BootId = BOOT) -> tuple[Tick, ...]:
    """The three looks over ten minutes by which what is clean since `start` may be used again."""
    return tuple(tick(start + 200.5 * n, boot) for n in (1, 2, 3))


def booted(mono: float = 1.0, boot: BootId = BOOT, previous: BootId | None = None) -> Booted:
    """The agent started."""
    return Booted(id=EventId(f"start:{boot}:{mono}"), at=instant(mono, boot), previous=previous)


class Core:
    """A health that events happen to; remembers every decision."""

    def __init__(self, settings: policy.Settings = ACTING, health: Health | None = None) -> None:
        self.settings = settings
        self.health = health or Health(now=instant(0.0))
        self.decisions: list[Decision] = []

    def tell(self, *events: AnyEvent) -> Decision:
        """The decision on the last of the events."""
        for event in events:
            self.health, decision = decide(self.health, event, detectors(), self.settings)
            self.decisions.append(decision)
        return self.decisions[-1]

    def state(self, pci: str) -> str:
        """The state of the GPU at an address."""
        return self.health.subject(gpu(parse_pci_address(pci))).state

    def codes(self, pci: str) -> set[str]:
        """What stands against the GPU at an address."""
        return {s.finding.code for s in self.health.subject(gpu(parse_pci_address(pci))).standing}

    def owed(self) -> list[str]:
        """Every action that became owed, by verb."""
        return [o.action.verb for d in self.decisions for o in d.owed if not o.cancelled]


def states(health: Health, only: Iterable[SubjectId]) -> dict[SubjectId, object]:
    """The records of some subjects, to compare."""
    return {name: health.subjects.get(name) for name in only}
