"""What people are to be told, as it follows from the health.

Theory. What is told is a level, as health is: `standing` lists all of it for one health, and `notices` is the
difference between two. So nothing needs to be remembered here, and who was away (a restart, a webhook that did not
answer) compares what stands now with what it has told. `unsettled` names what cannot be known at this moment: it is
neither told anew nor told to be over.
Each fault is told once, under the code that made its subject unfit first; what else comes to stand there is in
`gpuguard why`. What jobs suffer from is told of its job. A drain that is only rehearsed (mode observe) is told as that.

A page      a replacement is due; a drain or a remedy is held, or was refused by its target; a remedy was tried as often
            as it may; a node came back too often; a fault is undecided since a pause
A warning   a part failed; a test failed or a remedy did not help; the node is somebody else's; a drain of ours was
            taken away, or waits for long; a source is blind; the disk refuses; a job hangs
A notice    the node was drained, or would have been
"""

import hashlib
from collections.abc import Iterator

import msgspec

from gpuguard.health.errands import Errand
from gpuguard.health.machine import deciding, in_doubt
from gpuguard.health.policy import component
from gpuguard.health.state import Health
from gpuguard.model.events import ActionOutcome, AnyEvent
from gpuguard.model.findings import Remedy
from gpuguard.model.health import Decision, Drain, SourceHealth, Standing, SubjectHealth
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.notices import Notice, Urgency

# A source that is started again within this time is no news: a driver reloads, a log is rotated. Units: seconds
BLIND_FOR = 60.0
# Sources without which faults go unseen; of the others it is good to know.
EYES = ("kmsg", "nvml")
STORE = "store"  # the name under which runtime/loop tells that the disk refuses
HANGS = ("job_hung", "job_half_dead")
# Rungs of the way back; what they leave behind waits for a person. The other errands are about jobs.
REMEDIES = ("evict", "test", "reset", "reboot")
EVIDENCE = 4  # faults of one part that a page tells in whole
RAW_SHOWN = 400

# What a person can do where a target refused or held a rung.
BY_HAND: dict[str, str] = {
    "test": "Test it by hand, then gpuguard resume --yes gives the node back",
    "reset": "Reset the GPU by hand once nothing runs on it",
    "reboot": "Reboot the node by hand once its jobs are over",
    "evict": "Move what is left by hand",
}
# A scheduler that does not answer for so long is something to know. Units: seconds
WAITS_FOR = 600.0

NEXT: dict[Remedy, str] = {
    "none": "gpuguard why {part} tells what led to it",
    "test": "gpuguard why {part}; test it before it is used again",
    "reset": "gpuguard why {part}; reset the GPU once nothing runs on it",
    "reboot": "gpuguard why {part}; reboot the node once its jobs are over",
    "replace": "gpuguard why {part}; open a case with the vendor, with the evidence below",
}

Levels = dict[str, Notice]


def notices(
    before: Health, after: Health, decision: Decision, event: AnyEvent, *, node: str = ""
) -> tuple[Notice, ...]:
    """What is to be told because of one decision, the most urgent first: what began to stand, and what does no more.

    What is told to be over may never have been told: only who told it knows. `decision` is what was decided.
    """
    if not (decision.urgent or _moved(before, after)):
        return ()
    old, new = standing(before, node=node), standing(after, node=node)
    begun = [notice for key, notice in new.items() if key not in old]
    ended = [
        over(notice, event.at, after, event)
        for key, notice in {**_possible(before, node), **old}.items()
        if key not in new and not unsettled(after, notice)
    ]
    order: tuple[Urgency, ...] = ("page", "warning", "notice")
    return tuple(sorted((*begun, *ended), key=lambda n: (n.until is not None, order.index(n.urgency), n.key)))


def standing(health: Health, *, node: str = "") -> Levels:
    """Everything that stands now and that people are to know, by its key."""
    found: Levels = {}
    for notice in _all(health, node):
        found.setdefault(notice.key, notice)
    return found


def unsettled(health: Health, notice: Notice) -> bool:
    """Whether nothing can be said of it now: its source was not heard yet, or what is owed was not answered."""
    if notice.event == "source.blinded":
        source = health.sources.get(notice.mark)
        return source is None or source.level == "blind"
    errand = _errand_of(health, notice)
    return errand is not None and errand.came is None


