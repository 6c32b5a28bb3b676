"""The way back of a node: what is tried, in which order, how often, and when a person has to look.

Theory. Each fault brings the order of its remedies with it (`rules/detectors/fault_codes`: remedy, second_remedy), and
`machine` raises what is due each time the fault is there again after a remedy. This file turns what is due into
errands, finitely often, and only while gpuguard's own drain stands, for whoever holds the node decides what is done to
it:

  test     where a test is due, and after every remedy before the node is given back
  reset    of the one GPU; whoever performs it waits until nobody uses it, and refuses where the machine cannot
  reboot   of the node, asked of its scheduler; stands for the resets that are due as well
  replace  nothing here: a person gets the part's serial and the evidence

A test is also the second look at what one witness alone says: critical, not self-evident, and nobody confirms it.
Then no drain stands; the one who performs it only asks the driver, which no job notices. A fault that it finds is a
finding of its own, that needs no witness; where it finds none, what one witness said stays what it was: watched.
What a target refused, and what was tried as often as it may, is a person's; a restart of the agent, or a new fault,
begins anew. While a person keeps gpuguard's hands off the node, nothing is owed.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuguard.health import errands, machine, policy
from gpuguard.health.errands import Errand, Settled, Wanted
from gpuguard.health.machine import deciding
from gpuguard.health.policy import Settings, component
from gpuguard.health.state import Health
from gpuguard.model.actions import RemedyVerb
from gpuguard.model.events import ActionOutcome, AnyEvent
from gpuguard.model.findings import Finding
from gpuguard.model.health import Applied, Drain, SubjectHealth
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.instants import seconds_between

DAY: Final = 86400.0
VERBS: Final[tuple[RemedyVerb, ...]] = ("evict", "test", "reset", "reboot")
# A second look waits so long for a second witness, who is the better one.
WITNESS_FIRST: Final = 60.0
# Between two tries of one rung. A reboot that was asked for may have to wait for the window of whoever reboots.
REST: Final[dict[str, float]] = {"test": 600.0, "reset": 600.0, "reboot": 6 * 3600.0, "evict": DAY}
FAILED: Final = "diagnostic_failed"
CHECK: Final = "test"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One rung that is due: for whom, and the words of its reason. `drain` is that which must stand for it."""

    verb: RemedyVerb
    about: str
    subject: SubjectHealth
    code: str
    drain: Drain | None


def settle(health: Health, event: AnyEvent, settings: Settings) -> Settled:
    """What is owed for the way back as things stand now."""
    due = {errands.named(step.verb, step.about): step for step in _due(health, event, settings)}
    known = [errand for errand in health.errands.values() if errand.verb in VERBS]
    if not due and not known:
        return health.errands, []

    def wanted(errand: Errand) -> Wanted:
        if errands.named(errand.verb, errand.about) in due:
            return "keep"
        return "cancel" if errands.recent(errand, event.at, DAY) else "drop"

    left, owed = dict(health.errands), []
    for verb in VERBS:
        left, more = errands.looked_at(left, verb, wanted, event, dry=settings.dry_run)
        owed.extend(more)
    for name, step in due.items():
        errand = left.get(name) or Errand(verb=step.verb, about=step.about, subject=step.subject.id, since=event.at)
        tried_out = _is_tried_out(errand, event, settings)
        spent = tried_out and step.drain is not None  # a second look that found nothing calls nobody
        if errand.spent is not spent and name in left:
            errand = left[name] = msgspec.structs.replace(errand, spent=spent)
        if tried_out or not _is_due(errand, step, event):
            continue
        used = (*health.tokens.used, *(o.action.token for o in owed))
        left[name], action = errands.owe(
            errand, event, used, (component(step.subject), step.verb, step.code), dry=settings.dry_run,
            drain=step.drain.token if step.drain else None,
        )  # fmt: skip
        owed.append(action)
    return (health.errands if left == health.errands else left), owed


def is_proof(errand: Errand, event: ActionOutcome) -> bool:
    """Whether the answer shows that a reset came through."""
    return errand.verb == "reset" and event.result == "done"


def concerned(errand: Errand, subjects: Mapping[SubjectId, SubjectHealth]) -> list[SubjectId]:
    """Whom the errand was about; all GPUs where it was about the node."""
    if errand.verb not in ("test", "reset"):
        return []
    if errand.subject != NODE:
        return [errand.subject] if errand.subject in subjects else []
    return [name for name in subjects if name == NODE or kind_of(name) == "gpu"]


