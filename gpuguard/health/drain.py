"""The life of the node's one drain: wanted, owed, standing, given back; what targets answer and what people wish.

Theory. The node has one drain, whatever the number of bad GPUs, as Slurm knows no smaller unit. It is wanted while a
subject is unfit, kept while one is still returning, and given back when none is. It is level, not event: what is owed
follows from the health now, so an old event replayed after a pause does nothing by itself.
`covered` are the subjects, and since when they are unfit, for which the drain was last owed. One that is not among them
owes it anew: a drain that stood may have been lifted by a reboot or a person, and the target finds whether there is
anything to write. No clocks are compared for that, as they may have been set meanwhile.
At most one action is owed for a drain, `pending`; what overtakes it cancels it, and what a target answers late about
something overtaken changes nothing, except that a drain written late is lifted again.
The first cause keeps its place in the reason; a later one takes it over only when its remedy is greater, and the text
is written at most every `reason_every` seconds.
What the fleet's budget, or a common cause, forbids is `held`: nothing stands, and it is a person's from then on, until
a subject becomes unfit anew. After `releases_a_day` given back by itself, a person gives the node back.
While a person keeps gpuguard's hands off the node (`pause`), what is owed is taken back and nothing new is owed; what
stands stays. The drain keeps its token meanwhile, as it may have been written: afterwards it is owed again, or given
back. What was seen before the pause and not since decides nothing then (`machine.doubt`).
Conflicts. Somebody else's drain is never written over: ours waits as `foreign`. Somebody who takes ours away is obeyed:
it is `overridden` until a subject becomes unfit anew. What a person asked for is given back only by a person. What a
target refused is asked again after a restart, or for another fault.
"""

import hashlib
from typing import assert_never

import msgspec

from gpuguard.custody.token import make_reason
from gpuguard.health.machine import deciding, remedy_rank
from gpuguard.health.policy import Settings, component
from gpuguard.health.state import Health, Tokens
from gpuguard.incident.ranks import COMPANIONS
from gpuguard.model.actions import DRY, DRY_TARGET, Action, DrainVerb
from gpuguard.model.events import ActionOutcome, AnyEvent, Booted, OperatorAsked
from gpuguard.model.findings import Remedy
from gpuguard.model.health import Drain, DrainState, Owed, Pause, Standing, SubjectHealth
from gpuguard.model.ids import NODE, SubjectId, TokenId
from gpuguard.model.instants import seconds_between

# The one word that people read first in a drain's reason.
VERDICTS: dict[str, str] = {
    "xid79": "lost", "gpu_lost": "lost", "gpu_silent": "lost", "nvml_lost": "lost", "nvml_unlisted": "lost",
    "xid48": "memory", "xid64": "memory", "xid94": "memory", "xid95": "memory", "xid140": "memory",
    "ecc_uncorrected": "memory", "sram_threshold": "memory", "row_remap_failed": "memory",
    "retired_pages": "memory", "memory_unrepairable": "memory",
    "xid119": "gsp", "xid120": "gsp", "xid62": "halted", "xid110": "security", "xid143": "init",
    "rm_init_failed": "init", "xid74": "nvlink", "nvlink": "nvlink",
    **{f"xid{code}": "nvlink" for code in range(144, 151)},
}  # fmt: skip
REMEDY_WORDS: dict[Remedy, str] = {
    "none": "failed", "test": "suspect", "reset": "needs-reset", "reboot": "needs-reboot", "replace": "replace",
}  # fmt: skip

# With 1,024 of 65,536 tokens used, this many fail with a chance of 1 in 10 ** 28.
SALTS = 16
# Keys of what is owed for a token that had a life before begin here.
AGAIN = 1000
DAY = 86400.0
# More times that the node was given back than any limit of a day counts.
RELEASES_KEPT = 16
# How the key of an answer ends that nothing was asked for: the target was looked at (runtime/messenger).
SEEN = ":seen"
ENOUGH_RELEASES = "it was given back {} times within 24 h and failed again: a person is to give it back"

Settled = tuple[Drain | None, list[Owed]]


def top(health: Health) -> tuple[SubjectHealth, Standing] | None:
    """The unfit subject that asks for most and the finding that decides it; the earliest among equals."""
    unfit = [(s, deciding(s)[0]) for s in health.subjects.values() if s.state == "unfit" and deciding(s)]
    return min(unfit, key=lambda pair: (-remedy_rank(pair[0].remedy), pair[1].first.mono, pair[0].id), default=None)