def over(notice: Notice, at: Instant, health: Health, event: AnyEvent | None = None) -> Notice:
    """That it stands no longer: the same, less its next step."""
    text = _how(notice, health)
    if notice.event.startswith("drain.") or notice.event == "node.drained":
        answer = event.message if isinstance(event, ActionOutcome) else ""
        text = f"{text}: {answer}" if answer else text
    return msgspec.structs.replace(
        notice, id=_id(notice.node, notice.key, notice.since, over=True), until=at, text=text,
        next_step="", bundle="",
    )  # fmt: skip


def _how(notice: Notice, health: Health) -> str:
    drain = health.drain
    match notice.event.partition(".")[0]:
        case "drain" if drain is not None and drain.token == notice.token:
            return f"the drain {drain.token} is {drain.state} now"
        case "drain":
            return "it is wanted no longer"
        case "node" if notice.event == "node.drained":
            return (
                "somebody else holds the node now" if drain and drain.state == "foreign" else "the node was given back"
            )
        case "source":
            return "it is read again"
        case "disk":
            return "the state directory can be written again"
        case "job":
            return "the job gets on again, or is over"
        case verb if verb in (*REMEDIES, "requeue", "reclaim"):
            errand = _errand_of(health, notice)
            return (
                "it is wanted no longer" if errand is None else f"the target says now: {errand.came or 'nothing yet'}"
            )
    subject = health.subjects.get(notice.subject)
    if subject is None:
        return "nothing is known of it any more"
    if subject.state == "returning":
        return "what made it unfit is cleared; it is given back once it stayed clean"
    return f"it is {subject.state}" if subject.state != "unfit" else "another fault, or another remedy, decides now"


# --- what stands -----------------------------------------------------------------------------------------------------


def _all(health: Health, node: str) -> Iterator[Notice]:
    for subject in health.subjects.values():
        if subject.state == "unfit":
            yield from _failed(health, subject, node)
        elif doubted := in_doubt(subject):
            yield _undecided(subject, doubted[0], node)
        if kind_of(subject.id) == "job":
            yield from _hung(subject, node)
    if health.drain is not None:
        yield from _drained(health.drain, node)
        if _waits_long(health.drain, health.now):
            yield _waiting(health.drain, node)
    for errand in health.errands.values():
        if errand.came in ("failed", "refused", "held") and not errand.dry:
            yield _errand(errand, node, errand.came)
        elif errand.spent and not errand.dry:
            yield _spent(errand, node)
    for source in health.sources.values():
        if source.name == STORE and source.level != "watching":
            yield _disk(source, node)
        elif source.name != STORE and _blind(source, health.now):
            yield _blinded(source, node)


def _failed(health: Health, subject: SubjectHealth, node: str) -> Iterator[Notice]:
    faults = deciding(subject)
    if not faults:
        return
    # The one that was first stays: one that joins later is no other failure.
    first = min(faults, key=lambda s: (s.first.utc or 0.0, s.first.mono, s.finding.code))
    part, kind = component(subject), kind_of(subject.id)
    drain = health.drain.token if health.drain is not None and not health.drain.dry_run else None
    facts = {**_identity(subject), "remedy": subject.remedy, "codes": ", ".join(s.finding.code for s in faults)}
    because = tuple(event for s in faults for event in s.because)[:16]
    step = NEXT[subject.remedy].format(part=part)
    needs = f", needs {subject.remedy}" if subject.remedy != "none" else ""
    yield _notice(
        node, f"{kind}.failed", "warning", subject.id, first.finding.code, subject.since, code=first.finding.code,
        title=f"{part} is unfit: {first.finding.code}{needs}",
        text="; ".join(s.finding.reason for s in faults[:EVIDENCE]), next_step=step, facts=facts, because=because,
        token=drain,
    )  # fmt: skip
    if subject.remedy == "replace":
        yield _notice(
            node, "replacement.asked", "page", subject.id, first.finding.code, subject.since, code=first.finding.code,
            title=f"{part} is to be replaced: {first.finding.code}",
            text=f"no smaller remedy is left, or none would help: {first.finding.reason}", next_step=step,
            facts={**facts, **_evidence(subject, faults)}, because=because, token=drain,
        )  # fmt: skip


def _identity(subject: SubjectHealth) -> dict[str, str]:
    known = {"serial": subject.serial, "uuid": subject.uuid, "pci": subject.pci}
    return {name: value for name, value in known.items() if value}


