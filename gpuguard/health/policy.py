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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpuguard.custody.token import make_reason
from gpuguard.health.machine import deciding, remedy_rank
from gpuguard.health.state import Health
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

    name: PolicyName = "default"
    mode: Literal["observe", "drain"] = "observe"
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
    if settings.name != "strict" or not is_xid or not finding.stands or finding.severity == "critical":
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


def _token(event: AnyEvent, subject: SubjectId) -> TokenId:
    return TokenId(hashlib.blake2s(f"{event.id}|{event.at.boot}|{subject}".encode(), digest_size=2).hexdigest())


def _action(drain: Drain, verb: Verb, event: AnyEvent) -> Owed:
    key = f"{verb}:{drain.token}:{drain.writes}" + (":dry" if drain.dry_run else "")
    return Owed(
        action=Action(key=key, verb=verb, token=drain.token, subject=drain.subject, reason=drain.reason, at=event.at)
    )


def settle(health: Health, event: AnyEvent, settings: Settings) -> tuple[Drain | None, list[Owed]]:
    """The drain that follows from the health now, and what is owed for it."""
    drain, worst = health.drain, top(health)
    if drain is None:
        if worst is None:
            return None, []
        drain = _new_drain(*worst, event, settings)
        return drain, [_action(drain, "drain", event)]
    if drain.dry_run and not settings.dry_run and drain.state == "standing":
        # The site switched from watching to acting while a drain was wanted.
        drain = msgspec.structs.replace(drain, dry_run=False, state="owed", message="")
        return drain, [_action(drain, "drain", event)]
    if drain.state == "refused" and isinstance(event, Booted) and (worst or drain.by != "gpuguard"):
        # Somebody may have mended what the target said no to: a restart is the way to say so.
        again = msgspec.structs.replace(drain, state="owed", writes=drain.writes + 1)
        return again, [_action(again, "drain", event)]
    if drain.by != "gpuguard" or drain.state == "releasing":
        return drain, []
    if worst is None:
        return _let_go(health, drain, event, settings)
    subject, standing = worst
    if drain.state == "overridden":
        anew = [s for s in health.subjects.values() if s.state == "unfit" and _after(s.since, drain.written)]
        if not anew:
            return drain, []
        renewed = _new_drain(anew[0], deciding(anew[0])[0], event, settings)
        return renewed, [_action(renewed, "drain", event)]
    return _retell(health, drain, subject, standing, event, settings)


def _after(at: Instant, than: Instant | None) -> bool:
    return than is not None and (seconds_between(than, at) or 0.0) > 0


def _new_drain(subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings) -> Drain:
    token = _token(event, subject.id)
    return Drain(
        token=token, subject=subject.id, code=standing.finding.code, reason=_reason(token, subject, standing),
        since=event.at, because=standing.because, dry_run=settings.dry_run,
    )  # fmt: skip


def _let_go(health: Health, drain: Drain, event: AnyEvent, settings: Settings) -> tuple[Drain | None, list[Owed]]:
    if any(subject.state == "returning" for subject in health.subjects.values()) or not settings.release:
        return drain, []
    cancel = msgspec.structs.replace(_action(drain, "drain", event), cancelled=True)
    if drain.state in ("foreign", "refused", "overridden"):
        return None, [cancel]
    # Whether an owed drain was written is not known until its answer comes, so it is released all the same: a
    # release touches nothing but our own token.
    releasing = msgspec.structs.replace(drain, state="releasing", dry_run=settings.dry_run or drain.dry_run)
    release = _action(releasing, "release", event)
    return releasing, [cancel, release] if drain.state == "owed" else [release]


def _retell(
    health: Health, drain: Drain, subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings
) -> tuple[Drain, list[Owed]]:
    holder = health.subjects.get(drain.subject)
    still_true = holder is not None and any(s.finding.code == drain.code for s in deciding(holder))
    if still_true and holder is not None and remedy_rank(subject.remedy) <= remedy_rank(holder.remedy):
        return drain, []
    if drain.state != "standing" or drain.written is None:
        return drain, []
    elapsed = seconds_between(drain.written, event.at)
    if elapsed is not None and elapsed < settings.reason_every:
        return drain, []
    text = _reason(drain.token, subject, standing)
    told = msgspec.structs.replace(
        drain, subject=subject.id, code=standing.finding.code, reason=text, because=standing.because,
        writes=drain.writes + 1, written=event.at,
    )  # fmt: skip
    return told, [_action(told, "update_reason", event)] if text != drain.reason else []


def after_outcome(drain: Drain | None, outcome: ActionOutcome, verb: str, token: str) -> Drain | None:
    """The drain after the target answered; an answer about an older drain changes nothing."""
    if drain is None or drain.token != token:
        return drain
    told = msgspec.structs.replace(drain, message=outcome.message, node_state=outcome.node_state or drain.node_state)
    match verb, outcome.result:
        case "release", "done" | "foreign":
            # Foreign: somebody else holds the node now, so there is nothing of ours to give back.
            return None
        case "release", "refused":
            return msgspec.structs.replace(told, state="refused")
        case (("drain" | "adopt"), "done"):
            if drain.state == "releasing":
                return told
            return msgspec.structs.replace(told, state="standing", written=outcome.at, writes=max(drain.writes, 1))
        case (("drain" | "adopt"), "foreign"):
            return msgspec.structs.replace(told, state="foreign")
        case "update_reason", "foreign":
            return msgspec.structs.replace(told, state="overridden", written=outcome.at)
        case _, "refused":
            return msgspec.structs.replace(told, state="refused")
    return told


def obey(health: Health, asked: OperatorAsked, settings: Settings) -> tuple[Drain | None, list[Owed], str]:
    """What a person's wish leads to: the drain, what is owed, and a sentence for the person."""
    drain = health.drain
    if asked.wish == "drain":
        if drain is not None and drain.state not in ("overridden", "refused"):
            return drain, [], f"the node is already drained by {drain.by} as {drain.token}: {drain.reason}"
        token = _token(asked, NODE)
        wanted = Drain(
            token=token, subject=NODE, code="operator", reason=make_reason(token, "node", "operator", asked.by),
            since=asked.at, by=asked.by, dry_run=settings.dry_run, because=(asked.id,),
        )  # fmt: skip
        return wanted, [_action(wanted, "drain", asked)], f"a drain is owed as {token}"
    if asked.wish == "adopt" and asked.token is not None:
        text = make_reason(asked.token, "node", "adopted", asked.by)
        adopted = Drain(
            token=asked.token, subject=NODE, code="operator", reason=text, since=asked.at, by=asked.by,
            dry_run=settings.dry_run, because=(asked.id,),
        )  # fmt: skip
        return adopted, [_action(adopted, "adopt", asked)], f"the drain {asked.token} is taken over"
    if drain is None:
        return None, [], "no drain of gpuguard's stands on this node"
    unfit = [s.id for s in health.subjects.values() if s.state == "unfit"]
    if unfit and drain.by == "gpuguard":
        return drain, [], f"refused: {', '.join(unfit)} unfit; `gpuguard why` tells why, `gpuguard ack` clears it"
    releasing = msgspec.structs.replace(drain, state="releasing", dry_run=settings.dry_run or drain.dry_run)
    return releasing, [_action(releasing, "release", asked)], f"a release of {drain.token} is owed"


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
