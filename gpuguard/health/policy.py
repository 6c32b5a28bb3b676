"""From states to actions: when the node is drained, when it is given back, and what a person's wish does.

Theory. The node has one drain, whatever the number of bad GPUs, as Slurm knows no smaller unit. It is wanted while a
subject is unfit, kept while one is still returning, and given back when none is. It is level, not event: what is owed
follows from the health now, so an old event replayed after a pause does nothing by itself.
The first cause keeps its place in the reason; a later one takes it over only when its remedy is greater, and the text
is written at most every `reason_every` seconds.
Conflicts. Somebody else's drain is never written over: ours waits as `foreign`. Somebody who takes ours away is
obeyed: it is `overridden` until a subject becomes unfit anew. What a person asked for is given back only by a person.
In the policy `observe`, and in mode `observe`, everything is decided and nothing is done outside.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.custody.token import make_reason
from gpuguard.health.machine import deciding, remedy_rank
from gpuguard.health.state import Health, Tokens
from gpuguard.incident.ranks import COMPANIONS
from gpuguard.model.actions import Action, Verb
from gpuguard.model.events import ActionOutcome, AnyEvent, Booted, LogLine, OperatorAsked
from gpuguard.model.findings import Finding, Remedy
from gpuguard.model.health import DecidedAction, Drain, Owed, PolicyName, Standing, SubjectHealth
from gpuguard.model.ids import NODE, SubjectId, TokenId, pci_of
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How eager gpuguard is; `[policy]` in the configuration."""

    # default: what the fault catalogue says; strict: any Xid takes its GPU out; observe: nothing is done outside.
    name: PolicyName = "default"
    mode: Literal["observe", "drain"] = "observe"  # drain: what is decided is done, by the target of [actuator]
    # A line read more than this after it was printed is old news: it needs a witness that is no log.
    fresh_for: Seconds = Seconds(3600.0)
    # How long a subject that was unfit must be clean before it counts as healthy.
    probation: Seconds = Seconds(600.0)
    # Reasons are read by people and by scripts that compare them: do not rewrite them more often.
    reason_every: Seconds = Seconds(600.0)
    release: bool = True  # give the node back by itself once every subject passed its probation

    def __post_init__(self) -> None:
        for name in ("fresh_for", "probation", "reason_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    @property
    def dry_run(self) -> bool:
        """Whether nothing outside may be touched."""
        return self.mode == "observe" or self.name == "observe"


# The one word that people read first in a drain's reason.
VERDICTS: dict[str, str] = {
    "xid79": "lost", "gpu_lost": "lost", "gpu_silent": "lost",
    "xid48": "memory", "xid64": "memory", "xid94": "memory", "xid95": "memory", "xid140": "memory",
    "xid119": "gsp", "xid120": "gsp", "xid62": "halted", "xid110": "security", "xid143": "init",
    "rm_init_failed": "init", "xid74": "nvlink", "nvlink": "nvlink",
    **{f"xid{code}": "nvlink" for code in range(144, 151)},
}  # fmt: skip
REMEDY_WORDS: dict[Remedy, str] = {
    "none": "failed", "test": "suspect", "reset": "needs-reset", "reboot": "needs-reboot", "replace": "replace",
}  # fmt: skip
REMEDY_ACTIONS: dict[Remedy, DecidedAction] = {
    "none": "none", "test": "test", "reset": "reset_gpu", "reboot": "reboot_node", "replace": "replace",
}  # fmt: skip


def adjust(finding: Finding, event: AnyEvent, settings: Settings) -> Finding:
    """The finding as the site's policy sees it: under `strict` any Xid takes its GPU out of the pool."""
    is_xid = isinstance(event, LogLine) and event.parsed.kind == "xid"
    if settings.name != "strict" or not is_xid or not finding.stands:
        return finding
    if finding.severity == "critical" and finding.self_evident and not finding.consequence:
        return finding
    return msgspec.structs.replace(
        finding, severity="critical", self_evident=True, consequence=False, advice="drain",
        remedy=finding.remedy if finding.remedy != "none" else "reset", clears=("reset", "reboot", "ack"),
        reason=f"{finding.reason}; the policy strict takes a GPU out on any Xid",
    )  # fmt: skip


def component(subject: SubjectHealth) -> str:
    """The subject in a drain's reason: the GPU's index where known, else its address without the domain."""
    if subject.id == NODE:
        return "node"
    if subject.index is not None:
        return f"gpu{subject.index}"
    address = subject.pci or pci_of(subject.id)
    short = address.partition(":")[2] if address else subject.id
    return short if subject.id.startswith("gpu:") else f"nvswitch:{short}"


def top(health: Health) -> tuple[SubjectHealth, Standing] | None:
    """The unfit subject that asks for most and the finding that decides it; the earliest among equals."""
    unfit = [(s, deciding(s)[0]) for s in health.subjects.values() if s.state == "unfit" and deciding(s)]
    return min(unfit, key=lambda pair: (-remedy_rank(pair[0].remedy), pair[1].first.mono, pair[0].id), default=None)


def _reason(token: TokenId, subject: SubjectHealth, standing: Standing) -> str:
    code = standing.finding.code
    return make_reason(token, component(subject), VERDICTS.get(code, REMEDY_WORDS[subject.remedy]), code)


def _token(event: AnyEvent, subject: SubjectId, used: Tokens) -> TokenId:
    """A token that follows from what led to the drain, and that no drain of this node has had."""
    for salt in range(SALTS):
        cause = f"{event.id}|{event.at.boot}|{subject}" + (f"|{salt}" if salt else "")
        token = TokenId(hashlib.blake2s(cause.encode(), digest_size=2).hexdigest())
        if token not in used.used:
            return token
    return token


# With 1,024 of 65,536 tokens used, this many fail with a chance of 1 in 10 ** 28.
SALTS = 16
# What a target answers as the node's state that only says what it would do.
DRY_TARGET = "dry_run"
# How the key of an action ends that was owed while nothing real could be done.
DRY = ":dry"


def _action(drain: Drain, verb: Verb, event: AnyEvent) -> Owed:
    key = f"{verb}:{drain.token}:{drain.writes}" + (DRY if drain.dry_run else "")
    return Owed(
        action=Action(key=key, verb=verb, token=drain.token, subject=drain.subject, reason=drain.reason, at=event.at)
    )


def settle(health: Health, event: AnyEvent, settings: Settings) -> tuple[Drain | None, list[Owed]]:
    """The drain that follows from the health now, and what is owed for it."""
    drain, worst = health.drain, top(health)
    if drain is None:
        if worst is None:
            return None, []
        drain = _new_drain(health, *worst, event, settings)
        return drain, [_action(drain, "drain", event)]
    if drain.dry_run and not settings.dry_run and drain.state not in ("releasing", "overridden"):
        # The site switched from watching to acting while a drain was wanted.
        return _owe_again(drain, event, before=[_cancelled(drain, event)], dry_run=False)
    if drain.state == "refused" and isinstance(event, Booted):
        # Somebody may have mended what the target said no to: a restart is the way to say so.
        if worst or drain.by != "gpuguard":
            return _owe_again(drain, event)
        return _let_go(health, drain, event, settings)
    if drain.state == "releasing":
        return drain, []
    since = drain.told if drain.state == "refused" else drain.written
    anew = [s for s in health.subjects.values() if s.state == "unfit" and _after(s.since, since)]
    if anew and drain.state in ("standing", "overridden", "refused"):
        return _drain_anew(health, drain, min(anew, key=lambda s: s.since.mono), event, settings)
    if drain.by != "gpuguard":
        return drain, []
    if worst is None:
        return _let_go(health, drain, event, settings)
    if drain.state != "standing":
        return drain, []
    return _retell(health, drain, *worst, event, settings)


def _owe_again(
    drain: Drain, event: AnyEvent, *, before: Sequence[Owed] = (), dry_run: bool | None = None
) -> tuple[Drain, list[Owed]]:
    """The same drain is owed once more, under a key of its own."""
    again = msgspec.structs.replace(
        drain, state="owed", writes=drain.writes + 1, dry_run=drain.dry_run if dry_run is None else dry_run
    )
    return again, [*before, _action(again, "drain", event)]


def _drain_anew(
    health: Health, drain: Drain, subject: SubjectHealth, event: AnyEvent, settings: Settings
) -> tuple[Drain, list[Owed]]:
    """A subject became unfit after our drain was last seen to stand: it may have been lifted since, so it is owed anew.

    Where it still stands, that is found and nothing is written. Where somebody took it away, this is another fault.
    """
    if drain.state == "overridden":
        renewed = _new_drain(health, subject, deciding(subject)[0], event, settings)
        return renewed, [_action(renewed, "drain", event)]
    return _owe_again(drain, event)


def _holds(health: Health, drain: Drain) -> Standing | None:
    """What the drain's reason says, if it is still so."""
    holder = health.subjects.get(drain.subject)
    return next((s for s in deciding(holder) if s.finding.code == drain.code), None) if holder else None


def _cancelled(drain: Drain, event: AnyEvent) -> Owed:
    return msgspec.structs.replace(_action(drain, "drain", event), cancelled=True)


def _after(at: Instant, than: Instant | None) -> bool:
    return than is not None and (seconds_between(than, at) or 0.0) > 0


def _new_drain(
    health: Health, subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings
) -> Drain:
    token = _token(event, subject.id, health.tokens)
    return Drain(
        token=token, subject=subject.id, code=standing.finding.code, reason=_reason(token, subject, standing),
        since=event.at, because=standing.because, dry_run=settings.dry_run,
    )  # fmt: skip


def _let_go(health: Health, drain: Drain, event: AnyEvent, settings: Settings) -> tuple[Drain | None, list[Owed]]:
    if any(subject.state == "returning" for subject in health.subjects.values()) or not settings.release:
        return drain, []
    if settings.dry_run and not drain.dry_run:
        # It stands for real, and nothing real may be done now: it is kept until the site acts again.
        return drain, []
    cancel = _cancelled(drain, event)
    if drain.state in ("foreign", "overridden") or (drain.state == "refused" and drain.written is None):
        return None, [cancel]
    if drain.state == "refused" and not isinstance(event, Booted):
        # It stands, and the target said no: a person is needed, or a restart.
        return drain, []
    # Whether an owed drain was written is not known until its answer comes, so it is released all the same: a
    # release touches nothing but our own token.
    return _release(drain, event)


def _release(drain: Drain, event: AnyEvent) -> tuple[Drain, list[Owed]]:
    """The drain is to be lifted, and what was still owed for it is owed no longer."""
    writes = drain.writes + 1 if drain.state == "refused" else drain.writes
    releasing = msgspec.structs.replace(drain, state="releasing", writes=writes)
    waits = [_cancelled(drain, event)] if drain.state in ("owed", "foreign") else []
    return releasing, [*waits, _action(releasing, "release", event)]


def _retell(
    health: Health, drain: Drain, subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings
) -> tuple[Drain, list[Owed]]:
    held = _holds(health, drain)
    # The driver's own word raises the remedy; as a reason the fault it speaks of says more.
    if held and (remedy_rank(standing.remedy) <= remedy_rank(held.remedy) or standing.finding.code in COMPANIONS):
        return drain, []
    elapsed = seconds_between(drain.told, event.at) if drain.told is not None else None
    if elapsed is not None and elapsed < settings.reason_every:
        return drain, []
    text = _reason(drain.token, subject, standing)
    told = msgspec.structs.replace(
        drain, subject=subject.id, code=standing.finding.code, reason=text, because=standing.because,
        writes=drain.writes + 1, told=event.at,
    )  # fmt: skip
    return told, [_action(told, "update_reason", event)] if text != drain.reason else []


def after_outcome(
    drain: Drain | None, outcome: ActionOutcome, verb: str, token: TokenId
) -> tuple[Drain | None, list[Owed]]:
    """The drain after the target answered, and what is owed because of the answer."""
    if drain is None or drain.token != token:
        if verb == "drain" and outcome.result == "done" and not outcome.key.endswith(DRY):
            # It was written after it was no longer wanted.
            late = Drain(token=token, subject=NODE, code="late", reason="", since=outcome.at, dry_run=False, writes=9)
            return drain, [_action(late, "release", outcome)]
        return drain, []
    return _answered(drain, outcome, verb), []


def _answered(drain: Drain, outcome: ActionOutcome, verb: str) -> Drain | None:
    told = msgspec.structs.replace(drain, message=outcome.message, node_state=outcome.node_state or drain.node_state)
    stands = msgspec.structs.replace(told, state="standing", written=outcome.at, writes=max(drain.writes, 1))
    match verb, outcome.result:
        case "release", "done" | "foreign":
            # Foreign: somebody else holds the node now, so there is nothing of ours to give back.
            return None
        case (("drain" | "adopt"), "done") if outcome.node_state == DRY_TARGET and not drain.dry_run:
            # Set to act, with a target that only talks: nothing stands, and a person must say which it is to be.
            return msgspec.structs.replace(told, state="refused", told=outcome.at)
        case (("drain" | "adopt"), "done"):
            if drain.state == "releasing":
                return told
            return msgspec.structs.replace(stands, told=drain.told or outcome.at)
        case (("drain" | "adopt"), "foreign"):
            return msgspec.structs.replace(told, state="foreign")
        case "update_reason", "done":
            return stands
        case "update_reason", "foreign":
            return msgspec.structs.replace(told, state="overridden")
        case "update_reason", "refused":
            # The drain itself stands; only its text is old.
            return told
        case _, "refused":
            return msgspec.structs.replace(told, state="refused", told=outcome.at)
    return told


class Obeyed(msgspec.Struct, frozen=True, kw_only=True):
    """What a person's wish led to: the drain, what is owed, a sentence for the person, and whether the person gave the
    node back as it is.
    """

    drain: Drain | None
    answer: str
    owed: tuple[Owed, ...] = ()
    accepted: bool = False


def obey(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    """What follows from a person's wish."""
    match asked.wish:
        case "drain":
            return _persons_drain(health, asked, settings)
        case "adopt" if asked.token is not None:
            return _adopted(health.drain, asked, asked.token, settings)
    return _persons_release(health, asked, settings)


def _persons_drain(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    drain = health.drain
    if drain is not None and drain.state in ("owed", "standing", "foreign"):
        kept = msgspec.structs.replace(drain, by=asked.by)
        how = {
            "owed": f"a drain is owed already, as {drain.token}",
            "standing": f"the node is already drained by {drain.by} as {drain.token}: {drain.reason}",
            "foreign": f"somebody else holds the node; the drain {drain.token} waits until they give it back",
        }  # fmt: skip
        answer = how[drain.state]
        if drain.by == "gpuguard":
            answer += "; from now on only a person gives it back"
        return Obeyed(drain=kept, answer=answer)
    token = _token(asked, NODE, health.tokens)
    wanted = Drain(
        token=token, subject=NODE, code="operator", reason=make_reason(token, "node", "operator", asked.by),
        since=asked.at, by=asked.by, dry_run=settings.dry_run, because=(asked.id,),
    )  # fmt: skip
    return Obeyed(drain=wanted, owed=(_action(wanted, "drain", asked),), answer=f"a drain is owed as {token}")


def _adopted(drain: Drain | None, asked: OperatorAsked, token: TokenId, settings: Settings) -> Obeyed:
    adopted = Drain(
        token=token, subject=NODE, code="operator", reason=make_reason(token, "node", "adopted", asked.by),
        since=asked.at, by=asked.by, dry_run=settings.dry_run, because=(asked.id,),
    )  # fmt: skip
    owed = [] if drain is None else [_cancelled(drain, asked)]
    return Obeyed(
        drain=adopted, owed=(*owed, _action(adopted, "adopt", asked)), answer=f"the drain {token} is taken over"
    )


def _persons_release(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    drain = health.drain
    if drain is None:
        return Obeyed(drain=None, answer="no drain of gpuguard's stands on this node", accepted=True)
    unfit = [s.id for s in health.subjects.values() if s.state == "unfit"]
    if unfit and drain.by == "gpuguard":
        answer = f"refused: {', '.join(unfit)} unfit; `gpuguard why` tells why, `gpuguard ack` clears it"
        return Obeyed(drain=drain, answer=answer)
    if settings.dry_run and not drain.dry_run:
        answer = 'refused: the drain is real and this node is set to observe; set [policy] mode = "drain" first'
        return Obeyed(drain=drain, answer=answer)
    releasing, owed = _release(drain, asked)
    return Obeyed(drain=releasing, owed=tuple(owed), answer=f"a release of {drain.token} is owed", accepted=True)


def decided_action(
    before: SubjectHealth, after: SubjectHealth, standing: Standing | None, settings: Settings
) -> DecidedAction:
    """The one word of a decision: what a node set to act does about this change."""
    if settings.name == "observe":
        return "none"
    if after.state == "unfit" and before.state != "unfit":
        return "drain"
    if after.state == "unfit" and remedy_rank(after.remedy) > remedy_rank(before.remedy):
        return REMEDY_ACTIONS[after.remedy]
    if before.state == "returning" and after.state in ("healthy", "watched"):
        return "release"
    if standing is None or (after.state == "unfit" and standing.confirmed):
        # It is out of service already.
        return "none"
    advice = standing.finding.advice
    return "watch" if advice == "drain" or (advice == "test" and standing.secondary_to) else advice


def held_back(subjects: Iterable[SubjectHealth]) -> list[tuple[SubjectHealth, Standing]]:
    """Critical findings that wait for a witness."""
    return [
        (subject, standing)
        for subject in subjects
        for standing in subject.standing
        if standing.finding.severity == "critical"
        and not standing.confirmed
        and standing.secondary_to is None
        and not standing.finding.consequence
    ]
