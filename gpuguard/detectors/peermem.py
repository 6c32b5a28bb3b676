"""The module that lets network adapters reach the GPUs' memory is not loaded where it belongs to the node.

Without it, and without DMA-BUF, data between nodes goes through the host's memory: slower, and nobody is told. It is
expected where the node's profile or the site says so, or where the host is set to load it when it starts.

Reads     module_nvidia_peermem_loaded, peermem_configured and ib_ports of the node, peermem_expected of its profile
Source    GPUDirect RDMA documentation, "Supported platforms" and nvidia-peermem; the driver's README
Clears    when it is loaded
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

    hold: Seconds = Seconds(300.0)  # it is loaded after the driver and the adapters


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it is missing."""

    missing: Held = Held()


class Peermem:
    """Reports nodes that should have the module and do not."""

    name = "peermem"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("module_nvidia_peermem_loaded",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        loaded, ports = row.number("module_nvidia_peermem_loaded"), row.number("ib_ports")
        known = [v for v in (row.number("peermem_expected"), row.number("peermem_configured")) if v is not None]
        if loaded is None or ports is None or not known:
            return memory, ()
        missing = memory.missing.told(loaded == 0 and ports > 0 and 1 in known, row.at)
        return (memory if missing is memory.missing else Memory(missing=missing)), (
            Finding(
                subject=subject, check=self.name, code="peermem_missing", at=row.at, severity="degraded",
                blame="configuration", clears=("reboot", "ack"), advice="watch",
                stands=missing.lasted(self.settings.hold, row.at),
                reason="nvidia_peermem is not loaded: data between nodes goes through the memory of the host",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> Peermem:
    """The detector with a site's settings."""
    return Peermem(settings)