def _unfit(health: Health) -> tuple[str, ...]:
    """The subjects that are unfit, each with the moment it became so."""
    unfit = (s for s in health.subjects.values() if s.state == "unfit")
    return tuple(sorted(f"{s.id}@{s.since.boot}:{s.since.mono}" for s in unfit))


# --- what follows from the health ------------------------------------------------------------------------------------


def settle(health: Health, event: AnyEvent, settings: Settings) -> Settled:
    """The drain that follows from the health now, and what is owed for it."""
    drain, worst = health.drain, top(health)
    if health.pause is not None:
        return _hands_off(drain, event)
    if drain is not None and worst is not None and drain.kept:
        drain = msgspec.structs.replace(drain, kept="")
    if drain is None:
        return _new(health, *worst, event, settings) if worst else (None, [])
    if settings.dry_run and not drain.dry_run:
        # It stands, or is owed, for real, and nothing real may be done now: it is kept until the site acts again.
        return drain, []
    if drain.dry_run and not settings.dry_run:
        return _act_for_real(health, drain, event, settings)
    if drain.state == "refused" and isinstance(event, Booted):
        return _try_again(health, drain, event, settings)
    unfit = _unfit(health)
    if unfit and drain.state == "standing" and isinstance(event, Booted) and event.previous != event.at.boot:
        # Schedulers resume a node after a reboot; what a reboot did not mend still wants its drain.
        return _owe_again(health, drain, event)
    if set(unfit) - set(drain.covered):
        match drain.state:
            case "overridden" if worst:
                return _new(health, *worst, event, settings)
            case "standing" | "refused" | "held":
                return _owe_again(health, drain, event)
            case "owed" | "foreign":
                drain = msgspec.structs.replace(drain, covered=unfit)
    if drain.state == "releasing":
        # A fault overtakes a release that is not through yet, whoever asked for it.
        kept = msgspec.structs.replace(drain, by="gpuguard")
        return _owe_again(health, kept, event) if unfit else (drain, [])
    if drain.by != "gpuguard":
        return drain, []
    if worst is None:
        return _let_go(health, drain, event, settings)
    if drain.state == "owed" and not drain.pending:
        return _owe_again(health, drain, event)  # a person's pause is over
    return _retell(health, drain, *worst, event, settings) if drain.state == "standing" else (drain, [])


def _new(
    health: Health, subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings
) -> tuple[Drain, list[Owed]]:
    token = _token(event, subject.id, health.tokens)
    drain = Drain(
        token=token, subject=subject.id, code=standing.finding.code, reason=_reason(token, subject, standing),
        since=event.at, because=standing.because, dry_run=settings.dry_run, covered=_unfit(health),
        severe=standing.finding.severity == "critical",
    )  # fmt: skip
    return _owe(drain, "drain", event)


def _act_for_real(health: Health, drain: Drain, event: AnyEvent, settings: Settings) -> Settled:
    """The site switched from watching to acting: what is still wanted is owed for real, the rest was only talk."""
    if drain.by == "gpuguard" and top(health) is not None:
        return _owe_again(health, msgspec.structs.replace(drain, dry_run=False), event, gone=_cancel(drain, event))
    left, owed = settle(msgspec.structs.replace(health, drain=None), event, settings)
    return left, [*_cancel(drain, event), *owed]


def _try_again(health: Health, drain: Drain, event: AnyEvent, settings: Settings) -> Settled:
    """Somebody may have mended what the target said no to: a restart is the way to say so."""
    released = drain.pending.startswith("release:")
    if _unfit(health) or (drain.by != "gpuguard" and not released):
        return _owe_again(health, drain, event)
    if released and drain.by != "gpuguard":
        return _release(drain, event)
    if drain.written is not None:
        drain = msgspec.structs.replace(drain, state="standing", writes=drain.writes + 1, pending="")
    return _let_go(health, drain, event, settings)


def _owe_again(
    health: Health, drain: Drain, event: AnyEvent, *, gone: list[Owed] | None = None
) -> tuple[Drain, list[Owed]]:
    """The same drain is owed once more, under a key of its own."""
    gone = _cancel(drain, event) if gone is None else gone
    again = msgspec.structs.replace(
        _named_anew(health, drain), state="owed", writes=drain.writes + 1, covered=_unfit(health), kept=""
    )
    again, owed = _owe(again, "drain", event)
    return again, [*gone, *owed]


def _named_anew(health: Health, drain: Drain) -> Drain:
    """A drain that was never written names what decides now; of one that was, people have read the reason."""
    worst = top(health)
    if worst is None or drain.written is not None or drain.by != "gpuguard" or drain.code in ("operator", "late"):
        return drain
    subject, standing = worst
    return msgspec.structs.replace(
        drain, subject=subject.id, code=standing.finding.code, reason=_reason(drain.token, subject, standing),
        because=standing.because, severe=standing.finding.severity == "critical",
    )  # fmt: skip