def _evidence(subject: SubjectHealth, faults: list[Standing]) -> dict[str, str]:
    """What a vendor asks for: which faults, how often, who saw them, what was tried."""
    told = {
        f"fault_{number}": f"{s.finding.code}, {s.count} times, by {', '.join(s.sources)}: {s.raw or s.finding.reason}"
        for number, s in enumerate(faults[:EVIDENCE], start=1)
    }
    tried = ", ".join(f"{a.remedy} for {a.code}" for a in subject.applied)
    return {name: text[:RAW_SHOWN] for name, text in {**told, "tried": tried or "nothing"}.items()}


def _hung(subject: SubjectHealth, node: str) -> Iterator[Notice]:
    for s in subject.standing:
        if s.finding.code in HANGS and s.finding.severity != "info":
            yield _notice(
                node, "job.hung", "warning", subject.id, s.finding.code, s.first, code=s.finding.code,
                title=f"{subject.id.partition(':')[2]} does not get on", text=s.finding.reason, because=s.because,
                next_step="gpuguard hang names the rank and what speaks for and against it",
            )  # fmt: skip


def _drained(drain: Drain, node: str) -> Iterator[Notice]:
    who = "gpuguard" if drain.by == "gpuguard" else drain.by
    facts = {"reason": drain.reason, "by": who, **({"answer": drain.message} if drain.message else {})}

    def told(event: str, urgency: Urgency, title: str, text: str, step: str) -> Notice:
        return _notice(
            node, event, urgency, NODE, drain.token, drain.since, code=drain.code, token=drain.token, title=title,
            text=text, next_step=step, facts=facts, because=drain.because,
        )  # fmt: skip

    why = f"gpuguard why {drain.token}"
    if drain.dry_run:
        yield told(
            "drain.rehearsed", "notice", f"the node would have been drained: {drain.code}",
            f"{drain.reason}; nothing was done, as gpuguard only observes here",
            f'{why}; [policy] mode = "drain" lets it act',
        )  # fmt: skip
        return
    if drain.written is not None and drain.state in ("standing", "owed", "releasing", "refused"):
        yield told(
            "node.drained", "notice", f"the node was drained by {who}: {drain.code}", drain.reason,
            f"{why} names the remedy; when it was seen gpuguard gives the node back",
        )  # fmt: skip
    if drain.kept:
        yield told(
            "drain.kept", "page", f"the node is not given back by itself: {drain.code}", drain.kept,
            f"{why}; once it is well: gpuguard resume --yes",
        )  # fmt: skip
    answer = drain.message or "the target did not say why"
    match drain.state:
        case "held":
            yield told(
                "drain.held", "page", f"gpuguard did not drain the node: {drain.code}",
                f"{answer}. Jobs may still be placed on it",
                f"{why}; where this node is truly bad: gpuguard drain --yes",
            )  # fmt: skip
        case "refused":
            yield told(
                "drain.refused", "page", f"the scheduler refused what gpuguard wants for {drain.token}", answer,
                "gpuguard status has its words; correct that and restart gpuguard-agent, which asks again",
            )  # fmt: skip
        case "foreign":
            yield told(
                "drain.blocked", "warning", f"somebody else holds the node; ours waits: {drain.code}", answer,
                f"{why}; tell whoever holds it before they give it back",
            )  # fmt: skip
        case "overridden":
            yield told(
                "drain.overridden", "warning", f"somebody took gpuguard's drain away: {drain.code}", answer,
                f"{why}; if that was a mistake: gpuguard drain --yes",
            )  # fmt: skip


def _waits_long(drain: Drain, now: Instant) -> bool:
    """Whether a drain for real is on its way for so long that something hinders it."""
    age = seconds_between(drain.since, now)
    waits = drain.state == "owed" and drain.written is None and bool(drain.pending) and not drain.dry_run
    return waits and age is not None and age >= WAITS_FOR


def _waiting(drain: Drain, node: str) -> Notice:
    return _notice(
        node, "drain.waiting", "warning", NODE, drain.token, drain.since, code=drain.code, token=drain.token,
        title=f"the node is not drained yet: {drain.code}", text=drain.message or "the scheduler gave no answer",
        next_step="gpuguard status has its words; jobs may still be placed on the node",
    )  # fmt: skip


