"""What must be done outside, and what a target answers."""

from typing import Literal

import msgspec

from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.model.instants import Instant

# About the node's one drain; who may write it is for custody/.
DrainVerb = Literal["drain", "update_reason", "release", "adopt"]
# About one job, and about one process whose job is over.
JobVerb = Literal["requeue", "reclaim"]
Verb = DrainVerb | JobVerb
Result = Literal["done", "foreign", "deferred", "refused"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing owed to the outside world; sending it twice is harmless because of `key`.

    `reason` is the full text for the scheduler, at most 60 printable ASCII characters, and begins with
    `gpuguard:<token>`. `previous` is the reason that an `update_reason` or a `release` expects to find: those verbs
    write only over a reason that starts with `gpuguard:<token> `.
    A `requeue` is of the job in `subject` as long as its keeper started it anew no more than `restarts` times. A
    `reclaim` is of the process `pid` that was started `started` seconds after boot, which holds memory of the GPU in
    `subject`. Neither names a program, a file or another node.
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


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an action; the fields are those of the event `ActionOutcome`."""

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
