"""CloudEvents 1.0 in structured mode: for brokers (Knative, Argo Events, Azure Event Grid) and what they feed.

Shape   one JSON object with the required attributes id, source, specversion and type; `data` is the object of `generic`
Source  CloudEvents 1.0.2 section "Context Attributes"; JSON event format 1.0.2; HTTP protocol binding 1.0.2, 3.2
"""

from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec

from gpuguard.model.notices import Notice, Urgency
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, clean, plainly, stamp

TYPE = "io.gpuguard"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it goes, and which notices."""

    url: Secret = field(default=Secret(""), repr=False)  # the whole address; nothing is sent while there is none
    url_file: str = ""  # a file that holds the address, which is read anew each time: better for one that is a secret
    at_least: Urgency = "notice"  # the least urgent that is sent: page, warning, or notice for all
    repeat: Seconds = Seconds(0.0)  # what still stands is sent again, with the same id, after this long; 0 for never

    def __post_init__(self) -> None:
        if self.repeat < 0:
            raise ValueError("repeat: must not be negative")


def render(notice: Notice, settings: Settings, utc: float) -> Message:
    """The notice as one event; its type ends with `.over` when it tells that something stands no longer."""
    over = notice.until is not None
    event: dict[str, object] = {
        "specversion": "1.0",
        "id": notice.id,
        "source": f"//gpuguard.io/nodes/{quote(clean(notice.node) or 'unnamed', safe='')}",
        "type": f"{TYPE}.{notice.event}" + (".over" if over else ""),
        "subject": clean(notice.subject) or "node",
        "datacontenttype": "application/json",
        "data": plainly(notice),
    }
    if (when := stamp(notice.until if over else notice.since)) is not None:
        event["time"] = when
    return Message(body=msgspec.json.encode(event), headers={"Content-Type": CONTENT_TYPE})
