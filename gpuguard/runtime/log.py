"""The log on standard error: JSON for machines, words on a terminal.

The event is a constant, the facts are fields. A fact may come from hostile text, so nothing a field holds can make
logging raise, span lines, or reach a terminal as a control character.
"""

import dataclasses
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal, TextIO

import msgspec
import structlog

from gpuguard.ports import Clock

Form = Literal["auto", "json", "terminal"]
Level = Literal["debug", "info", "warning", "error"]

# Fields are for reading; the whole of a 10 MB line is in no log of ours.
TEXT_LIMIT = 2000
ITEM_LIMIT = 50
DEPTH_LIMIT = 5

_NUMBERS: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog(3), as journald reads them
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_PLAIN = "\x1b[0m"


class Sink:
    """Writes lines to a stream, one at a time. `lost` counts those that the stream did not take."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._mutex = threading.Lock()
        self.lost = 0

    def msg(self, line: str) -> None:
        """The line is written, or counted as lost."""
        with self._mutex:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk, a reader that went away, a stream already closed
                self.lost += 1

    debug = info = warning = warn = error = critical = exception = msg


def set_up_log(clock: Clock, *, stream: TextIO | None = None, form: Form = "auto", level: Level = "info") -> Sink:
    """`structlog.get_logger()` writes to `stream` (standard error) from now on, with times of `clock`.

    `auto` means words on a terminal and JSON anywhere else.
    """
    stream = sys.stderr if stream is None else stream
    sink = Sink(stream)
    terminal = form == "terminal" or (form == "auto" and stream.isatty())
    render = _render_words if terminal else _json_renderer(prefixed=not terminal and _is_journal(stream))
    structlog.configure(
        processors=[_stamped(clock), render],
        wrapper_class=structlog.make_filtering_bound_logger(_NUMBERS[level]),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    return sink


# Any: structlog's own types for an event in the making and for what a processor takes.
_Entry = MutableMapping[str, Any]
_Given = Any


def _stamped(clock: Clock) -> Callable[[_Given, str, _Given], _Entry]:
    """A processor: time, level and event first, then the fields as plain values."""

    def stamp(_logger: _Given, method: str, entry: _Given) -> _Entry:
        level = {"exception": "error", "warn": "warning"}.get(method, method)
        fields = {_field(key): plain(value) for key, value in entry.items() if key not in ("event", "exc_info")}
        stamped: _Entry = {"at": _time(clock), "level": level, "event": plain(entry.get("event"))} | fields
        if trace := _trace(entry.get("exc_info")):
            stamped["traceback"] = trace
        return stamped

    return stamp


def _field(key: object) -> str:
    """The field's name; the ones that every line has are not given away."""
    name = clean_text(str(key))
    return f"{name}_" if name in ("at", "level", "traceback") else name


def _time(clock: Clock) -> str | None:
    utc = clock.now().utc
    return None if utc is None else datetime.fromtimestamp(utc, UTC).isoformat(timespec="milliseconds")


def _trace(given: object) -> str | None:
    if isinstance(given, BaseException):
        error: BaseException | None = given
    elif isinstance(given, tuple) and len(given) == 3 and isinstance(given[1], BaseException):
        error = given[1]
    else:
        error = sys.exc_info()[1] if given else None
    return None if error is None else clean_text("".join(traceback.format_exception(error)), 4 * TEXT_LIMIT)


def _json_renderer(*, prefixed: bool) -> Callable[[_Given, str, _Entry], str]:
    """A processor: one JSON object a line; in the journal with the priority in front, which journald takes off."""

    def render(_logger: _Given, _method: str, entry: _Entry) -> str:
        line = msgspec.json.encode(entry).decode()
        return f"<{_PRIORITIES.get(entry['level'], 6)}>{line}" if prefixed else line

    return render


def _render_words(_logger: _Given, _method: str, entry: _Entry) -> str:
    """A processor: one line for people, a traceback below it."""
    trace = entry.pop("traceback", None)
    at, level, event = str(entry.pop("at") or ""), str(entry.pop("level")), str(entry.pop("event"))
    fields = " ".join(f"{_visible(key)}={_word(value)}" for key, value in entry.items())
    colour = _COLOURS.get(level, "")
    line = f"{at[11:19]} {colour}{level:<7}{_PLAIN if colour else ''} {_visible(event):<24} {fields}".rstrip()
    return line if trace is None else f"{line}\n" + "\n".join(f"    {_visible(row)}" for row in trace.splitlines())


def _word(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    shown = _visible(text)
    bare = not isinstance(value, str) or (shown and " " not in shown)
    return shown if bare else f"'{shown}'"


def _visible(text: str) -> str:
    """The text with everything that could move a cursor or start a line written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text as UTF-8 can carry it, cut to `limit` characters with a word on how many are missing."""
    if len(text) > limit:
        text = f"{text[:limit]} [{len(text) - limit} more characters]"
    return text.encode(errors="backslashreplace").decode()


def plain(value: object, depth: int = DEPTH_LIMIT) -> object:
    """The value in what JSON has: whatever cannot be shown safely is shown as the name of its type."""
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(str.__str__(value))
        case int():
            # Beyond 64 bits readers differ, beyond 4,300 digits Python refuses.
            return int(value) if -(2**63) <= value < 2**63 else hex(value)
        case float():
            return float(value) if math.isfinite(value) else str(float(value))
        case bytes() | bytearray():
            return clean_text(bytes(value[: TEXT_LIMIT + 1]).decode(errors="backslashreplace"))
        case PurePath():
            return clean_text(str(value))
        case BaseException():
            return clean_text("".join(traceback.format_exception_only(value)).strip())
    if depth == 0:
        return "..."
    match value:
        case Mapping():
            pairs = list(value.items())[:ITEM_LIMIT]
            return {_key(key): plain(item, depth - 1) for key, item in pairs}
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth - 1) for item in list(value)[:ITEM_LIMIT]]
        case msgspec.Struct():
            return {name: plain(getattr(value, name, None), depth - 1) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name, None), depth - 1) for field in dataclasses.fields(value)}
    return f"<{type(value).__qualname__}>"


def _key(key: object) -> str:
    shown = plain(key, 0)
    return shown if isinstance(shown, str) else str(shown)


def _is_journal(stream: TextIO) -> bool:
    """Whether the stream is the one that systemd connected to the journal.

    Reads   JOURNAL_STREAM
    Shape   device:inode, decimal
    Source  systemd.exec(5)
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
