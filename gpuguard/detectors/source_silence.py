"""A source of facts that sees less than it should, or nothing.

Silence is a fact: a blind source makes the node unknown, a degraded one is worth a look. Neither is a reason to drain.

Reads     SourceChanged, one per change
Clears    when the source watches again
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import AnyEvent, SourceChanged
from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which sources the node cannot do without."""

    # Without these the node is unknown; a second witness that is absent costs certainty, not sight.
    needed: tuple[str, ...] = ("kmsg", "store")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the newest event says it all."""


class SourceSilence:
    """Reports sources that are blind or degraded."""

    name = "source_silence"
    reads = (SourceChanged,)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        return (NODE,)

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if not isinstance(event, SourceChanged) or event.source not in self.settings.needed:
            return memory, ()
        finding = Finding(
            subject=subject, check=self.name, code=f"blind_{event.source}", at=event.at, severity="degraded",
            silent=True, latched=True, clears=("ack",), blame="host", source="gpuguard", because=(event.id,),
            advice="watch", reason=f"{event.source} is blind: {event.reason}", stands=event.level == "blind",
        )  # fmt: skip
        weak = msgspec.structs.replace(
            finding, code=f"degraded_{event.source}", silent=False, stands=event.level == "degraded",
            reason=f"{event.source} sees less than it should: {event.reason}",
        )  # fmt: skip
        return memory, (finding, weak)


def build(settings: Settings, rules: Rules) -> SourceSilence:
    """The detector with a site's settings."""
    return SourceSilence(settings)