def _hands_off(drain: Drain | None, event: AnyEvent) -> Settled:
    """Nothing is owed while a person has the node. What was on its way may have arrived: so the drain stays, without
    anything pending, and what follows is decided when the person's time is over."""
    if drain is None or drain.by != "gpuguard" or not drain.pending:
        return drain, []
    match drain.state:
        case "owed" | "foreign":
            state: DrainState = "owed"
        case "releasing" | "standing":
            state = "standing"
        case _:
            return drain, []
    gone = _cancel(drain, event)
    return msgspec.structs.replace(drain, state=state, pending="", writes=drain.writes + 1), gone


def _let_go(health: Health, drain: Drain, event: AnyEvent, settings: Settings) -> Settled:
    if drain.state in ("overridden", "foreign") or (drain.state in ("refused", "held") and drain.written is None):
        # Nothing of ours stands on the node, and nothing is wanted any more.
        return None, _cancel(drain, event)
    if any(subject.state == "returning" and subject.tested is None for subject in health.subjects.values()):
        return drain, []
    if not settings.release or drain.state == "refused" or drain.kept:
        # It stands, and a person or a restart is needed to lift it.
        return drain, []
    if released_today(health, event) >= settings.releases_a_day:
        return msgspec.structs.replace(drain, kept=ENOUGH_RELEASES.format(settings.releases_a_day)), []
    # Whether an owed drain was written is not known until its answer comes, so it is released all the same: a
    # release touches nothing but our own token.
    return _release(drain, event)


def released_today(health: Health, event: AnyEvent) -> int:
    """How often the node was given back by itself within the last 24 h."""
    spans = (seconds_between(at, event.at) for at in health.released)
    return sum(span is not None and span < DAY for span in spans)


def _release(drain: Drain, event: AnyEvent) -> tuple[Drain, list[Owed]]:
    """The drain is to be lifted, and what was still owed for it is owed no longer."""
    gone = _cancel(drain, event)
    writes = drain.writes + 1 if drain.state == "refused" else drain.writes
    again = msgspec.structs.replace(drain, state="releasing", writes=writes, kept="")
    releasing, owed = _owe(again, "release", event)
    return releasing, [*gone, *owed]


def _retell(
    health: Health, drain: Drain, subject: SubjectHealth, standing: Standing, event: AnyEvent, settings: Settings
) -> tuple[Drain, list[Owed]]:
    """The reason names what asks for most now, if that is another and the last change is long enough ago."""
    holder = health.subjects.get(drain.subject)
    held = next((s for s in deciding(holder) if s.finding.code == drain.code), None) if holder else None
    # The driver's own word raises the remedy; as a reason the fault it speaks of says more.
    if held and (remedy_rank(standing.remedy) <= remedy_rank(held.remedy) or standing.finding.code in COMPANIONS):
        return drain, []
    elapsed = seconds_between(drain.told, event.at) if drain.told is not None else None
    if elapsed is not None and elapsed < settings.reason_every:
        return drain, []
    text = _reason(drain.token, subject, standing)
    told = msgspec.structs.replace(
        drain, subject=subject.id, code=standing.finding.code, reason=text, because=standing.because, told=event.at,
        severe=drain.severe or standing.finding.severity == "critical",
    )  # fmt: skip
    if text == drain.reason:
        return told, []
    gone = _cancel(drain, event)
    told, owed = _owe(msgspec.structs.replace(told, writes=drain.writes + 1), "update_reason", event)
    return told, [*gone, *owed]


# --- what targets answer ---------------------------------------------------------------------------------------------


def after_outcome(drain: Drain | None, outcome: ActionOutcome, verb: str, token: TokenId) -> Settled:
    """The drain after the target answered, and what is owed because of the answer."""
    if drain is None or drain.token != token:
        if verb == "drain" and outcome.result == "done" and not outcome.key.endswith(DRY):
            # It was written after it was no longer wanted.
            written = int(outcome.key.split(":")[2])
            late = Drain(
                token=token, subject=NODE, code="late", reason="", since=outcome.at, dry_run=False,
                writes=AGAIN + written,
            )  # fmt: skip
            return drain, _owe(late, "release", outcome)[1]
        return drain, []
    answered = _answered(drain, outcome, verb)
    if answered is not None and answered.state == "overridden" and drain.state != "overridden":
        # It was taken away: what is left of ours there is ours to take away, and the fleet's book is to know.
        answered = msgspec.structs.replace(answered, writes=answered.writes + 1)
        return answered, _owe(answered, "release", outcome)[1]
    return answered, []


