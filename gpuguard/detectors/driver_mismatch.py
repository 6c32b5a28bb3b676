"""The driver in the kernel and its library on disk have different versions.

So it is after an upgrade whose modules were not loaded anew: what runs goes on, and what starts cannot reach the GPUs.

Reads     driver_version, driver_library_version and nvml_init_error of the node
Source    nvml.h, NVML_ERROR_LIB_RM_VERSION_MISMATCH (18); the driver's README, "API mismatch"
Clears    when both are the same again
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

LIBRARY_MISMATCH = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long an upgrade may take. Units: seconds."""

    hold: Seconds = Seconds(600.0)  # files are replaced first, modules are loaded then


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when they differ."""

    differs: Held = Held()


class DriverMismatch:
    """Reports nodes on which new programs cannot reach the driver."""

    name = "driver_mismatch"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("driver_version", "driver_library_version", "nvml_init_error")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        driver, library = row.text("driver_version"), row.text("driver_library_version")
        error = row.number("nvml_init_error")
        refused = error == LIBRARY_MISMATCH
        known = driver is not None and library is not None
        if not refused and not known and error != 0:
            return memory, ()
        differs = memory.differs.told(refused or (known and driver != library), row.at)
        words = f"the kernel has {driver}, the library on disk is {library}"
        if refused and not (known and driver != library):
            words = f"NVML's library refuses the driver {driver or 'that is loaded'}"
        return (memory if differs is memory.differs else Memory(differs=differs)), (
            Finding(
                subject=subject, check=self.name, code="driver_library_mismatch", at=row.at, severity="degraded",
                remedy="reboot", blame="configuration", clears=("reboot", "ack"), advice="watch",
                stands=refused or differs.lasted(self.settings.hold, row.at),
                reason=f"driver and library do not fit: {words}; load the driver anew or reboot",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> DriverMismatch:
    """The detector with a site's settings."""
    return DriverMismatch(settings)
