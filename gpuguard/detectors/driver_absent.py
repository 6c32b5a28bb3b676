"""NVIDIA GPUs are on the bus, and the driver or its library cannot be asked about them.

The driver is not loaded, its library is not installed, or the agent may not open its devices: nothing is measured, and
nobody would miss it. GPUs that were given to another driver (vfio-pci, for a virtual machine) are none of ours.

Reads     nvml_init_error and gpus_for_driver of the node
Source    nvml.h: NVML_ERROR_NO_PERMISSION 4, DRIVER_NOT_LOADED 9, LIBRARY_NOT_FOUND 12
Clears    when NVML can be opened, or no GPU is left for the driver
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

WORDS = {
    4: "the agent may not open the driver's devices; restart it, as the driver was loaded after it",
    9: "the driver is not loaded; see `dmesg | grep NVRM`, then `modprobe nvidia`",
    12: "the driver's library libnvidia-ml.so.1 is not installed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a driver may take to come. Units: seconds."""

    hold: Seconds = Seconds(600.0)  # after a boot or an upgrade modules are built, loaded and brought up


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it cannot be asked."""

    away: Held = Held()


class DriverAbsent:
    """Reports nodes whose GPUs nobody can see."""

    name = "driver_absent"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("nvml_init_error", "gpus_for_driver")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        error, gpus = row.bits("nvml_init_error"), row.bits("gpus_for_driver")
        if error is None or gpus is None:
            return memory, ()
        away = memory.away.told(error in WORDS and gpus > 0, row.at)
        return (memory if away is memory.away else Memory(away=away)), (
            Finding(
                subject=subject, check=self.name, code=self.name, at=row.at, severity="degraded", blame="configuration",
                clears=("reboot", "ack"), advice="watch", stands=away.lasted(self.settings.hold, row.at),
                reason=f"nothing is measured of {gpus} GPU{'s' if gpus > 1 else ''} on the bus: {WORDS.get(error, '')}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> DriverAbsent:
    """The detector with a site's settings."""
    return DriverAbsent(settings)
