"""Who may write a node's state, and when.

Theory. A scheduler keeps one drain with one reason per node, and whoever writes last wins. Nothing but manners keeps
gpuguard from lifting an administrator's drain, and the field is full of agents that did. The table below is those
manners, one for every scheduler:

1. What a scheduler says of a node is reduced to two words: its *condition* (is anything else going on?) and the
   *holder* of its drain, told by the reason alone.
2. The first drain holds. gpuguard never writes over a foreign reason, nor over an empty one: somebody drained and did
   not say why. Another gpuguard token is foreign too until a person adopts it.
3. Only a settled node is written to. A node that reboots, is powered off, in maintenance, down or silent is already
   out of service or about to change: the wish waits, nothing is lost, the next look decides again.
4. FAIL is a message between other programs (some sites ask for a replacement through it): gpuguard keeps out.
5. No answer, half an answer, or a word this version does not know is never a reason to write.

The table is read from the top; the first row that fits decides. `write` means go ahead; `done` that it is so already,
or that nothing of ours is left to undo; `wait` that the same question makes sense later; `never` that somebody else
has decided.

Source  Slurm 22.05.8 as observed; slurm/slurm.h and common/slurm_protocol_defs.c up to 26.11 for the names of states
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeGuard, get_args

import msgspec

from gpuguard.custody.token import parse_reason
from gpuguard.model.actions import DrainVerb, Outcome, Result, Verb
from gpuguard.model.ids import TokenId
from gpuguard.ports import NodeReport

Condition = Literal[
    "unreadable", "strange", "rebooting", "failing", "maintenance", "powered", "unregistered", "down", "silent",
    "settled",
]  # fmt: skip
Holder = Literal["nobody", "ours", "sibling", "foreign", "unexplained"]
Call = Literal["write", "done", "wait", "never"]

# From the one that rules to the one that yields, where a node is several things at once.
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
HOLDERS: Final[tuple[Holder, ...]] = get_args(Holder)
VERBS: Final[tuple[DrainVerb, ...]] = get_args(DrainVerb)

# What each word of a scheduler says; one that says nothing against a write is `settled`.
Meaning = Literal["drain"] | Condition

SLURM: Final[Mapping[str, Meaning]] = {
    "IDLE": "settled", "MIXED": "settled", "ALLOCATED": "settled",
    "DOWN": "down", "FUTURE": "unregistered", "UNKNOWN": "unregistered",
    "DRAIN": "drain",
    # None of these keeps new work away for a reason that a drain would disturb.
    "COMPLETING": "settled", "RESERVED": "settled", "PLANNED": "settled", "BLOCKED": "settled", "CLOUD": "settled",
    "DYNAMIC_NORM": "settled", "DYNAMIC_FUTURE": "settled", "PERFCTRS": "settled",
    "FAIL": "failing",
    "MAINT": "maintenance", "MAINTENANCE": "maintenance",
    "NOT_RESPONDING": "silent", "NO_RESPOND": "silent",
    "POWER": "powered", "POWER_UP": "powered", "POWER_DOWN": "powered", "POWER_DRAIN": "powered",
    "POWERING_UP": "powered", "POWERING_DOWN": "powered", "POWERED_DOWN": "powered",
    "REBOOT": "rebooting", "REBOOT_REQUESTED": "rebooting", "REBOOT_ISSUED": "rebooting",
    "REBOOT_CANCEL": "rebooting", "CANCEL_REBOOT": "rebooting",
    "INVALID_REG": "unregistered", "EXTERNAL": "unregistered",
    # Words of an update that never stand for long: the node is about to change.
    "UNDRAIN": "silent", "RESUME": "silent",
}  # fmt: skip
SLURM_BASE: Final = frozenset({"IDLE", "MIXED", "ALLOCATED", "DOWN", "FUTURE", "UNKNOWN"})

# The neutral words, for schedulers without states of their own to translate: OPEN, DRAIN and the conditions.
NEUTRAL: Final[Mapping[str, Meaning]] = {
    "OPEN": "settled",
    "DRAIN": "drain",
    **{word.upper(): word for word in CONDITIONS if word not in ("unreadable", "strange")},
}


class _Words(msgspec.Struct, frozen=True):
    meaning: Mapping[str, Meaning]
    base: frozenset[str]


_VOCABULARIES: Final[Mapping[str, _Words]] = {
    "slurm": _Words(SLURM, SLURM_BASE),
    "kubernetes": _Words(NEUTRAL, frozenset({"OPEN", "DOWN", "UNREGISTERED"})),
    "bundled": _Words(NEUTRAL, frozenset({"OPEN", "DOWN", "UNREGISTERED"})),
}


class Cell(msgspec.Struct, frozen=True):
    """What the table says of one wish, and why, in words for a person."""

    call: Call
    why: str


class Row(msgspec.Struct, frozen=True):
    """One line of the table; an empty tuple stands for every condition or every holder."""

    conditions: tuple[Condition, ...]
    holders: tuple[Holder, ...]
    drain: Cell
    update_reason: Cell
    release: Cell
    adopt: Cell


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """May this wish be written now? `retry_after` says when a waiting wish is worth another look.

    Units   retry_after: seconds; None unless the call is `wait`
    """

    call: Call
    why: str
    condition: Condition
    holder: Holder
    retry_after: float | None = None


# How long each condition usually lasts, so that a waiting wish is not asked for in vain.
LOOK_AGAIN: Final[Mapping[Condition, float]] = {
    "unreadable": 5.0,
    "strange": 60.0,  # only a new release of either side changes that
    "rebooting": 30.0,
    "failing": 60.0,
    "maintenance": 60.0,
    "powered": 30.0,
    "unregistered": 10.0,  # for some seconds after its controller was started again
    "down": 10.0,
    "silent": 1.0,  # 0.7 to 1.1 s after a resume on Slurm 22.05.8
    "settled": 5.0,
}


def _wait(why: str) -> Cell:
    return Cell("wait", why)


def _never(why: str) -> Cell:
    return Cell("never", why)


def _done(why: str) -> Cell:
    return Cell("done", why)


_UNREADABLE = _wait("the scheduler gave no usable answer")
_STRANGE = _wait("the scheduler names a state that this gpuguard does not know")
_REBOOTING = _wait("a reboot is under way; whoever asked for it brings the node back")
_FOREIGN = _never("somebody else drained this node")
_UNEXPLAINED = _never("somebody drained this node and left no reason")
_SIBLING = _never("another gpuguard token holds this node; `gpuguard resume --adopt` with that token takes it over")
_OURS = _done("our drain stands")
_NOT_OURS = _done("no drain of ours stands")
_LIFTED = _never("our drain stands no longer; somebody lifted it")
_NOTHING = _never("the node is not drained; there is nothing to adopt")
_FAILING = _never("the node is marked FAIL, a request to another program")
_UNSETTLED = _wait("the node is not settled; nothing is written until it is")

_OUT: Final[tuple[Condition, ...]] = ("maintenance", "powered", "unregistered", "down", "silent")
_ANY: Final = ()
_GO = Cell("write", "the node is settled and the drain is ours to change")
_OPEN = Cell("write", "the node takes work and nobody holds it")

TABLE: Final[tuple[Row, ...]] = (
    #   condition        holder            drain          update_reason  release        adopt
    Row(("unreadable",), _ANY,             _UNREADABLE,   _UNREADABLE,   _UNREADABLE,   _UNREADABLE),
    Row(("strange",),    _ANY,             _STRANGE,      _STRANGE,      _STRANGE,      _STRANGE),
    Row(("rebooting",),  _ANY,             _REBOOTING,    _REBOOTING,    _REBOOTING,    _REBOOTING),
    Row(_ANY,            ("foreign",),     _FOREIGN,      _FOREIGN,      _FOREIGN,      _FOREIGN),
    Row(_ANY,            ("unexplained",), _UNEXPLAINED,  _UNEXPLAINED,  _UNEXPLAINED,  _UNEXPLAINED),
    Row(("settled",),    ("ours",),        _OURS,         _GO,           _GO,           _OURS),
    Row(_ANY,            ("ours",),        _OURS,         _UNSETTLED,    _UNSETTLED,    _OURS),
    Row(_ANY,            ("sibling",),     _SIBLING,      _SIBLING,      _SIBLING,      _SIBLING),
    Row(("failing",),    ("nobody",),      _FAILING,      _LIFTED,       _NOT_OURS,     _NOTHING),
    Row(("settled",),    ("nobody",),      _OPEN,         _LIFTED,       _NOT_OURS,     _NOTHING),
    Row(_OUT,            ("nobody",),      _UNSETTLED,    _LIFTED,       _NOT_OURS,     _NOTHING),
)  # fmt: skip


def about_the_drain(verb: Verb) -> TypeGuard[DrainVerb]:
    """Whether the verb is one of those that the table judges."""
    return verb in VERBS


def judge(report: NodeReport, wish: DrainVerb, token: TokenId) -> Judgement:
    """Whether `wish` may be written over what the scheduler says now, and why."""
    condition, holder = condition_of(report), holder_of(report, token)
    row = _row_for(condition, holder)
    cell: Cell = getattr(row, wish)
    return Judgement(
        call=cell.call,
        why=cell.why,
        condition=condition,
        holder=holder,
        retry_after=LOOK_AGAIN[condition] if cell.call == "wait" else None,
    )


def unwritten(judgement: Judgement, seen: NodeReport, hint: str = "") -> Outcome:
    """The outcome of a wish that the table does not write over what was seen; `hint` is the target's own next step.

    A reason of somebody else's is shown short and printable.
    """
    results: dict[Call, Result] = {"done": "done", "never": "foreign", "wait": "deferred", "write": "deferred"}
    reason = f" with reason {shown(seen)}" if seen.reason else ""
    said = f"{seen.node} is {seen.state}{reason}" if seen.error is None else seen.error
    return Outcome(
        result=results[judgement.call], message=f"{judgement.why}; {said}{hint}", retry_after=judgement.retry_after,
        node_state=seen.state or None,
    )  # fmt: skip


def lifted(token: TokenId, before: NodeReport, after: NodeReport, target: str, hint: str = "") -> Outcome:
    """The outcome of a release, from what `target` showed before and after it; `hint` is what it said to that."""
    saw = f"was {before.state}, is {after.state}"
    if after.ours == token:
        message = f"{target} did not lift our drain: {saw}{hint}"
        return Outcome(result="deferred", message=message, retry_after=10.0, node_state=before.state)
    if after.drained:
        message = f"our drain is lifted, and another one stands: {saw}, reason {shown(after)}"
        return Outcome(result="done", message=message, node_state=before.state)
    return Outcome(result="done", message=f"our drain is lifted: {saw}", node_state=before.state)


def shown(report: NodeReport) -> str:
    """A reason that somebody else wrote, short and printable."""
    return ascii(report.reason[:80])


def condition_of(report: NodeReport) -> Condition:
    """The word of the table for what goes on with the node besides a drain.

    A state needs exactly one base word (slurm.h, node_states); anything else is a form we do not know.
    """
    words = _VOCABULARIES.get(report.target)
    if report.error is not None or not report.flags:
        return "unreadable"
    if words is None or len(words.base.intersection(report.flags)) != 1:
        return "strange"
    said = {words.meaning.get(flag, "strange") for flag in report.flags}
    return next(condition for condition in CONDITIONS if condition in said)


def holder_of(report: NodeReport, token: TokenId) -> Holder:
    """Who holds the node's drain, as far as its reason tells; the report's own `ours` is not taken on trust."""
    if "DRAIN" not in report.flags:
        return "nobody"
    found = parse_reason(report.reason)
    if found is not None:
        return "ours" if found == token else "sibling"
    return "foreign" if report.reason.strip() else "unexplained"


def _row_for(condition: Condition, holder: Holder) -> Row:
    return next(
        row
        for row in TABLE
        if (not row.conditions or condition in row.conditions) and (not row.holders or holder in row.holders)
    )