def _answered(drain: Drain, outcome: ActionOutcome, verb: str) -> Drain | None:
    # A drain that meets somebody else's is kept and sent again (runtime/loop); anything else but "later" ends it.
    waits = outcome.result == "deferred" or (outcome.result == "foreign" and verb == "drain")
    current = outcome.key == drain.pending
    over = current and not waits and outcome.result not in ("refused", "held")
    told = msgspec.structs.replace(
        drain, message=outcome.message, node_state=outcome.node_state or drain.node_state,
        pending="" if over else drain.pending,
    )  # fmt: skip
    told = drain if told == drain else told
    if (verb == "release") is not (drain.state == "releasing"):
        return told  # about what was overtaken
    seen = verb == "update_reason" and drain.state == "standing" and outcome.key.endswith(SEEN)
    if outcome.result in ("foreign", "held", "refused") and not (current or seen):
        return told  # the same
    stands = msgspec.structs.replace(told, state="standing", written=outcome.at, writes=max(drain.writes, 1))
    refused = msgspec.structs.replace(told, state="refused")
    match verb, outcome.result:
        case "release", "done" | "foreign":
            # Foreign: somebody else holds the node now, so there is nothing of ours to give back.
            return None
        case (("drain" | "adopt"), "done") if outcome.node_state == DRY_TARGET and not drain.dry_run:
            # Set to act, with a target that only talks: nothing stands, and a person must say which it is to be.
            return refused
        case (("drain" | "adopt"), "done"):
            return msgspec.structs.replace(stands, told=drain.told or outcome.at)
        case "drain", "foreign":
            return msgspec.structs.replace(told, state="foreign")
        case "drain", "held":
            return msgspec.structs.replace(told, state="held")
        case "adopt", "foreign" | "refused":
            # There was nothing to take over; what gpuguard itself wants is owed under a token of its own.
            return None
        case "update_reason", "done":
            return stands
        case "update_reason", "foreign":
            return msgspec.structs.replace(told, state="overridden")
        case "update_reason", "refused":
            return told  # the drain itself stands; only its text is old
        case _, "refused":
            return refused
    return told


# --- what people wish ------------------------------------------------------------------------------------------------


class Obeyed(msgspec.Struct, frozen=True, kw_only=True):
    """What a person's wish led to: the drain, what is owed, a sentence for the person, whether the person gave the
    node back as it is, and whether somebody keeps gpuguard's hands off it.
    """

    drain: Drain | None
    answer: str
    owed: tuple[Owed, ...] = ()
    accepted: bool = False
    pause: Pause | None = None


