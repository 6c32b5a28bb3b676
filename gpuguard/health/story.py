"""The sentences that `why`, `history` and the log tell, and the transitions they are about."""

from collections.abc import Sequence

from gpuguard.health.machine import deciding, in_doubt
from gpuguard.health.policy import Settings, decided_action
from gpuguard.model.events import Acknowledged, ActionOutcome, AnyEvent, Booted, OperatorAsked, SourceChanged
from gpuguard.model.health import Drain, Owed, Pause, Standing, SubjectHealth, Transition
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
        reason=_taken(before, after, event) or _reason(before, after, cause, settings),
        incident=cause.incident if cause else None,
        because=cause.because if cause else (event.id,),
    )


def _taken(before: SubjectHealth, after: SubjectHealth, event: AnyEvent) -> str:
    """The words for what a person took as it is, before it had shown that it is well; empty for all else."""
    taken = isinstance(event, OperatorAsked) and before.state == "returning" and after.state in ("healthy", "watched")
    return f"{event.by} took it as it is" if taken and isinstance(event, OperatorAsked) else ""


def _reason(before: SubjectHealth, after: SubjectHealth, cause: Standing | None, settings: Settings) -> str:
    if before.tested is None and after.tested is not None:
        shown = f"{settings.clean_passes} looks in {settings.clean_for:.0f} s found nothing after its remedy"
        return f"{shown}; on probation for {_lasting(settings.probation)}"
    if before.state == "returning" and after.state in ("healthy", "watched"):
        return f"nothing came back in {_lasting(settings.probation)} of probation"
    if before.state == "unfit" and after.state == "returning":
        echo = next((s for s in after.standing if cause and s.finding.code == cause.finding.code), None)
        if echo is not None and echo.secondary_to:
            return f"a consequence of {echo.secondary_to} on another GPU; {_proving(settings)}"
        if doubted := in_doubt(after):
            codes = ", ".join(s.finding.code for s in doubted)
            return f"{codes} was seen before a pause and not since: a new witness that is no log would drain the node"
        return f"what made it unfit is cleared; {_proving(settings)}"
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


def _lasting(seconds: float) -> str:
    return f"{seconds / 86400:g} d" if seconds >= 86400 else f"{seconds:.0f} s"


def _proving(settings: Settings) -> str:
    test = " and a test passed" if settings.test_gpus else ""
    return f"given back once {settings.clean_passes} looks over {settings.clean_for:.0f} s found nothing{test}"


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


def kept(drain: Drain, event: AnyEvent) -> StoryEntry:
    """The drain is not given back by itself."""
    return StoryEntry(
        at=event.at, kind="drain", subject=drain.subject, text=f"kept: {drain.kept}", event_id=event.id,
        cause=drain.token, detail={"key": drain.pending, "cancelled": False},
    )  # fmt: skip


def outcome(event: ActionOutcome, subject: SubjectId | None) -> StoryEntry:
    """What a target answered, and whom it is about; the node where that is not known any more."""
    verb, token = event.key.split(":")[:2]
    return StoryEntry(
        at=event.at, kind="outcome", subject=subject or NODE, event_id=event.id, cause=token,
        text=f"{verb} {token}: {event.result}; {event.message}",
        detail={"key": event.key, "result": event.result, "node_state": event.node_state},
    )  # fmt: skip


def pause_ended(pause: Pause, event: AnyEvent) -> StoryEntry:
    """A person's pause ran out."""
    return StoryEntry(
        at=event.at, kind="operator", subject=NODE, event_id=event.id,
        text=f"the pause that {pause.by} asked for is over ({pause.reason})",
        detail={"wish": "unpause", "by": pause.by},
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
