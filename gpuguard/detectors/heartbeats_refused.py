"""Heartbeats that the agent refuses by the hundred: somebody floods it, or speaks for a job that is not his.

A few come from a program of another version, or one that outlived its job. Many are a program gone wild or a person
who tries; what is refused changes nothing, so it is told and no more.

Reads     heartbeats_refused_total of the node: each reason before its count
Source    the bounds of the heartbeats source; our own judgement of what is many
Clears    when fewer are refused for a window, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, lasting
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Counter

REASONS_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many, within what time."""

    many: int = 100  # of all reasons together
    within: Seconds = Seconds(300.0)  # in this time


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """How much the count of each reason grew of late."""

    counters: dict[str, Counter] = {}


class HeartbeatsRefused:
    """Reports that many heartbeats are refused."""

    name = "heartbeats_refused"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("heartbeats_refused_total",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        counts = _counts(row)
        if counts is None:
            return memory, ()
        counters = {
            name: memory.counters.get(name, Counter()).seen(count, row.at, self.settings.within)
            for name, count in counts.items()
        }
        grown = {name: counter.growth() for name, counter in counters.items() if counter.growth() > 0}
        total = sum(grown.values())
        first = sorted(grown, key=lambda name: (-grown[name], name))[:3]
        words = " ".join(f"{name} {grown[name]:g}" for name in first)
        return Memory(counters=counters), (
            Finding(
                subject=subject, check=self.name, code="heartbeats_refused", at=row.at, blame="program",
                stands=total >= self.settings.many, clears=("reboot", "ack"),
                reason=f"{total:g} heartbeats were refused within {lasting(self.settings.within)}: {words}; what is "
                "refused changes nothing; look for the program that sends them",
            ),
        )  # fmt: skip


def _counts(row: Row) -> dict[str, float] | None:
    """The count of each reason; None where it is unknown, or no such thing."""
    parts = row.parts("heartbeats_refused_total")
    found = {
        clean(name, 32): float(count)
        for name, count in zip(parts[0::2], parts[1::2], strict=False)
        if isinstance(name, str) and isinstance(count, int | float) and not isinstance(count, bool)
    }
    return dict(sorted(found.items())[:REASONS_KEPT]) or None


def build(settings: Settings, rules: Rules) -> HeartbeatsRefused:
    """The detector with a site's settings."""
    return HeartbeatsRefused(settings)
