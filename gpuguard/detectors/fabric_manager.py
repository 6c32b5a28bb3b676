"""The Fabric Manager's service does not run on a machine with NVSwitches.

Without it no new program can use the GPUs of such a machine, and those that run may lose their NVLinks. Whether the
fabric came up is another question, which NVML answers and another check judges: a dead service went unseen for
twenty days behind a fabric that was still up.

Reads     fabric_manager_running and fabric_manager_state of the node, fabric_manager_expected of its profile
Source    Fabric Manager user guide, "High Availability Mode" and "CUDA_ERROR_SYSTEM_NOT_READY"
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


class FabricManager:
    """Reports a node that needs the service and does not have it."""

    name = "fabric_manager"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("fabric_manager_running",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        expected, running = row.number("fabric_manager_expected"), row.number("fabric_manager_running")
        if expected is None or running is None:
            return memory, ()
        # T: stopped by a signal or a debugger; it lives and does nothing.
        stopped = row.text("fabric_manager_state") in ("T", "t")
        down = memory.down.told(expected == 1 and (running == 0 or stopped), row.at)
        how = "is stopped" if stopped else "does not run"
        return (memory if down is memory.down else Memory(down=down)), (
            Finding(
                subject=subject, check=self.name, code="fabric_manager_down", at=row.at, severity="degraded",
                blame="host", clears=("reboot", "ack"), advice="watch",
                stands=down.lasted(self.settings.hold, row.at),
                reason=f"nv-fabricmanager {how}, and without it no program can start on GPUs behind NVSwitches",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> FabricManager:
    """The detector with a site's settings."""
    return FabricManager(settings)
