"""What must be done outside, and what a target answers."""

from typing import Literal

import msgspec

from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.model.instants import Instant

Verb = Literal["drain", "update_reason", "release", "adopt"]
Result = Literal["done", "foreign", "deferred", "refused"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing owed to the outside world; sending it twice is harmless because of `key`.

    `reason` is the full text for the scheduler, at most 60 printable ASCII characters, and begins with
    `gpuguard:<token>`. `previous` is the reason that an `update_reason` or a `release` expects to find: those verbs
    write only over a reason that starts with `gpuguard:<token> `.
    """

    key: str
    verb: Verb
    token: TokenId
    subject: SubjectId
    reason: str
    at: Instant


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
