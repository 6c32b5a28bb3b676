"""What must be done outside, and what a target answers."""

from typing import Literal

import msgspec

from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.model.instants import Instant

# About the node's one drain; who may write it is for custody/.
DrainVerb = Literal["drain", "update_reason", "release", "adopt"]
# About one job, and about one process whose job is over.
JobVerb = Literal["requeue", "reclaim"]
# What is done to a node, or to a GPU of it, while gpuguard's drain stands on it: the rungs of the way back.
RemedyVerb = Literal["evict", "test", "reset", "reboot"]
ErrandVerb = JobVerb | RemedyVerb
Verb = DrainVerb | JobVerb | RemedyVerb
# The word by which the hand of a reset asks that gpuguard's own look at the driver let go of the GPUs for a while.
LET_GO = "let_go"
# How the key of an action ends that was owed while nothing real may be done (mode observe): it is only told, whoever
# gets it. And the state word of whoever only tells.
DRY = ":dry"
DRY_TARGET = "dry_run"
Result = Literal["done", "foreign", "deferred", "refused", "held", "failed"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing owed to the outside world; sending it twice is harmless because of `key`.

    `reason` is the full text for the scheduler, at most 60 printable ASCII characters, and begins with
    `gpuguard:<token>`. `previous` is the reason that an `update_reason` or a `release` expects to find: those verbs
    write only over a reason that starts with `gpuguard:<token> `.
    A `requeue` is of the job in `subject` as long as its keeper started it anew no more than `restarts` times. A
    `reclaim` is of the process `pid` that was started `started` seconds after boot, which holds memory of the GPU in
    `subject`. A `test` and a `reset` are of the GPU in `subject`, or of all GPUs where that is `node`; an `evict` and a
    `reboot` are of the node. These four are performed only while the node's drain `drain` is gpuguard's and stands; a
    `test` without one is a second look, which asks the driver and does nothing else.
    None names a program, a file or another node.
    `by` is who wants it: gpuguard, whose drains the fleet's budget counts and limits, or a person, whose drains it only
    counts. `known` says that its target once told that this drain stands: then it is no new one, whatever its date.
    `code` is the finding it rests on, by which a common cause is known; `severe` whether what runs there
    should not stay.
    """

    key: str
    verb: Verb
    token: TokenId
    subject: SubjectId
    reason: str
    at: Instant
    restarts: int | None = None
    pid: int | None = None
    started: float | None = None
    by: str = "gpuguard"
    known: bool = False
    code: str = ""
    severe: bool = True
    drain: TokenId | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an action; the fields are those of the event `ActionOutcome`.

    `result`: done (it is so now, whether or not a write was needed; a test passed), foreign (somebody else holds the
    node; nothing was written), deferred (try again after `retry_after` seconds), refused (will not work without a
    person), held (the fleet's budget or a common cause forbids it: nothing stands, a person is to decide), failed (a
    test found a fault; a reset was done and did not come through).
    `node_state` is the state word as the target printed it, before anything was written; for a reset that waits for
    gpuguard's own look at the driver, or is under way, it is LET_GO.
    """

    result: Result
    message: str
    retry_after: float | None = None
    node_state: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The core asks sources for a second witness; the answer comes back as an ordinary event.

    `code` and `raw` say what was seen and by which `source`, so that a second log source can look for the same line.
    """

    subject: SubjectId
    code: str
    source: str
    raw: str
    at: Instant
