"""A call of the driver's library hangs, or whoever asks it fails again and again: nobody sees the GPUs.

A driver in trouble stops answering, mostly for good, while jobs may still run: worth a look before new work is sent
here, and no proof against any GPU. Bad memory that corrects errors all the time, and a GPU that is being lost, look the
same from here. The process in the call is left behind; nothing waits for it.

Reads     nvml_hung, nvml_hung_call, nvml_hung_for_seconds, nvml_failing, nvml_failure; of the node
Source    field reports of calls that never returned (NVSentinel#1576, open-gpu-kernel-modules#1333, go-nvml#152)
Clears    when the library answers again, a reboot, or by a person
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
    """When failures are told; how long a call may take is for its source to say. Units: seconds."""

    hold: Seconds = Seconds(30.0)  # of failures without one whole look; one that ended is replaced within seconds

    def __post_init__(self) -> None:
        if self.hold < 0:
            raise ValueError("hold: must not be negative")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when whoever asks fails."""

    failing: Held = Held()


class NvmlUnresponsive:
    """Reports that the driver's library does not answer."""

    name = "nvml_unresponsive"
    of: tuple[SubjectKind, ...] = ("node",)
    reads = ("nvml_hung", "nvml_failing")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        findings: list[Finding] = []
        if (hung := row.number("nvml_hung")) is not None:
            findings.append(self._hangs(subject, row, hung == 1))
        if (fails := row.number("nvml_failing")) is not None:
            memory = Memory(failing=memory.failing.told(fails == 1, row.at))
            findings.append(
                Finding(
                    subject=subject, check=self.name, code="nvml_blind", at=row.at, severity="degraded",
                    blame="driver", advice="watch", clears=("reboot", "ack"),
                    stands=memory.failing.lasted(self.settings.hold, row.at),
                    reason=f"nobody sees the GPUs: {row.text('nvml_failure') or 'the library cannot be asked'}",
                )
            )  # fmt: skip
        return memory, findings

    def _hangs(self, subject: SubjectId, row: Row, hangs: bool) -> Finding:
        seconds = row.number("nvml_hung_for_seconds")
        call = row.text("nvml_hung_call") or "a call"
        since = "" if seconds is None else f" for {seconds:.0f} s"
        return Finding(
            subject=subject, check=self.name, code="nvml_unresponsive", at=row.at, severity="degraded",
            remedy="reboot", blame="driver", advice="watch", clears=("reboot", "ack"), stands=hangs,
            reason=f"the driver's library does not answer: {call} hangs{since}",
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> NvmlUnresponsive:
    """The detector with a site's settings."""
    return NvmlUnresponsive(settings)
