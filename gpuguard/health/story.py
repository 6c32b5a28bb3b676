"""The sentences that `why`, `history` and the log tell, and the transitions they are about."""

from collections.abc import Sequence

from gpuguard.health.machine import deciding
from gpuguard.health.policy import Settings, decided_action
from gpuguard.model.events import Acknowledged, ActionOutcome, AnyEvent, Booted, OperatorAsked, SourceChanged
from gpuguard.model.health import Owed, Standing, SubjectHealth, Transition
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.story import StoryEntry


def transition(
    event: AnyEvent, before: SubjectHealth, after: SubjectHealth, cause: Standing | None, settings: Settings
) -> Transition:
    """The change of one subject, with the finding that caused it and the reason in words."""
    return Transition(
        at=event.at,
        subject=after.id,
        uuid=after.uuid,
        finding=cause.finding.code if cause else after.last_fault or "none",
        severity=cause.finding.severity if cause else "info",
        action=decided_action(before, after, cause if cause in after.standing else None, settings),
        before=before.state,
        state=after.state,
        remedy=after.remedy,
        reason=_reason(before, after, cause, settings),
        incident=cause.incident if cause else None,
        because=cause.because if cause else (event.id,),
    )


def _reason(before: SubjectHealth, after: SubjectHealth, cause: Standing | None, settings: Settings) -> str:
    if before.state == "returning" and after.state in ("healthy", "watched"):
        return f"clean for {settings.probation:.0f} s after its remedy"
    if before.state == "unfit" and after.state == "returning":
        echo = next((s for s in after.standing if cause and s.finding.code == cause.finding.code), None)
        if echo is not None and echo.secondary_to:
            return f"a consequence of {echo.secondary_to} on another GPU; on probation for {settings.probation:.0f} s"
        return f"what made it unfit is cleared; on probation for {settings.probation:.0f} s"
    if cause is None or cause not in after.standing:
        return "nothing stands against it any more" if after.state == "healthy" else "what stood is cleared"
    words = [cause.finding.reason]
    if cause.secondary_to:
        words.append(f"a consequence of {cause.secondary_to} on another GPU, not this one's fault")
    elif cause.finding.severity == "critical" and not cause.confirmed:
        if cause.finding.consequence:
            words.append("follows from another fault and decides nothing alone")
        elif after.state == "unfit":
            words.append("not confirmed; it is out of service already")
        elif after.state == "returning":
            words.append("not confirmed; it is not given back while this stands")
        elif cause.fresh:
            words.append(f"held: only {', '.join(cause.sources)} saw it; a second witness would drain the node")
        else:
            words.append("held: this is old news; a witness that is no log would drain the node")
    elif cause.finding.severity == "critical" and not cause.finding.self_evident:
        words.append(f"confirmed by {', '.join(_witnesses(after))}")
    tried = [a.remedy for a in after.applied if a.code == cause.finding.code]
    if tried and cause.remedy != cause.finding.remedy:
        words.append(f"it came back after {', '.join(tried)}")
    if after.remedy != "none" and cause in deciding(after):
        words.append(f"remedy: {after.remedy}")
    return "; ".join(words)


def _witnesses(subject: SubjectHealth) -> list[str]:
    return sorted({source for s in deciding(subject) for source in s.sources})


def verdict(told: Transition) -> StoryEntry:
    """A transition as a sentence."""
    return StoryEntry(
        at=told.at, kind="verdict", subject=told.subject, event_id=told.because[0] if told.because else None,
        cause=told.incident, text=f"{told.finding}: {told.before} -> {told.state}; {told.reason}",
        detail={
            "finding": told.finding, "severity": told.severity, "action": told.action, "before": told.before,
            "state": told.state, "remedy": told.remedy, "uuid": told.uuid,
        },
    )  # fmt: skip


def owed(o: Owed, event: AnyEvent) -> StoryEntry:
    """An action that became owed, or that is owed no longer."""
    action = o.action
    text = f"no longer owed: {action.verb} {action.token}" if o.cancelled else f"owed: {action.verb} {action.reason!r}"
    kind = action.verb if action.verb != "update_reason" else "outcome"
    return StoryEntry(
        at=event.at, kind=kind, subject=action.subject, text=text, event_id=event.id, cause=action.token,
        detail={"key": action.key, "cancelled": o.cancelled},
    )  # fmt: skip


def outcome(event: ActionOutcome, subject: SubjectId | None) -> StoryEntry:
    """What a target answered, and whom it is about; the node where that is not known any more."""
    verb, token = event.key.split(":")[:2]
    return StoryEntry(
        at=event.at, kind="outcome", subject=subject or NODE, event_id=event.id, cause=token,
        text=f"{verb} {token}: {event.result}; {event.message}",
        detail={"key": event.key, "result": event.result, "node_state": event.node_state},
    )  # fmt: skip


def source_changed(event: SourceChanged) -> StoryEntry:
    """A source sees more or less than before."""
    return StoryEntry(
        at=event.at, kind="source", subject=NODE, event_id=event.id,
        text=f"{event.source}: {event.level}" + (f"; {event.reason}" if event.reason else ""),
        detail={"source": event.source, "level": event.level},
    )  # fmt: skip


def rebooted(event: Booted) -> StoryEntry:
    """The machine was started anew."""
    return StoryEntry(
        at=event.at, kind="boot", subject=NODE, event_id=event.id,
        text=f"rebooted: boot {event.at.boot}, was {event.previous}",
    )  # fmt: skip


def acknowledged(event: Acknowledged, subject: SubjectId, covered: Sequence[str]) -> StoryEntry:
    """A person cleared a finding, and with it what it explained."""
    also = f" (and with it {', '.join(covered)})" if covered else ""
    return StoryEntry(
        at=event.at, kind="acknowledged", subject=subject, event_id=event.id,
        text=f"{event.code}{also} acknowledged by {event.by}: {event.reason}",
        detail={"code": event.code, "by": event.by, "reason": event.reason},
    )  # fmt: skip


def operator(event: OperatorAsked, answer: str) -> StoryEntry:
    """A person asked for something, and what they were told."""
    return StoryEntry(
        at=event.at, kind="operator", subject=NODE, event_id=event.id, cause=event.token,
        text=f"{event.by} asked for {event.wish} ({event.reason}): {answer}",
        detail={"wish": event.wish, "by": event.by, "answer": answer},
    )  # fmt: skip