def _undecided(subject: SubjectHealth, standing: Standing, node: str) -> Notice:
    part, code = component(subject), standing.finding.code
    return _notice(
        node, "fault.undecided", "page", subject.id, code, standing.first, code=code,
        title=f"{part} is undecided: {code} was seen before a pause and not since", text=standing.finding.reason,
        next_step=f"gpuguard why {part}; look at it: gpuguard drain --yes, or gpuguard ack {code}",
        facts=_identity(subject), because=standing.because,
    )  # fmt: skip


def _spent(errand: Errand, node: str) -> Notice:
    return _notice(
        node, f"{errand.verb}.spent", "page", errand.subject, errand.about, errand.since,
        title=f"{errand.verb} of {errand.subject} did not help, and is not tried again today",
        text=errand.message or "the target did not say more",
        next_step=f"gpuguard why {errand.subject}; a person has to look", facts={"tries": str(errand.number)},
    )  # fmt: skip


def _errand(errand: Errand, node: str, came: str) -> Notice:
    remedy = errand.verb in REMEDIES
    urgency: Urgency = "page" if remedy and came != "failed" else "warning"
    words = {"failed": "did not help", "refused": "was refused", "held": "is held back"}
    title = f"{errand.verb} of {errand.subject} {words[came]}"
    if errand.verb == "test" and came == "failed":
        title = f"a test of {errand.subject} failed"
    step = f"gpuguard why {errand.subject}"
    if urgency == "page":
        step += "; it is not tried again by itself until the agent is restarted. " + BY_HAND.get(errand.verb, "")
    return _notice(
        node, f"{errand.verb}.{came}", urgency, errand.subject, errand.about, errand.since, title=title,
        text=errand.message or "the target did not say why", next_step=step, facts={"tries": str(errand.number)},
    )  # fmt: skip


def _blinded(source: SourceHealth, node: str) -> Notice:
    return _notice(
        node, "source.blinded", "warning" if source.name in EYES else "notice", NODE, source.name, source.since,
        title=f"gpuguard cannot read {source.name}", text=source.reason or "it gives no answer",
        next_step="gpuguard status names the source and why; unknown neither drains nor releases",
    )  # fmt: skip


def _disk(source: SourceHealth, node: str) -> Notice:
    return _notice(
        node, "disk.refused", "warning", NODE, source.name, source.since, title="gpuguard cannot write its memory",
        text=f"{source.reason}; what is not on disk is not acted on",
        next_step="free space under the state directory, look for I/O errors; gpuguard goes on by itself",
    )  # fmt: skip


# --- small things ----------------------------------------------------------------------------------------------------


def _moved(before: Health, after: Health) -> bool:
    """Whether anything that is told of differs, or time made a difference."""
    return (
        before.drain is not after.drain
        or before.sources is not after.sources
        or before.errands != after.errands
        or len(before.subjects) != len(after.subjects)
        or any(before.subjects.get(name) is not subject for name, subject in after.subjects.items())
        or any(_blind(source, after.now) and not _blind(source, before.now) for source in after.sources.values())
    )


def _blind(source: SourceHealth, now: Instant) -> bool:
    return source.level == "blind" and (seconds_between(source.since, now) or 0.0) >= BLIND_FOR


def _possible(health: Health, node: str) -> Levels:
    """What may have been told before it became unsettled: of errands, and of sources that were blind already."""
    told = [
        _errand(errand, node, came)
        for errand in health.errands.values() if not errand.dry
        for came in ("failed", "refused", "held")
    ]  # fmt: skip
    told += [_blinded(s, node) for s in health.sources.values() if s.level == "blind" and s.name != STORE]
    return {notice.key: notice for notice in told}


def _errand_of(health: Health, notice: Notice) -> Errand | None:
    verb, _, came = notice.event.partition(".")
    if came not in ("failed", "refused", "held"):
        return None
    wanted = ((e.verb, e.subject, e.about) == (verb, notice.subject, notice.mark) for e in health.errands.values())
    return next((e for e, it in zip(health.errands.values(), wanted, strict=True) if it), None)


def _notice(
    node: str, event: str, urgency: Urgency, subject: SubjectId, mark: str, since: Instant, **more: object
) -> Notice:
    made = Notice(id="", node=node, event=event, urgency=urgency, subject=subject, mark=mark, since=since, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, id=_id(node, made.key, since, over=False))


def _id(node: str, key: str, since: Instant, *, over: bool) -> str:
    text = f"{node}|{key}|{since.boot}|{since.mono}|{over}"
    return hashlib.blake2s(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
