"""Whether a remedy may be performed now: a test, a reset, a reboot or an eviction, each only under our own drain.

Theory. A drain keeps new work away, and nothing else does. So a remedy rests on three facts, told by the scheduler in
the moment in which it is begun: the drain that stands is the one the wish names; nothing else goes on with the node;
and no work is left on it. Whatever is doubtful waits, whatever is somebody else's is left alone.
"""

from typing import Final, Literal

import msgspec

from gpuguard.custody.ownership import LOOK_AGAIN, condition_of, holder_of
from gpuguard.model.ids import TokenId
from gpuguard.ports import NodeReport

# Words of a scheduler for work that is still there; Kubernetes has none, its pods are asked for by themselves.
AT_WORK: Final = frozenset({"MIXED", "ALLOCATED", "COMPLETING"})
# Jobs end by themselves, in minutes rather than in seconds.
WORK_AGAIN: Final = 60.0


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """May the remedy begin? `retry_after` says when a waiting one is worth another look, and is None otherwise.

    `state` is the scheduler's word for the node, None where it gave no usable answer: then it is silence that is waited
    for, and silence is not waited for for ever.
    Units   retry_after: seconds
    """

    call: Literal["go", "wait", "never"]
    why: str
    retry_after: float | None = None
    state: str | None = None


def standing(report: NodeReport, drain: TokenId, *, idle: bool = True) -> Standing:
    """Whether the drain `drain` stands, with nothing else going on; with `idle`, whether all work has left too."""
    condition, holder = condition_of(report), holder_of(report, drain)
    state = report.state or None if condition != "unreadable" else None
    if condition in ("unreadable", "strange"):
        why = report.error or f"the scheduler's state {report.state!r} is not understood"
        return Standing(call="wait", why=why, retry_after=LOOK_AGAIN[condition], state=state)
    if holder != "ours":
        return Standing(call="never", why=f"our drain {drain} does not stand; the node is {report.state}", state=state)
    if condition != "settled":
        why = f"the node is not settled ({condition})"
        return Standing(call="wait", why=why, retry_after=LOOK_AGAIN[condition], state=state)
    if idle and not AT_WORK.isdisjoint(report.flags):
        why = f"work is still on the node, it is {report.state}"
        return Standing(call="wait", why=why, retry_after=WORK_AGAIN, state=state)
    return Standing(call="go", why=f"our drain {drain} stands and the node is {report.state}", state=state)
