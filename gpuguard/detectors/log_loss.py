"""Kernel messages that were lost before anybody could read them.

What was lost may have been a fault, so the node's record has holes: worth a look, never a reason to drain. Messages
that the kernel itself suppressed for a talkative caller are no loss of ours and only counted.

Reads     LinesLost (a source counted what it missed), LogLine of kind log_loss (the log says so itself)
Clears    an hour after the last loss
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import AnyEvent, LinesLost, LogLine
from gpuguard.model.findings import Finding, Severity
from gpuguard.model.ids import NODE, SubjectId, gpu
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a hole in the record is remembered."""

    quiet_after: Seconds = Seconds(3600.0)  # forgotten after this long without another


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: counts are kept with the standing finding."""


class LogLoss:
    """Reports holes in the record of the kernel's messages."""

    name = "log_loss"
    reads = (LinesLost, LogLine)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        if isinstance(event, LinesLost):
            return (NODE,)
        if isinstance(event, LogLine) and event.parsed.kind == "log_loss":
            return (gpu(event.parsed.pci),) if event.parsed.pci else (NODE,)
        return ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        severity: Severity = "degraded"
        if isinstance(event, LinesLost):
            source, count, reason = (
                event.source,
                event.count,
                f"{event.source} lost {event.count} lines: {event.reason}",
            )
        elif isinstance(event, LogLine):
            source, count, reason = event.source, event.repeated, f"the log has holes: {event.raw[:120]}"
            if event.parsed.detail.get("sub") == "suppressed":
                severity = "info"
        else:
            return memory, ()
        return memory, (
            Finding(
                subject=subject, check=self.name, code=self.name, at=event.at, severity=severity, blame="host",
                source=source, because=(event.id,), count=count, advice="watch" if severity == "degraded" else "none",
                quiet_after=self.settings.quiet_after, reason=reason,
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> LogLoss:
    """The detector with a site's settings."""
    return LogLoss(settings)
