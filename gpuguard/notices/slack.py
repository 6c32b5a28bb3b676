"""Slack's incoming webhooks, and what takes the same (Mattermost, Rocket.Chat, Discord with /slack).

Every word of a notice goes into a plain_text object, so that no name can make a link, a mention or a format; `&`, `<`
and `>` are escaped as Slack wants them everywhere.
Shape   `text` (what a notification shows) and `blocks`: a header of at most 150 characters, sections of at most 3,000,
        at most 10 fields of at most 2,000
Source  Slack's reference of Block Kit: header, section, context; "Formatting text for app surfaces", escaping text
"""

from dataclasses import dataclass, field

import msgspec

from gpuguard.model.notices import Notice, Urgency
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, clean, stamp

HEADER, SECTION, FIELD, FIELDS = 150, 3000, 2000, 10
SIGNS: dict[Urgency, str] = {"page": "PAGE", "warning": "WARNING", "notice": "notice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it goes, and which notices."""

    # The whole address of the incoming webhook, which is a secret; nothing is sent while there is none.
    url: Secret = field(default=Secret(""), repr=False)
    url_file: str = ""  # a file that holds the address, which is read anew each time: better, as it is a secret
    at_least: Urgency = "warning"  # the least urgent that is sent: page, warning, or notice for all
    repeat: Seconds = Seconds(86400.0)  # what still stands is sent again after this long; 0 for never

    def __post_init__(self) -> None:
        if self.repeat < 0:
            raise ValueError("repeat: must not be negative")


def render(notice: Notice, settings: Settings, utc: float) -> Message:
    """The notice as a message of some lines."""
    sign = SIGNS[notice.urgency] if notice.until is None else "over"
    head = f"{sign} {notice.node}: {notice.title}"
    blocks: list[dict[str, object]] = [
        {"type": "header", "text": _plain(head, HEADER)},
        {"type": "section", "text": _plain(notice.text or "-", SECTION)},
    ]
    if notice.next_step:
        blocks.append({"type": "section", "text": _plain(f"Next: {notice.next_step}", SECTION)})
    facts = dict(notice.facts)
    if notice.bundle:
        facts["support bundle on the node"] = notice.bundle
    if facts:
        fields = [_plain(f"{name}: {value}", FIELD) for name, value in list(facts.items())[:FIELDS]]
        blocks.append({"type": "section", "fields": fields})
    since, until = stamp(notice.since), stamp(notice.until)
    about = [notice.event, notice.subject, f"since {since}" if since else "", f"until {until}" if until else ""]
    blocks.append({"type": "context", "elements": [_plain(", ".join(filter(None, about)), FIELD)]})
    message = {
        "text": _escaped(head, SECTION), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False,
        "blocks": blocks,
    }  # fmt: skip
    return Message(body=msgspec.json.encode(message), headers={"Content-Type": "application/json; charset=utf-8"})


def _plain(text: str, limit: int) -> dict[str, object]:
    return {"type": "plain_text", "text": _escaped(text, limit), "emoji": False}


def _escaped(text: str, limit: int) -> str:
    """The text with Slack's three characters escaped, no longer than the limit and never cut within an escape."""
    text = clean(text, limit)
    while len(escaped := text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")) > limit:
        text = clean(text, len(text) - max(4, (len(escaped) - limit) // 5))
    return escaped
