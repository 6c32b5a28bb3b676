"""A port of an InfiniBand or RoCE adapter that is down, gone, or slower than it was.

A port that was never active may never have been wired, and is no fault. What should be up is what was active since the
agent remembers, and how many ports the node's profile tells of.

Reads     ib_state and ib_rate_bits_per_second of each port; ib_ports_active of the node, ib_ports_expected of its
          profile
Source    InfiniBand Architecture Specification 1, port states; field reports of ports without a cable that were called
          fatal
Clears    when it is active again, at its earlier rate; a reboot or a person where it was taken away for good
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

ACTIVE = 4
STATES: dict[float, str] = {
    0: "gone",
    1: "down",
    2: "waiting for the subnet manager",
    3: "armed, not active",
    5: "active, deferred",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long it may be so. Units: seconds."""

    down_for: Seconds = Seconds(60.0)  # a link that trains anew needs some seconds
    slow_for: Seconds = Seconds(300.0)  # a rate below the port's own best must last this long
    fewer_for: Seconds = Seconds(300.0)  # ports of a node that starts come up one after the other


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of a port, whether it was active, its highest rate then, and since when it is not so; of the node, since when
    too few are active."""

    was_active: bool = False
    top_rate: float = 0.0
    down: Held = Held()
    slow: Held = Held()
    fewer: Held = Held()


class IbPort:
    """Reports ports that do not carry what they should."""

    name = "ib_port"
    of: tuple[SubjectKind, ...] = ("port", "node")
    reads = ("ib_state", "ib_rate_bits_per_second", "ib_ports_active")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        return self._node(memory, row) if subject == NODE else self._port(memory, subject, row)

    def _port(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        state, rate = row.number("ib_state"), row.number("ib_rate_bits_per_second")
        if state is None:
            return memory, ()
        active = state == ACTIVE
        top = max(memory.top_rate, rate) if active and rate is not None else memory.top_rate
        down = memory.down.told(memory.was_active and not active, row.at)
        slow = memory.slow.told(None if rate is None else active and rate < top, row.at)
        after = Memory(was_active=memory.was_active or active, top_rate=top, down=down, slow=slow)
        findings = [
            self._finding(
                subject, row, "ib_port_down", down.lasted(self.settings.down_for, row.at),
                f"the port was active and is {STATES.get(state, f'in state {state:g}')}",
            )
        ]  # fmt: skip
        if rate is not None or not active:
            stands = slow.lasted(self.settings.slow_for, row.at)
            words = f"the port runs at {(rate or 0.0) / 1e9:g} Gbit/s and did at {top / 1e9:g}"
            findings.append(self._finding(subject, row, "ib_port_slow", stands, words))
        return (memory if after == memory else after), findings

    def _node(self, memory: Memory, row: Row) -> tuple[Memory, Sequence[Finding]]:
        active, expected = row.number("ib_ports_active"), row.number("ib_ports_expected")
        if active is None or expected is None:
            return memory, ()
        fewer = memory.fewer.told(active < expected, row.at)
        stands = fewer.lasted(self.settings.fewer_for, row.at)
        words = f"{active:g} InfiniBand or RoCE ports are active of {expected:g} that this machine should have"
        finding = self._finding(NODE, row, "ib_ports_missing", stands, words)
        return (memory if fewer is memory.fewer else Memory(fewer=fewer)), (finding,)

    def _finding(self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, severity="degraded", blame="hardware",
            clears=("reboot", "replace", "ack"), advice="watch", stands=stands, reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> IbPort:
    """The detector with a site's settings."""
    return IbPort(settings)
