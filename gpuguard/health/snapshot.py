"""The node at one moment, in the words that people, Prometheus and hooks use.

The verdict on the whole node is that of its worst subject: CRITICAL > WARNING > UNKNOWN > OK. A CRITICAL is confirmed
when a subject is unfit, which no single doubtful line can make it.
"""

from collections.abc import Iterable

import msgspec

from gpuguard.health.machine import LOG_SOURCES
from gpuguard.health.past import Past, of
from gpuguard.health.policy import component
from gpuguard.health.state import Health
from gpuguard.model.health import (
    FindingView,
    ShellFacts,
    Snapshot,
    SourceView,
    Standing,
    State,
    SubjectHealth,
    SubjectView,
)
from gpuguard.model.ids import NODE
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Quantity

LEVELS: dict[State, int] = {"healthy": 0, "watched": 1, "returning": 1, "unfit": 2, "unknown": 3}
# Worst first, for people.
ORDER = (2, 1, 3, 0)
LINE_LIMIT = 120


def take(health: Health, shell: ShellFacts, now: Instant, quantities: Iterable[Quantity] = ()) -> Snapshot:
    """The snapshot of this moment; `quantities` are those that its readings may hold."""
    subjects = tuple(_subject(health.subjects[name], health.past) for name in sorted(health.subjects))
    levels = [LEVELS[subject.state] for subject in subjects]
    if not any(source.level != "blind" for source in shell.sources if source.name in LOG_SOURCES):
        levels.append(3)
    level = next(word for word in ORDER if word in levels or word == 0)
    return Snapshot(
        at=now, boot=health.boot, level=level, confirmed=level == 2,
        line=_line(health, level, shell.sources)[:LINE_LIMIT], subjects=subjects, drain=health.drain, shell=shell,
        pause=health.pause,
        readings=health.readings, quantities=tuple(quantities), past=of(health.past, health.subject(NODE)),
    )  # fmt: skip


def without_readings(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is written down: verdicts, which change seldom."""
    return msgspec.structs.replace(snapshot, readings={}, quantities=())


def _subject(subject: SubjectHealth, past: Past) -> SubjectView:
    return SubjectView(
        id=subject.id, state=subject.state, remedy=subject.remedy, uuid=subject.uuid, serial=subject.serial,
        findings=tuple(_finding(standing) for standing in subject.standing), index=subject.index,
        past=of(past, subject) if subject.id != NODE else None,
    )  # fmt: skip


def _finding(standing: Standing) -> FindingView:
    finding = standing.finding
    return FindingView(
        subject=finding.subject, code=finding.code, check=finding.check, severity=finding.severity,
        confirmed=standing.confirmed, remedy=standing.remedy, reason=finding.reason, count=max(1, standing.count),
        first_utc=standing.first.utc, last_utc=standing.last.utc, sources=standing.sources,
        secondary_to=standing.secondary_to, latched=finding.latched, because=standing.because,
    )  # fmt: skip


def _proving(subject: SubjectHealth) -> str:
    if subject.tested is not None:
        return "on probation"
    looks = f"{subject.passes} clean look{'' if subject.passes == 1 else 's'}"
    return f"not yet given back, {looks} so far" if subject.state == "returning" else ""


def _line(health: Health, level: int, sources: tuple[SourceView, ...]) -> str:
    """One sentence for people: whom it concerns and why."""
    if level == 0:
        gpus = sum(name.startswith("gpu:") for name in health.subjects)
        known = f" or its {gpus} known GPU{'s' if gpus > 1 else ''}" if gpus else ""
        return f"nothing stands against this node{known}"
    concerned = [s for s in health.subjects.values() if LEVELS[s.state] == level]
    if not concerned:
        blind = [source for source in sources if source.level == "blind"]
        why = "; ".join(f"{source.name} is blind: {source.reason}" for source in blind)
        return why or "no kernel log is read: [agent] sources names none that there is; kmsg is the one to have"
    if level == LEVELS["unknown"]:
        return "; ".join(s.finding.reason for subject in concerned for s in subject.standing if s.finding.silent)
    parts = []
    for subject in sorted(concerned, key=lambda s: s.id):
        codes = [s.finding.code for s in subject.standing if s.finding.severity != "info" and s.secondary_to is None]
        codes = codes or [s.finding.code for s in subject.standing if s.finding.severity != "info"]
        remedy = f", needs {subject.remedy}" if subject.remedy != "none" else ""
        parts.append(f"{component(subject)} {subject.state} ({', '.join(codes) or _proving(subject)}{remedy})")
    return "; ".join(parts)