def learned(subject: SubjectHealth, errand: Errand, event: ActionOutcome) -> SubjectHealth:
    """The subject after a test or a reset of it ended; the same where nothing follows.

    A passed test under our drain ends what asked for one, and counts towards the proof of one that is returning. A
    reset that did not come through was tried all the same: the next remedy is due.
    """
    under_drain = errand.pending is not None and errand.pending.drain is not None
    match errand.verb, event.result:
        case "test", "done" if under_drain:
            for standing in [s for s in deciding(subject) if s.remedy == "test"]:
                subject = machine.withdraw(subject, standing.finding.code, event.at)
            return msgspec.structs.replace(subject, proven=event.at)
        case "reset", "failed":
            tried = [Applied(code=s.finding.code, remedy="reset", at=event.at) for s in deciding(subject)]
            return machine.tried(subject, tried)
    return subject


def found(errand: Errand, event: ActionOutcome) -> Finding | None:
    """The finding that a failed test is."""
    if errand.verb != "test" or event.result != "failed":
        return None
    return Finding(
        subject=errand.subject, check=CHECK, code=FAILED, at=event.at, severity="critical", remedy="reset",
        blame="hardware", self_evident=True, latched=True, clears=("reset", "reboot", "replace", "ack"),
        reason=event.message[:200], source="actuator", because=(event.id,), advice="drain",
        ladder=("reset", "reboot", "replace"),
    )  # fmt: skip


def _due(health: Health, event: AnyEvent, settings: Settings) -> Iterable[Step]:
    if health.pause is not None:
        return
    drain = health.drain
    waits = drain is not None and drain.state == "owed" and not drain.pending  # since a person's pause
    if drain is None or waits or drain.state in ("overridden", "foreign", "held"):
        if settings.test_gpus:
            yield from _second_looks(health, event)
        return
    if drain.state != "standing" or drain.by != "gpuguard" or (settings.dry_run and not drain.dry_run):
        return
    unfit = [subject for subject in health.subjects.values() if subject.state == "unfit" and deciding(subject)]
    severe = any(s.finding.severity == "critical" for subject in unfit for s in deciding(subject))
    if unfit and settings.evict_pods and severe:
        worst = max(unfit, key=lambda subject: machine.remedy_rank(subject.remedy))
        yield Step(verb="evict", about=drain.token, subject=worst, code=drain.code, drain=drain)
    reboots = [subject for subject in unfit if subject.remedy == "reboot"]
    if reboots and settings.reboot_node:
        code = deciding(reboots[0])[0].finding.code
        yield Step(verb="reboot", about=NODE, subject=health.subject(NODE), code=code, drain=drain)
        return
    for subject in unfit:
        code = deciding(subject)[0].finding.code
        if subject.remedy == "reset" and settings.reset_gpus and kind_of(subject.id) == "gpu":
            yield Step(verb="reset", about=subject.id, subject=subject, code=code, drain=drain)
        elif subject.remedy == "test" and settings.test_gpus and kind_of(subject.id) in ("gpu", "node"):
            yield Step(verb="test", about=subject.id, subject=subject, code=code, drain=drain)
    if settings.test_gpus:
        for subject in health.subjects.values():
            if subject.state == "returning" and subject.tested is None and subject.proven is None:
                yield Step(
                    verb="test", about=subject.id, subject=subject, code=subject.last_fault or "returning", drain=drain
                )


def _second_looks(health: Health, event: AnyEvent) -> Iterable[Step]:
    """What one witness alone says for a while, of GPUs; a look disturbs nobody."""
    for subject, standing in policy.held_back(health.subjects.values()):
        waited = seconds_between(standing.first, event.at)
        if kind_of(subject.id) == "gpu" and waited is not None and waited >= WITNESS_FIRST:
            yield Step(verb="test", about=subject.id, subject=subject, code=standing.finding.code, drain=None)


def _is_tried_out(errand: Errand, event: AnyEvent, settings: Settings) -> bool:
    """Whether it was tried as often as it may be in a day, and is due all the same."""
    tried = len(errands.recent(errand, event.at, DAY))
    return errand.verb != "evict" and errand.pending is None and tried >= _tries(errand.verb, settings)


def _is_due(errand: Errand, step: Step, event: AnyEvent) -> bool:
    if errand.pending is not None or errand.came == "refused":
        return False
    if errand.verb == "evict" and errand.owed:
        return False  # once for each drain
    if not errand.owed:
        return True
    rested = seconds_between(errand.ended or errand.owed[-1], event.at)
    return (rested is not None and rested >= REST[errand.verb]) or _is_another(errand, step)


def _is_another(errand: Errand, step: Step) -> bool:
    """Whether it is asked for on another ground than the last time: after a remedy, not after the same failure."""
    return errand.verb == "test" and errand.came == "done" and step.subject.state == "returning"


def _tries(verb: str, settings: Settings) -> int:
    return {"test": settings.test_tries, "reset": settings.reset_tries, "reboot": settings.reboot_tries}.get(verb, 1)
