"""Values as columns, and back.

Text from a kernel log may hold anything, lone surrogates and NUL too; what UTF-8 cannot carry is written as
`\\udcXX` instead of being refused.
"""

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.actions import Action, Verb
from gpuguard.model.events import LogLine
from gpuguard.model.ids import BootId, EventId, SubjectId
from gpuguard.model.instants import Instant
from gpuguard.model.story import OWED_STATES, DetailScalar, OwedAction, OwedState, StoryEntry

Column = str | int | float | bytes | None
Row = tuple[Column, ...]

# A report of the kernel is at most some ten records of 1 KiB; more than this is not one report.
RAW_LIMIT = 16 * 1024

STORY_COLUMNS = "at_boot, at_mono, at_utc, at_estimated, kind, subject, event_id, cause, text, detail"
ACTION_COLUMNS = "state, tries, not_before, last_message, body"


class UnknownVerb(NotUnderstood):
    """An action of a version that knows more; nothing says that it is damaged. `ended` when nobody owes it any more."""

    def __init__(self, verb: str, body: str, *, ended: bool) -> None:
        super().__init__(f"a stored action has the verb {verb!a}, which this gpuguard does not know", body)
        self.ended = ended


class _Named(msgspec.Struct):
    verb: str


_encoder = msgspec.json.Encoder()
_action_decoder = msgspec.json.Decoder(Action)
_instant_decoder = msgspec.json.Decoder(Instant)
_event_decoder = msgspec.json.Decoder(LogLine)
_detail_decoder = msgspec.json.Decoder(dict[str, DetailScalar])


def clean(text: str) -> str:
    """The same text in a form UTF-8 can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def as_text(stored: bytes) -> str:
    """The text that was stored; damage shows as replacement characters and is judged where the value is decoded."""
    return stored.decode(errors="replace")


def encode(value: object) -> str:
    """JSON text of a model value; it decodes to the same value, less what UTF-8 cannot carry."""
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_cleaned(msgspec.to_builtins(value))).decode()


def _cleaned(value: object) -> object:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(str(key)): _cleaned(item) for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case _:
            return value


def story_row(entry: StoryEntry) -> Row:
    """The columns of STORY_COLUMNS."""
    return (
        entry.at.boot,
        entry.at.mono,
        entry.at.utc,
        int(entry.at.estimated),
        entry.kind,
        clean(entry.subject),
        None if entry.event_id is None else clean(entry.event_id),
        None if entry.cause is None else clean(entry.cause),
        clean(entry.text),
        encode(entry.detail),
    )


def story_entry(row: Row) -> StoryEntry:
    """The entry that STORY_COLUMNS hold.

    Raises  NotUnderstood
    """
    boot, mono, utc, estimated, kind, subject, event_id, cause, text, detail = row
    try:
        return StoryEntry(
            at=Instant(boot=BootId(str(boot)), mono=_number(mono), utc=_optional(utc), estimated=bool(estimated)),
            kind=str(kind),
            subject=SubjectId(str(subject)),
            text=str(text),
            event_id=None if event_id is None else EventId(str(event_id)),
            cause=None if cause is None else str(cause),
            detail=_detail_decoder.decode(str(detail)),
        )
    except (ValueError, TypeError) as error:
        raise NotUnderstood(f"a story entry of kind {kind!r} is damaged ({error})", str(row)) from error


def event_row(event: LogLine) -> Row:
    """The columns event_id, at_utc, body; a raw text beyond RAW_LIMIT characters is cut, and says so."""
    if len(event.raw) > RAW_LIMIT:
        cut = f"{event.raw[:RAW_LIMIT]} [{len(event.raw) - RAW_LIMIT} more characters]"
        event = msgspec.structs.replace(event, raw=cut)
    return clean(event.id), event.at.utc, encode(event)


def log_line(body: Column) -> LogLine:
    """The event that a body holds.

    Raises  NotUnderstood
    """
    try:
        return _event_decoder.decode(str(body))
    except ValueError as error:
        raise NotUnderstood(f"a stored event is damaged ({error})", str(body)) from error


def action_row(owed: OwedAction) -> Row:
    """The columns of ACTION_COLUMNS."""
    return (
        owed.state,
        owed.tries,
        None if owed.not_before is None else encode(owed.not_before),
        clean(owed.message),
        encode(owed.action),
    )


def owed_action(row: Row) -> OwedAction:
    """The action that ACTION_COLUMNS hold.

    Raises  NotUnderstood; UnknownVerb
    """
    state, tries, due, message, body = row
    try:
        return OwedAction(
            action=_action_decoder.decode(str(body)),
            state=msgspec.convert(state, OwedState),
            tries=msgspec.convert(tries, int),
            not_before=None if due is None else _instant_decoder.decode(str(due)),
            message=str(message),
        )
    except (ValueError, TypeError) as error:
        if (verb := _unknown_verb(body)) is not None:
            raise UnknownVerb(verb, str(body), ended=state in OWED_STATES and state != "owed") from error
        raise NotUnderstood(f"a stored action is damaged ({error})", str(row)) from error


def _unknown_verb(body: Column) -> str | None:
    try:
        verb = msgspec.json.decode(str(body), type=_Named).verb
    except (ValueError, RecursionError):
        return None
    try:
        msgspec.convert(verb, Verb)
    except msgspec.ValidationError:
        return verb
    return None


def _number(value: Column) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise ValueError(f"not a number: {value!r}")


def _optional(value: Column) -> float | None:
    return None if value is None else _number(value)
