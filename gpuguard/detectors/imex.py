"""The IMEX service does not run on a machine that belongs to a domain of NVLinks over several nodes.

Only there it is of any use: elsewhere the service is installed and idle, and its state says nothing.

Reads     imex_running and imex_state of the node, imex_expected of its profile
Source    IMEX service for NVLink networks, guide; field reports of nodes that were called ill for days because of it
Clears    when it runs again
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long it may be away. Units: seconds."""

    hold: Seconds = Seconds(120.0)  # a restart takes some seconds


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it does not work."""

    down: Held = Held()


class Imex:
    """Reports a node that needs the service and does not have it."""

    name = "imex"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("imex_running",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        expected, running = row.number("imex_expected"), row.number("imex_running")
        if expected is None or running is None:
            return memory, ()
        # T: stopped by a signal or a debugger; it lives and does nothing.
        stopped = row.text("imex_state") in ("T", "t")
        down = memory.down.told(expected == 1 and (running == 0 or stopped), row.at)
        how = "is stopped" if stopped else "does not run"
        return (memory if down is memory.down else Memory(down=down)), (
            Finding(
                subject=subject, check=self.name, code="imex_down", at=row.at, severity="degraded",
                blame="host", clears=("reboot", "ack"), advice="watch",
                stands=down.lasted(self.settings.hold, row.at),
                reason=f"nvidia-imex {how}, and without it no memory is shared over the NVLinks between nodes",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Imex:
    """The detector with a site's settings."""
    return Imex(settings)
