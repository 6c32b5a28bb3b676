"""Alertmanager's own API, for sites whose pages go through it: silences, inhibition and routes count for these too.

An alert is known by its labels, which therefore stay the same for all of its life. One that is not sent again ends by
itself: so what stands is sent every `repeat`, and ends three times that after the last word of a node that died.
Shape   POST /api/v2/alerts, a list of one alert
Source  prometheus/alertmanager api/v2/openapi.yaml (postableAlert), 0.25
"""

from dataclasses import dataclass, field

import msgspec

from gpuguard.model.notices import Notice, Urgency
from gpuguard.model.units import Seconds, Secret
from gpuguard.notices import Message, clean, stamp

PATH = "/api/v2/alerts"
MISSED = 3  # repeats in a row that may fail before an alert ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where it goes, which notices, and how they are labelled."""

    # Where Alertmanager listens, http://host:9093, with its route prefix where it has one; nothing is sent without.
    url: Secret = field(default=Secret(""), repr=False)
    url_file: str = ""  # a file that holds the address, which is read anew each time: better for one that is a secret
    at_least: Urgency = "warning"  # the least urgent that is sent: page, warning, or notice for all
    repeat: Seconds = Seconds(300.0)  # how often what stands is sent again
    labels: tuple[str, ...] = ()  # added to each alert, each as "cluster=a"

    def __post_init__(self) -> None:
        if self.repeat < 60:
            raise ValueError("repeat: must be at least 60 s")
        for label in self.labels:
            name, equals, _ = label.partition("=")
            if not (equals and name.isascii() and name.isidentifier()):
                raise ValueError('labels: each must be as "cluster=a"; letters, digits and _ may be in a name')


def render(notice: Notice, settings: Settings, utc: float) -> Message:
    """The notice as a list of one alert; one that is over ends when it was over, and never before it began."""
    began = notice.since.utc if notice.since.utc is not None else utc
    ends = utc + MISSED * settings.repeat if notice.until is None else max(notice.until.utc or utc, began)
    labels = {
        **{name: clean(value) for name, _, value in (label.partition("=") for label in settings.labels)},
        "alertname": name_of(notice.event),
        "severity": SEVERITIES[notice.urgency],
        "node": clean(notice.node),
        "subject": clean(notice.subject),
        "token" if notice.mark == notice.token else "code": clean(notice.mark),
    }
    annotations = {
        "summary": clean(notice.title), "description": clean(notice.text),
        "next_step": clean(notice.next_step), "bundle": notice.bundle,
        **{name: clean(value) for name, value in notice.facts.items() if name.isidentifier()},
    }  # fmt: skip
    alert = {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": stamp(began),
        "endsAt": stamp(ends),
    }
    return Message(path=PATH, body=msgspec.json.encode([alert]), headers={"Content-Type": "application/json"})


SEVERITIES: dict[Urgency, str] = {"page": "critical", "warning": "warning", "notice": "info"}


def name_of(event: str) -> str:
    """The alert's name: `GpuguardGpuFailedNotice` of gpu.failed, as no rule of rules/alerts has it."""
    return "Gpuguard" + "".join(word.capitalize() for word in event.replace(".", "_").split("_")) + "Notice"
