"""A port of an InfiniBand or RoCE adapter on which errors come faster than on a good link.

A bad cable or module shows so days before the link breaks. What a link counts while it trains is below the limits.

Reads     ib_symbol_error_total, ib_port_rcv_errors_total, ib_local_link_integrity_errors_total,
          ib_excessive_buffer_overrun_errors_total, ib_link_error_recovery_total, ib_rx_icrc_encapsulated_total of each
          port; a counter that is absent or unknown is left out
Source    InfiniBand Architecture Specification 1, PortCounters; infiniband-diags, ibqueryerrors(8)
Clears    when they came more slowly for an hour
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.ports import Rules
from gpuguard.spans import Counter

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How many errors in an hour are too many, by counter."""

    symbol_error: float = 100.0  # symbols that were none, on any lane
    port_rcv_errors: float = 100.0  # packets with an error
    local_link_integrity_errors: float = 100.0  # packets lost to errors of the link itself
    excessive_buffer_overrun_errors: float = 100.0  # buffers that overran again and again
    link_error_recovery: float = 10.0  # recoveries of the link that worked
    rx_icrc_encapsulated: float = 100.0  # RoCE packets with a wrong checksum


COUNTERS = tuple(Settings.__dataclass_fields__)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of each counter."""

    counters: dict[str, Counter] = {}


class IbErrors:
    """Reports ports with too many errors."""

    name = "ib_errors"
    of: tuple[SubjectKind, ...] = ("port",)
    reads = tuple(f"ib_{name}_total" for name in COUNTERS)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        seen = {name: value for name in COUNTERS if (value := row.number(f"ib_{name}_total")) is not None}
        if not seen:
            return memory, ()
        counters = {**memory.counters}
        for name, value in seen.items():
            counters[name] = counters.get(name, Counter()).seen(value, row.at, HOUR, as_rate=True)
        growth = {name: counter.growth() for name, counter in counters.items() if name in COUNTERS}
        high = [f"{grown:g} {name}" for name, grown in growth.items() if grown >= getattr(self.settings, name)]
        return (memory if counters == memory.counters else Memory(counters=counters)), (
            Finding(
                subject=subject, check=self.name, code="ib_errors", at=row.at, severity="degraded", blame="hardware",
                clears=("replace", "ack"), advice="watch", stands=bool(high),
                reason=f"errors of the link within an hour: {', '.join(high)}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> IbErrors:
    """The detector with a site's settings."""
    return IbErrors(settings)
