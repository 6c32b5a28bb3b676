"""Plain JSON: one object a notice, for a receiver of one's own.

Shape   docs/notices.md, "What does a webhook get?"; UTF-8
"""

from dataclasses import dataclass, field

import msgspec

from gpuguard.model.notices import Notice, Urgency
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, plainly


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it goes, and which notices."""

    url: Secret = field(default=Secret(""), repr=False)  # the whole address; nothing is sent while there is none
    url_file: str = ""  # a file that holds the address, which is read anew each time: better for one that is a secret
    at_least: Urgency = "warning"  # the least urgent that is sent: page, warning, or notice for all
    repeat: Seconds = Seconds(86400.0)  # what still stands is sent again after this long; 0 for never

    def __post_init__(self) -> None:
        if self.repeat < 0:
            raise ValueError("repeat: must not be negative")


def render(notice: Notice, settings: Settings, utc: float) -> Message:
    """The notice as one JSON object."""
    return Message(
        body=msgspec.json.encode(plainly(notice)), headers={"Content-Type": "application/json; charset=utf-8"}
    )