def obey(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    """What follows from a person's wish."""
    match asked.wish:
        case "pause" | "unpause":
            return _paused(health, asked)
        case "drain":
            obeyed = _persons_drain(health, asked, settings)
        case "adopt" if asked.token is not None:
            obeyed = _adopted(health, asked, asked.token, settings)
        case "release" | "adopt":
            obeyed = _persons_release(health, asked, settings)
        case unknown:
            assert_never(unknown)
    return msgspec.structs.replace(obeyed, pause=health.pause)


def _paused(health: Health, asked: OperatorAsked) -> Obeyed:
    if asked.wish == "unpause":
        was = health.pause
        answer = f"the pause of {was.by} is over" if was else "there was no pause"
        return Obeyed(drain=health.drain, answer=answer)
    pause = Pause(by=asked.by, reason=asked.reason, since=asked.at, seconds=asked.seconds or DAY)
    drain, gone = _hands_off(health.drain, asked)
    answer = f"gpuguard keeps its hands off this node for {pause.seconds / 3600:.1f} h"
    if drain is not None and drain.state in ("standing", "releasing"):
        answer += f"; the drain {drain.token} stays as it is until then"
    return Obeyed(drain=drain, owed=tuple(gone), answer=answer, pause=pause)


def _persons_drain(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    drain = health.drain
    if drain is not None and drain.state == "owed" and drain.by == "gpuguard":
        # Under a key of its own, as a person's: the fleet's budget does not limit it, whatever it was asked before.
        owed_now, owed = _owe_again(health, msgspec.structs.replace(drain, by=asked.by), asked)
        answer = f"the drain {drain.token} is owed as {asked.by}'s; from now on only a person gives it back"
        return Obeyed(drain=owed_now, owed=tuple(owed), answer=answer)
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
    if drain is not None and drain.state == "held":
        owed_now, owed = _owe_again(health, msgspec.structs.replace(drain, by=asked.by), asked)
        answer = f"the drain {drain.token}, which the fleet's budget held, is owed as {asked.by}'s"
        return Obeyed(drain=owed_now, owed=tuple(owed), answer=answer)
    if drain is not None and (drain.state == "releasing" or (drain.state == "refused" and drain.written is not None)):
        # Ours still stands on the node: it is kept, under its own token.
        kept, owed = _owe_again(health, msgspec.structs.replace(drain, by=asked.by), asked)
        return Obeyed(drain=kept, owed=tuple(owed), answer=f"the drain {drain.token} is kept, and owed anew")
    token = _token(asked, NODE, health.tokens)
    wanted = Drain(
        token=token, subject=NODE, code="operator", reason=make_reason(token, "node", "operator", asked.by),
        since=asked.at, by=asked.by, dry_run=settings.dry_run, because=(asked.id,), covered=_unfit(health),
    )  # fmt: skip
    gone = _cancel(drain, asked) if drain is not None else []
    wanted, owed = _owe(wanted, "drain", asked)
    return Obeyed(drain=wanted, owed=(*gone, *owed), answer=f"a drain is owed as {token}")


def _adopted(health: Health, asked: OperatorAsked, token: TokenId, settings: Settings) -> Obeyed:
    drain = health.drain
    if drain is not None and drain.state in ("owed", "standing", "releasing"):
        if drain.token != token:
            answer = f"refused: gpuguard's own drain {drain.token} stands or is owed; give that back first"
            return Obeyed(drain=drain, answer=answer)
        return _persons_drain(health, asked, settings)
    known = token in health.tokens.used
    adopted = Drain(
        token=token, subject=NODE, code="operator", reason=make_reason(token, "node", "adopted", asked.by),
        since=asked.at, by=asked.by, dry_run=settings.dry_run, because=(asked.id,), covered=_unfit(health),
        writes=AGAIN + int(1000 * (asked.at.utc or asked.at.mono)) if known else 0,
    )  # fmt: skip
    gone = _cancel(drain, asked) if drain is not None else []
    adopted, owed = _owe(adopted, "adopt", asked)
    return Obeyed(drain=adopted, owed=(*gone, *owed), answer=f"the drain {token} is to be taken over")


def _persons_release(health: Health, asked: OperatorAsked, settings: Settings) -> Obeyed:
    drain = health.drain
    if drain is None:
        return Obeyed(drain=None, answer="no drain of gpuguard's stands on this node", accepted=True)
    unfit = [s.id for s in health.subjects.values() if s.state == "unfit"]
    if unfit:
        answer = f"refused: {', '.join(unfit)} unfit; `gpuguard why` tells why, `gpuguard ack` clears it"
        if drain.by != "gpuguard":
            answer += "; once nothing is, gpuguard gives the node back by itself"
        return Obeyed(drain=msgspec.structs.replace(drain, by="gpuguard"), answer=answer)
    if settings.dry_run and not drain.dry_run:
        answer = 'refused: the drain is real and this node is set to observe; set [policy] mode = "drain" first'
        return Obeyed(drain=drain, answer=answer)
    if drain.state == "releasing":
        return Obeyed(drain=drain, answer=f"a release of {drain.token} is owed already", accepted=True)
    # As the person's: how often gpuguard gives it back by itself is another thing.
    releasing, owed = _release(msgspec.structs.replace(drain, by=asked.by), asked)
    return Obeyed(drain=releasing, owed=tuple(owed), answer=f"a release of {drain.token} is owed", accepted=True)


# --- words and keys --------------------------------------------------------------------------------------------------


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


def _owe(drain: Drain, verb: DrainVerb, event: AnyEvent) -> tuple[Drain, list[Owed]]:
    key = f"{verb}:{drain.token}:{drain.writes}" + (DRY if drain.dry_run else "")
    action = Action(
        key=key, verb=verb, token=drain.token, subject=drain.subject, reason=drain.reason, at=event.at, by=drain.by,
        code=drain.code, severe=drain.severe, known=drain.written is not None,
    )  # fmt: skip
    return msgspec.structs.replace(drain, pending=key), [Owed(action=action)]


def _cancel(drain: Drain, event: AnyEvent) -> list[Owed]:
    """What is still owed for the drain is owed no longer."""
    if not drain.pending or drain.state in ("refused", "held"):
        return []
    verb: DrainVerb = msgspec.convert(drain.pending.partition(":")[0], DrainVerb)
    action = Action(
        key=drain.pending, verb=verb, token=drain.token, subject=drain.subject, reason=drain.reason, at=event.at
    )
    return [Owed(action=action, cancelled=True)]
