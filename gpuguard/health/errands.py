"""What is owed for jobs and processes, beside the node's drain: jobs started anew, leftover processes ended.

Theory. An errand is memory of one thing that may be done more than once: how often it was owed, the one action that is
pending, and what came of it. It is level, as the drain is: each decision looks at what stands now, so what went away
cancels what is still owed for it, and an old event replayed does nothing. Only a number that grows makes a new key, so
that an action sent twice, by a crash between the world and the disk, is the same action.
What a target refused needs a person: it is asked again after a restart of the agent. What was owed while nothing real
could be done (mode observe) counts for nothing once something can.
`restarts` and `reclaims` say when one is due.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from gpuguard.custody.token import make_reason
from gpuguard.model.actions import DRY, DRY_TARGET, Action, ErrandVerb, Result
from gpuguard.model.events import ActionOutcome, AnyEvent, Booted
from gpuguard.model.health import Drain, Owed
from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.model.instants import Instant, seconds_between

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Of 65,536 tokens at most 1,024 are used: as many that fail have a chance of 1 in 10 ** 28.
SALTS = 16


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What was owed for one job, or one process. `about` names it for all time, `subject` is whom the story is about.

    `since` is when it was first wanted; `owed` when it was each time, oldest first; `number` how often ever. `pending`
    is the action that is owed now. `came` is what the target answered last, `message` in its words, `ended` when.
    `against` is the job's count of restarts that the last one was owed for. `spent` says that it is due, and was tried
    as often as it may: the rest is a person's.
    """

    verb: ErrandVerb
    about: str
    subject: SubjectId
    since: Instant
    owed: tuple[Instant, ...] = ()
    number: int = 0
    pending: Action | None = None
    came: Result | None = None
    message: str = ""
    ended: Instant | None = None
    dry: bool = False
    against: int | None = None
    spent: bool = False


Wanted = Literal["keep", "cancel", "drop"]
# By verb and what it is about.
Errands = dict[str, Errand]
Settled = tuple[Errands, list[Owed]]


def named(verb: ErrandVerb, about: str) -> str:
    """The key of an errand."""
    return f"{verb}/{about}"


def owe(
    errand: Errand, event: AnyEvent, used: Iterable[TokenId], words: tuple[str, str, str], *, dry: bool,
    restarts: int | None = None, pid: int | None = None, started: float | None = None,
    drain: TokenId | None = None,
) -> tuple[Errand, Owed]:  # fmt: skip
    """It is owed once more, as an action of its own. `words` are those of the reason."""
    number = errand.number + 1
    token = _token(f"{errand.verb}|{errand.about}|{number}|{event.at.boot}|{event.id}", frozenset(used))
    action = Action(
        key=f"{errand.verb}:{token}:{number}" + (DRY if dry else ""), verb=errand.verb, token=token,
        subject=errand.subject, reason=make_reason(token, *words), at=event.at, restarts=restarts, pid=pid,
        started=started, drain=drain, code=words[2],
    )  # fmt: skip
    after = msgspec.structs.replace(
        errand, owed=(*errand.owed, event.at), number=number, pending=action, dry=dry, against=restarts, came=None,
        message="", ended=None,
    )  # fmt: skip
    return after, Owed(action=action)


def answered(errands: Errands, event: ActionOutcome) -> Errands:
    """The errands after a target answered."""
    for name, errand in errands.items():
        if errand.pending is None or errand.pending.key != event.key:
            continue
        if event.result == "deferred":
            # Kept in order to tell only what is new; how long it takes is not.
            return errands if same_but_for_numbers(errand.message, event.message) else {
                **errands, name: msgspec.structs.replace(errand, message=event.message),
            }  # fmt: skip
        # Set to act, with a target that only talks: nothing was done, and a person must say which it is to be.
        talked = event.result == "done" and event.node_state == DRY_TARGET and not errand.dry
        came: Result = "refused" if talked else event.result
        after = msgspec.structs.replace(errand, pending=None, came=came, message=event.message, ended=event.at)
        return {**errands, name: after}
    return errands


def same_but_for_numbers(one: str, other: str) -> bool:
    """Whether two sentences of a target differ in nothing but how long, how often and how many."""
    return bool(one) and _NUMBER.sub("#", one) == _NUMBER.sub("#", other)


def is_old_answer(event: ActionOutcome, errand: Errand | None, drain: Drain | None) -> bool:
    """Whether a target says "not yet" for the same reason as the last time: that is no news."""
    if event.result not in ("deferred", "foreign"):
        return False
    if errand is not None:
        return same_but_for_numbers(errand.message, event.message)
    return drain is not None and drain.pending == event.key and same_but_for_numbers(drain.message, event.message)


def of_key(errands: Errands, key: str) -> Errand | None:
    """The errand that an action is pending for; None when none is any more."""
    return next((e for e in errands.values() if e.pending is not None and e.pending.key == key), None)


def recent(errand: Errand, now: Instant, within: float) -> tuple[Instant, ...]:
    """When it was owed within so many seconds."""
    return tuple(at for at in errand.owed if (age := seconds_between(at, now)) is not None and age < within)


def looked_at(
    errands: Errands, verb: ErrandVerb, wanted: Callable[[Errand], Wanted], event: AnyEvent, *, dry: bool
) -> tuple[dict[str, Errand], list[Owed]]:
    """The errands after a look at whether each one of this verb is wanted still, and what is owed no longer because of
    it. What was refused is forgiven when the agent is started: somebody may have mended it."""
    left: dict[str, Errand] = {}
    gone: list[Owed] = []
    for name, errand in errands.items():
        if errand.verb != verb:
            left[name] = errand
            continue
        after, said = errand, wanted(errand)
        if said != "keep" or (errand.pending is not None and errand.dry is not dry):
            after, owed = _cancelled(errand)
            gone += owed
        if said != "drop":
            after = _afresh(after, dry=dry)
            left[name] = _forgiven(after) if isinstance(event, Booted) else after
    return left, gone


def _cancelled(errand: Errand) -> tuple[Errand, list[Owed]]:
    """What is pending is owed no longer, and counts as if it had never been."""
    if errand.pending is None:
        return errand, []
    after = msgspec.structs.replace(errand, pending=None, owed=errand.owed[:-1])
    return after, [Owed(action=errand.pending, cancelled=True)]


def _afresh(errand: Errand, *, dry: bool) -> Errand:
    """The same, less what was only talked about where now it can be done, or the reverse."""
    if errand.dry is dry or errand.pending is not None:
        return errand
    return msgspec.structs.replace(errand, owed=(), came=None, message="", ended=None, dry=dry)


def _forgiven(errand: Errand) -> Errand:
    """The same, as if the target had not said no."""
    return errand if errand.came != "refused" else msgspec.structs.replace(errand, came=None, message="")


def _token(cause: str, used: frozenset[TokenId]) -> TokenId:
    """A token that follows from what led to it, and that nothing of this node has had."""
    token = TokenId("")
    for salt in range(SALTS):
        token = TokenId(hashlib.blake2s(f"{cause}|{salt}".encode(), digest_size=2).hexdigest())
        if token not in used:
            break
    return token
