"""One file a form in which notices are told: what a webhook of that kind takes.

To add one, write `notices/<name>.py` with a frozen dataclass `Settings`, which has at least the four settings of
`Webhook`, and `render(notice, settings, utc)`, which returns a Message; `[notify.<name>]` fills its settings, and
`runtime/telling` finds it by its file name and carries what it renders. Rendering is pure: the moment at which a notice
is told, `utc` (seconds since 1970), comes from outside.
Names in a notice (jobs, processes, schedulers' words) are anybody's: `clean` takes out what could move a cursor, turn
the direction of a text or begin a line; what a form's own characters mean, the form escapes.
"""

from datetime import UTC, datetime
from typing import Protocol

import msgspec

from gpuguard.model.instants import Instant
from gpuguard.model.notices import Notice, Urgency
from gpuguard.model.units import Seconds, Secret

LONGEST = 2000  # characters of one field; kernel lines of a page are cut at 400 already


class Webhook(Protocol):
    """The settings that every form has: where notices go, which, and how often what still stands is told again."""

    @property
    def url(self) -> Secret: ...

    @property
    def url_file(self) -> str: ...

    @property
    def at_least(self) -> Urgency: ...

    @property
    def repeat(self) -> Seconds: ...


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent by POST. `path` is added to the address, unless that ends with it already."""

    body: bytes
    headers: dict[str, str]
    path: str = ""


def clean(text: str, limit: int = LONGEST) -> str:
    """The text on one line, no longer than that; what cannot be printed is written out."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text[: limit + 1]
    )
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def stamp(at: Instant | float | None) -> str | None:
    """The moment as RFC 3339 has it, None where there is no date.

    Shape   2026-01-31T12:00:00.123Z
    """
    utc = at.utc if isinstance(at, Instant) else at
    if utc is None:
        return None
    return datetime.fromtimestamp(utc, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plainly(notice: Notice) -> dict[str, object]:
    """The notice as the JSON object that docs/notices.md promises."""
    return {
        "version": 1,
        "id": notice.id,
        "node": clean(notice.node),
        "event": notice.event,
        "status": "standing" if notice.until is None else "over",
        "severity": notice.urgency,
        "subject": clean(notice.subject),
        "mark": clean(notice.mark),
        "code": clean(notice.code),
        "token": notice.token,
        "title": clean(notice.title),
        "text": clean(notice.text),
        "next_step": clean(notice.next_step),
        "since": stamp(notice.since),
        "until": stamp(notice.until),
        "facts": {clean(name): clean(value) for name, value in notice.facts.items()},
        "because": [clean(event) for event in notice.because],
        "bundle": notice.bundle or None,
    }
