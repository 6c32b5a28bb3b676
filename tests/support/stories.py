"""Stories of the core as text (`.scn`): an event a line and, indented below it, everything that followed.

    # where it comes from                    a comment is kept
    given policy=strict mode=drain           how the node is set; also crashing=<check>, only=<check>, clean_for=60
    0.0 boot A                               the machine starts; the first boot is no news
    5.0 kmsg NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.
        gpu:0000:5d:00.0: healthy -> unfit, drain; xid79 critical: ...
        owed: drain 'gpuguard:1f2e 5d:00.0 lost xid79'
    +0.5 outcome drain done written          half a second later; the answer to the newest drain

Events    boot NAME | kmsg[*N] TEXT | journal TEXT | logfile TEXT | nvml TEXT | backlog TEXT | lost SOURCE N REASON
          (nvml: what the driver's library reports as an event, in the words of the log)
          sweep SOURCE/RATE SUBJECT COLUMN=VALUE ... [| SUBJECT ...] (VALUE a number, text with _ for
          a space and __ for _, ? for unknown, or values with commas, one for each part; what is not named is absent)
          source NAME LEVEL REASON | probe PCI answers|silent|gone [UUID] | tick | pass (time goes by, with every
          tick that is due) | outcome VERB RESULT MESSAGE | ack CODE [SUBJECT] BY REASON | operator WISH BY REASON
Times     seconds since boot, or since the event before with a plus; `until 900` is `900 pass`
With `only=<check>` the findings of that check alone are told, not what the core makes of them; of one that judges
what is measured, those that changed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from gpuguard.health import machine
from gpuguard.health.decide import decide
from gpuguard.health.policy import Settings
from gpuguard.health.state import Health
from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.events import (
    Acknowledged,
    ActionOutcome,
    AnyEvent,
    Booted,
    GpuProbed,
    LinesLost,
    LogLine,
    OperatorAsked,
    SourceChanged,
    Sweep,
    Tick,
)
from gpuguard.model.findings import Finding
from gpuguard.model.health import Decision
from gpuguard.model.ids import NODE, BootId, EventId, GpuUuid, PciAddress, SubjectId, TokenId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Group, Readings, Row, Value, Values, merged
from gpuguard.ports import AnyDetector, Detector, MachineDetector, RowDetector
from gpuguard.runtime.assembly import assemble

INDENT = "    "
FIRST_BOOT = BootId("A")
UTC = 1_750_000_000.0
DOWN_FOR = 120.0
NUDGE = 0.001
VALID_FOR = {"fast": 30.0, "medium": 180.0, "slow": 1800.0}
_LINE = re.compile(r"(\+?\d+(?:\.\d+)?) (\w+)(?:\*(\d+))? ?(.*)$")
# Each tells of a line by a verb of its own name; `backlog` is kmsg's of before the agent began to watch.
_SOURCES = ("kmsg", "journal", "logfile", "nvml", "backlog")


class StoryBroken(AssertionError):
    """A line of a story that cannot be understood; the message tells which."""


class Crashing:
    """A check that crashes on every line it is shown."""

    reads = (LogLine,)
    memory = Tick

    def __init__(self, name: str) -> None:
        self.name = name

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        return (SubjectId("node"),)

    def start(self) -> Tick:
        return Tick(id=EventId("none"), at=Instant(boot=BootId("none"), mono=0.0))

    def observe(self, memory: Any, subject: SubjectId, event: AnyEvent) -> tuple[Any, Sequence[Finding]]:
        raise ZeroDivisionError("a bug of ours")


@cache
def shipped_detectors() -> tuple[AnyDetector, ...]:
    """Every check with the settings and tables that ship."""
    return assemble(Path("/dev/null"), with_sources=False).detectors


@dataclass
class Story:
    """A node that events happen to."""

    settings: Settings = field(default_factory=lambda: Settings(mode="drain"))
    detectors: tuple[AnyDetector, ...] = field(default_factory=shipped_detectors)
    only: str | None = None
    now: float = 0.0
    boot: BootId = FIRST_BOOT
    booted_at: float = UTC
    health: Health | None = None
    count: int = 0
    newest: dict[str, str] = field(default_factory=dict)  # key of the newest action by verb
    memories: dict[SubjectId, Any] = field(default_factory=dict)
    readings: Readings = field(default_factory=dict)
    told_of: dict[tuple[SubjectId, str], str] = field(default_factory=dict)

    # --- what may be done with it ------------------------------------------------------------------------------------

    def given(self, words: str) -> None:
        """The node is set as the words say."""
        for word in words.split():
            key, _, value = word.partition("=")
            match key:
                case "policy" | "mode":
                    self.settings = replace(self.settings, **{"name" if key == "policy" else key: value})
                case "clean_for" | "probation" | "fresh_for" | "reason_every":
                    self.settings = replace(self.settings, **{key: float(value)})
                case "crashing":
                    self.detectors = (*self.detectors, Crashing(value))
                case "only":
                    self.only = value
                    self.detectors = tuple(d for d in self.detectors if d.name == value)
                    if not self.detectors:
                        raise StoryBroken(f"no check is called {value}")
                case _:
                    raise StoryBroken(f"given: no setting {key!r}")

    def instant(self, mono: float | None = None) -> Instant:
        """The moment on this boot."""
        mono = self.now if mono is None else mono
        return Instant(boot=self.boot, mono=mono, utc=self.booted_at + mono)

    def decide(self, event: AnyEvent) -> Decision:
        """What follows from the event; the health is the new one."""
        if self.health is None:
            self.health = Health(now=event.at)
        self.health, decision = decide(self.health, event, self.detectors, self.settings)
        for owed in decision.owed:
            if not owed.cancelled:
                self.newest[owed.action.verb] = owed.action.key
        return decision

    def next_id(self, kind: str) -> EventId:
        """An id of an event that happens now."""
        self.count += 1
        return EventId(f"{kind}:{self.boot}:{self.count}")

    # --- the text ----------------------------------------------------------------------------------------------------

    def tell(self, line: str) -> list[str]:
        """Everything that follows from one line of a story."""
        if line.startswith("given "):
            self.given(line[len("given ") :])
            return []
        match = _LINE.match(line)
        if match is None:
            raise StoryBroken(f"not understood: {line!r}")
        when, verb, times, rest = match.groups()
        moment = self.now + float(when[1:]) if when.startswith("+") else float(when)
        if verb == "boot":
            return self._start(rest, moment)
        if verb == "pass":
            return self._pass(moment)
        if verb != "backlog":
            self.now = moment
        out = []
        for event in self._events(verb, rest, moment, int(times or 1)):
            out += self._follow(event)
        return out

    def _start(self, name: str, moment: float) -> list[str]:
        previous = self.boot if self.health is not None else None
        if previous is not None:
            self.booted_at += self.now + DOWN_FOR
        self.boot, self.now = BootId(name), moment
        return self._follow(Booted(id=self.next_id("start"), at=self.instant(), previous=previous))

    def _pass(self, moment: float) -> list[str]:
        out: list[str] = []
        while (due := self._next_due()) is not None and due <= moment:
            self.now = due + NUDGE
            told = self._follow(Tick(id=self.next_id("tick"), at=self.instant()))
            out += [f"at {self.now:.3f} {line}" for line in told]
        self.now = moment
        told = self._follow(Tick(id=self.next_id("tick"), at=self.instant()))
        return out + [f"at {self.now:.3f} {line}" for line in told]

    def _next_due(self) -> float | None:
        assert self.health is not None, "time passes only after a boot"
        proof = self.settings.proof
        dues = [d.mono for s in self.health.subjects.values() for d in machine.dues(s, proof) if d.boot == self.boot]
        return min((due for due in dues if due > self.now), default=None)

    def _events(self, verb: str, rest: str, moment: float, times: int) -> Iterator[AnyEvent]:
        at = self.instant(moment)
        words = rest.split(" ")
        match verb:
            case _ if verb in _SOURCES:
                text = rest.replace("\\n", "\n")
                parsed = parse_text(text)
                if parsed is None:
                    raise StoryBroken(f"means nothing to any grammar: {rest!r}")
                source = "kmsg" if verb == "backlog" else verb
                yield LogLine(
                    id=self.next_id(source), at=at, source=source, parsed=parsed, raw=text,
                    backlog=verb == "backlog", repeated=times,
                )  # fmt: skip
            case "lost":
                reason = " ".join(words[2:])
                yield LinesLost(id=self.next_id("lost"), at=at, source=words[0], count=int(words[1]), reason=reason)
            case "sweep":
                source, _, rate = words[0].partition("/")
                yield Sweep(
                    id=self.next_id(source), at=at, source=source, rate=rate or "fast", rows=swept(words[1:]),  # type: ignore[arg-type]  # the story says which
                    valid_for=VALID_FOR[rate or "fast"],
                )  # fmt: skip
            case "source":
                reason = " ".join(words[2:])
                yield SourceChanged(
                    id=self.next_id("source"), at=at, source=words[0], level=words[1], reason=reason,  # type: ignore[arg-type]  # the story says which
                )  # fmt: skip
            case "probe":
                uuid = GpuUuid(words[2]) if len(words) > 2 else None
                yield GpuProbed(
                    id=self.next_id("probe"), at=at, source="pci_config", pci=PciAddress(words[0]),
                    present=words[1] != "gone", answers=words[1] == "answers", uuid=uuid,
                )  # fmt: skip
            case "tick":
                yield Tick(id=self.next_id("tick"), at=at)
            case "outcome":
                yield self._outcome(at, words[0], words[1], " ".join(words[2:]))
            case "ack":
                subject = SubjectId(words.pop(1)) if ":" in words[1] or words[1] == "node" else None
                yield Acknowledged(
                    id=self.next_id("ack"), at=at, code=words[0], subject=subject, by=words[1],
                    reason=" ".join(words[2:]),
                )  # fmt: skip
            case "operator":
                token = TokenId(words.pop(1)) if words[0] == "adopt" else None
                yield OperatorAsked(
                    id=self.next_id("person"), at=at, wish=words[0], by=words[1], reason=" ".join(words[2:]),  # type: ignore[arg-type]  # the story says which
                    token=token,
                )  # fmt: skip
            case _:
                raise StoryBroken(f"no event is called {verb!r}")

    def _outcome(self, at: Instant, verb: str, result: str, message: str) -> ActionOutcome:
        if verb not in self.newest:
            raise StoryBroken(f"no {verb} was owed")
        retry = 30.0 if result == "deferred" else None
        return ActionOutcome(
            id=self.next_id("outcome"), at=at, key=self.newest[verb], result=result, message=message,  # type: ignore[arg-type]  # the story says which
            retry_after=retry,
        )  # fmt: skip

    def _follow(self, event: AnyEvent) -> list[str]:
        if self.only is not None:
            return self._findings(event)
        before = self.health.drain if self.health else None
        decision = self.decide(event)
        out = []
        for t in decision.transitions:
            moved = t.state if t.before == t.state else f"{t.before} -> {t.state}"
            out.append(f"{t.subject}: {moved}, {t.action}; {t.finding} {t.severity}: {t.reason}")
        for owed in decision.owed:
            action = owed.action
            out.append(
                f"no longer owed: {action.verb} {action.token}"
                if owed.cancelled
                else f"owed: {action.verb} {action.reason!r} as {action.key}"
            )
        out += [f"asks about {q.code} on {q.subject}" for q in decision.questions]
        out += [f"check failed: {name}" for name in decision.failed]
        out += [f"told: {e.text}" for e in decision.story if e.kind in ("operator", "acknowledged", "boot", "source")]
        assert self.health is not None, "the decision made it"
        after = self.health.drain
        if (before.state if before else None) != (after.state if after else None):
            out.append(f"drain: {before.state if before else 'none'} -> {after.state if after else 'none'}")
        return out

    def _findings(self, event: AnyEvent) -> list[str]:
        (detector,) = self.detectors
        out: list[str] = []
        if hasattr(detector, "survey"):
            return self._machine(cast(MachineDetector, detector), event) if isinstance(event, Sweep) else out
        if hasattr(detector, "of"):
            return self._levels(cast(RowDetector, detector), event) if isinstance(event, Sweep) else out
        detector = cast(Detector, detector)
        if not isinstance(event, detector.reads):
            return out
        for subject in detector.subjects(event):
            memory = self.memories.get(subject, detector.start())
            self.memories[subject], findings = detector.observe(memory, subject, event)
            out += [finding_line(finding) for finding in findings]
        return out

    def _levels(self, detector: RowDetector, event: Sweep) -> list[str]:
        out: list[str] = []
        for subject, values in event.rows.items():
            groups = self._measured(event, subject)
            if kind_of(subject) not in detector.of or values.keys().isdisjoint(detector.reads):
                continue
            row = Row(subject=subject, at=event.at, source=event.source, values=merged(groups, event.at))
            memory = self.memories.get(subject, detector.start())
            self.memories[subject], findings = detector.observe(memory, subject, row)
            out += self._news(findings)
        return out

    def _machine(self, detector: MachineDetector, event: Sweep) -> list[str]:
        for subject in event.rows:
            self._measured(event, subject)
        if not any(values.keys() & detector.reads for values in event.rows.values()):
            return []
        rows = {
            subject: Row(subject=subject, at=event.at, source=event.source, values=values)
            for subject, groups in self.readings.items()
            if kind_of(subject) in detector.of and (values := merged(groups, event.at))
        }
        memory = self.memories.get(NODE, detector.start())
        self.memories[NODE], findings = detector.survey(memory, rows)
        return self._news(findings)

    def _measured(self, event: Sweep, subject: SubjectId) -> dict[str, Group]:
        group = Group(
            source=event.source, rate=event.rate, at=event.at, valid_for=event.valid_for, values=event.rows[subject]
        )
        self.readings[subject] = {**self.readings.get(subject, {}), f"{event.source}/{event.rate}": group}
        return self.readings[subject]

    def _news(self, findings: Sequence[Finding]) -> list[str]:
        """As the core does: news are what comes, goes, or changes its weight; what is latched stays."""
        out: list[str] = []
        for finding in findings:
            if finding.latched and not finding.stands:
                continue
            mark = f"{finding.severity} {finding.remedy} {finding.self_evident}" if finding.stands else "gone"
            if self.told_of.get((finding.subject, finding.code), "gone") != mark:
                out.append(finding_line(finding))
            self.told_of[finding.subject, finding.code] = mark
        return out


def swept(words: Sequence[str]) -> dict[SubjectId, Values]:
    """The rows that `SUBJECT COLUMN=VALUE ... | SUBJECT ...` tells of."""
    rows: dict[SubjectId, Values] = {}
    for part in " ".join(words).split(" | "):
        subject, *columns = part.split()
        rows[SubjectId(subject)] = {name: _value(text) for name, _, text in (c.partition("=") for c in columns)}
    return rows


def _value(text: str) -> Value:
    if "," in text:
        return tuple(cast(Any, _value(part)) for part in text.split(",") if part)
    if text == "?":
        return None
    for kind in (int, float) if "_" not in text else ():  # Python would take 3_5 for 35
        try:
            return kind(text)
        except ValueError:
            continue
    return text.replace("__", "\0").replace("_", " ").replace("\0", "_")


def finding_line(finding: Finding) -> str:
    """A finding in one line, with all that the core acts on."""
    if not finding.stands:
        proof = f", proves {finding.proves}" if finding.proves else ""
        return f"{finding.subject}: {finding.code} stands no longer{proof}"
    words = [finding.severity, f"advice {finding.advice}", f"remedy {finding.remedy}"]
    words += ["self-evident"] if finding.self_evident else []
    words += ["latched"] if finding.latched else []
    words += ["consequence"] if finding.consequence else []
    words += ["silent"] if finding.silent else []
    words += [f"x{finding.count}"] if finding.count != 1 else []
    return f"{finding.subject}: {finding.code} stands: {', '.join(words)}; {finding.reason}"


def rewritten(text: str) -> str:
    """The story with what really follows from each of its events."""
    story = Story()
    out = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out += [INDENT + followed for followed in story.tell(line)]
    return "\n".join(out) + "\n"


def told(*lines: str, given: str = "") -> tuple[Story, list[str]]:
    """The story after these lines, and all that followed from them."""
    story = Story()
    if given:
        story.given(given)
    return story, [followed for line in lines for followed in story.tell(line)]
