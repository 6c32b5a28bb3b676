"""One message of a rank, as `gpuguard.progress.wire` describes it, understood and found plausible."""

from typing import Annotated, Literal, get_args

import msgspec

from gpuguard.errors import GpuguardError
from gpuguard.progress import wire

# Why a message, or what came with it, was not taken. `flood`: more of one process or user than is listened to;
# `unseen`: its process cannot be found; `foreign_job`, `foreign_rank`: it speaks for what belongs to somebody else;
# `superseded`: a younger process of the same user is this rank; `before_start`: it got on before it was started, so its
# clock is another; `page`: a file came with it that is no page.
Reason = Literal[
    "oversized", "not_understood", "version", "flood", "unseen", "foreign_job", "foreign_rank", "superseded",
    "replayed", "future", "before_start", "too_many", "page",
]  # fmt: skip
REASONS: tuple[Reason, ...] = get_args(Reason)

AHEAD = 1.0  # seconds that a time may lie ahead: processors of one machine agree far better
_RANKS = 2**24
_TOP = 2**63 - 1
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
_Step = Annotated[int, msgspec.Meta(ge=-_TOP, le=_TOP)]
_Time = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All that one message can say; what it left out is None. Keys that are not known here are let be.

    Units   as in progress/wire.py
    """

    v: int
    rank: Annotated[int, msgspec.Meta(ge=0, lt=_RANKS)]
    n: Annotated[int, msgspec.Meta(ge=0, le=_TOP)] | None = None
    job: str | None = None
    world: Annotated[int, msgspec.Meta(ge=1, le=_RANKS)] | None = None
    restart: _Count | None = None
    host: str | None = None
    pid: _Count | None = None
    step: _Step | None = None
    phase: str | None = None
    since: _Time | None = None
    at: _Time | None = None
    saved: _Step | None = None
    saved_at: _Time | None = None
    blocked: _Time | None = None
    holds: str | None = None
    loss: float | str | None = None
    flat: Annotated[int, msgspec.Meta(ge=0, le=_TOP)] | None = None
    done: bool | None = None
    preempt: Annotated[int, msgspec.Meta(ge=0, le=3)] | None = None
    devices: str | None = None
    flight: str | None = None
    via: str | None = None


class _Versioned(msgspec.Struct, frozen=True):
    v: int


class Refused(GpuguardError):
    """The message is not taken. `reason` is for the count."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


_MESSAGE = msgspec.json.Decoder(Message)
_VERSION = msgspec.json.Decoder(_Versioned)
NO_NUMBERS = ("nan", "inf", "-inf")


def understand(data: bytes) -> Message:
    """The message that a datagram holds.

    Raises  Refused: oversized, not_understood, version
    """
    if len(data) > wire.MESSAGE_LIMIT:
        raise Refused("oversized")
    try:
        message = _MESSAGE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("version" if _is_of_another_version(data) else "not_understood") from error
    if message.v != wire.VERSION:
        raise Refused("version")
    if isinstance(message.loss, str) and message.loss.lower() not in NO_NUMBERS:
        raise Refused("not_understood")
    return message


def _is_of_another_version(data: bytes) -> bool:
    """Another version may mean other things by the same keys: all that is read of it is its number."""
    try:
        return _VERSION.decode(data).v != wire.VERSION
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def believe(at: float | None, since: float | None, saved_at: float | None, *, now: float, started: float) -> None:
    """The times can be those of a process that was started at `started` and has got on since.

    A checkpoint may be older than the process: it goes on from it.
    Raises  Refused: future, before_start
    """
    if max(at or 0.0, since or 0.0, saved_at or 0.0) > now + AHEAD:
        raise Refused("future")
    if at is not None and at < started - AHEAD:
        raise Refused("before_start")


def shown(text: str) -> str:
    """The text without what could break a terminal, a label or a log."""
    return text if text.isascii() and text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
