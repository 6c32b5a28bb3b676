"""GPUs that are not, or not well, part of the NVSwitch fabric.

Registration takes some minutes after a start. Once it is over, a status that is an error means that the fabric manager
refused the GPU. What the driver says of the fabric's health comes in two forms, a word and a mask, and the worst of all
is what counts: a good word never covers a bad bit. Where the state is 0 there is no fabric, and nothing is said.

Reads     fabric_state with fabric_status, fabric_health and fabric_health_mask, of each GPU
Source    nvml.h, nvmlDeviceGetGpuFabricInfoV and NVML_GPU_FABRIC_HEALTH_MASK_*; NVSentinel 1529 (a later field covered
          an earlier, worse one)
Clears    when all is well, a reset, a reboot, a new part, or by a person
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

NO_FABRIC, NOT_STARTED, IN_PROGRESS, COMPLETED = 0, 1, 2, 3
HEALTH = {2: "unhealthy", 3: "of limited capacity"}
# Place in the mask, width, the values that are a complaint, and what they say.
COMPLAINTS: tuple[tuple[int, int, dict[int, str]], ...] = (
    (0, 0x3, {1: "bandwidth is degraded"}),
    (2, 0x3, {1: "a route is being recovered"}),
    (4, 0x3, {1: "a route is unhealthy"}),
    (6, 0x3, {1: "recovers from an access time-out"}),
    (
        8, 0xF,
        {
            2: "wrong system GUID", 3: "wrong serial number of the chassis", 4: "no partition",
            5: "too few NVLinks", 6: "incompatible firmware of the GPU", 7: "wrong place of the GPU",
            8: "wrong state of the GPU",
        },
    ),
)  # fmt: skip
# What is told beside a complaint and is none by itself: a virtual machine may wait for its partition.
NOTES: tuple[tuple[int, int, dict[int, str]], ...] = (
    (12, 0x3, {2: "no partition is assigned"}),
    (14, 0x3, {2: "the global fabric manager is not connected"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long it may take."""

    starting: Seconds = Seconds(300.0)  # not started, or under way
    hold: Seconds = Seconds(60.0)  # refused, or unwell


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has not been registered, been refused, been unwell."""

    starting: Held = Held()
    refused: Held = Held()
    unwell: Held = Held()


class FabricState:
    """Reports GPUs that the fabric refused or that are unwell in it."""

    name = "fabric_state"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("fabric_state",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        state = row.number("fabric_state")
        if state not in (NOT_STARTED, IN_PROGRESS, COMPLETED):
            return memory, ()
        status = row.number("fabric_status")
        complaints = _complaints(row)
        after = Memory(
            starting=memory.starting.told(state != COMPLETED, row.at),
            refused=memory.refused.told(state == COMPLETED and (None if status is None else status != 0), row.at),
            unwell=memory.unwell.told(None if complaints is None else bool(complaints), row.at),
        )
        return after, self._judge(after, subject, row, complaints)

    def _judge(
        self, memory: Memory, subject: SubjectId, row: Row, complaints: Sequence[str] | None
    ) -> Sequence[Finding]:
        state, status = row.number("fabric_state"), row.number("fabric_status")
        words = "has not begun" if state == NOT_STARTED else "has not come to its end"
        unregistered = Finding(
            subject=subject, check=self.name, code="fabric_unregistered", at=row.at, severity="degraded",
            stands=memory.starting.lasted(self.settings.starting, row.at), blame="host", advice="watch",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"its registration with the fabric {words} for {memory.starting.seconds(row.at):.0f} s; "
            "is the fabric manager running?",
        )  # fmt: skip
        refused = Finding(
            subject=subject, check=self.name, code="fabric_refused", at=row.at, severity="critical",
            stands=memory.refused.lasted(self.settings.hold, row.at), blame="unknown", remedy="reset",
            ladder=("reset", "reboot", "replace"), advice="drain", clears=("reset", "reboot", "replace", "ack"),
            reason=f"its registration with the fabric ended with error {status or 0:g}",
        )  # fmt: skip
        unwell = Finding(
            subject=subject, check=self.name, code="fabric_unwell", at=row.at, severity="degraded",
            stands=memory.unwell.lasted(self.settings.hold, row.at), blame="hardware", remedy="test", advice="test",
            clears=("reset", "reboot", "replace", "ack"),
            reason=f"the fabric complains of it: {', '.join(complaints or ())}",
        )  # fmt: skip
        known = [unregistered]
        if state != COMPLETED or status is not None:
            known.append(refused)
        if complaints is not None:
            known.append(unwell)
        return tuple(known)


def _complaints(row: Row) -> list[str] | None:
    """All that the fabric complains of; None where neither word nor mask is known."""
    health, mask = row.number("fabric_health"), row.bits("fabric_health_mask")
    # 0 is a driver that does not say.
    if not health and not mask:
        return None
    words = [f"it is {HEALTH[int(health)]}"] if health in HEALTH else []
    words += _named(mask or 0, COMPLAINTS)
    return words + _named(mask or 0, NOTES) if words else []


def _named(mask: int, fields: Sequence[tuple[int, int, dict[int, str]]]) -> list[str]:
    values = (((mask >> shift) & width, meanings) for shift, width, meanings in fields)
    return [meanings[value] for value, meanings in values if value in meanings]


def build(settings: Settings, rules: Rules) -> FabricState:
    """The detector with a site's settings."""
    return FabricState(settings)
