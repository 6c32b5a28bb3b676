"""A call of the driver's library hangs.

A driver in trouble stops answering, mostly for good, while jobs may still run: worth a look before new work is sent
here, and no proof against any GPU. Bad memory that corrects errors all the time, and a GPU that is being lost, look the
same from here. The process in the call is left behind; nothing waits for it.

Reads     nvml_hung, nvml_hung_call, nvml_hung_for_seconds; of the node
Source    field reports of calls that never returned (NVSentinel#1576, open-gpu-kernel-modules#1333, go-nvml#152)
Clears    when the library answers again, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Nothing to tune: how long a call may take is for its source to know."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing: the newest word says it all."""


class NvmlUnresponsive:
    """Reports that the driver's library does not answer."""

    name = "nvml_unresponsive"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("nvml_hung",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        hung = row.number("nvml_hung")
        if hung is None:
            return memory, ()
        seconds = row.number("nvml_hung_for_seconds")
        call = row.text("nvml_hung_call") or "a call"
        since = "" if seconds is None else f" for {seconds:.0f} s"
        return memory, (
            Finding(
                subject=subject, check=self.name, code="nvml_unresponsive", at=row.at, severity="degraded",
                remedy="reboot", blame="driver", advice="watch", clears=("reboot", "ack"), stands=hung == 1,
                reason=f"the driver's library does not answer: {call} hangs{since}",
            ),
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> NvmlUnresponsive:
    """The detector."""
    return NvmlUnresponsive()
