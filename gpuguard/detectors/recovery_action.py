"""The driver itself says what a GPU needs to get well.

The same word that Xid 154 prints when it changes, asked for again and again, so that it is known too where the line was
never seen. A reset or a reboot drains: at once when another source says so too, by itself when two looks agree that are
some time apart. Peer traffic and the IMEX domain are no fault of one GPU, and an action that nobody knows yet is shown
to people.

Reads     recovery_action (0 none, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset, 5 IMEX, 6 bus reset, 7 system
          reboot); of each GPU
Source    nvml.h, nvmlDeviceGpuRecoveryAction_t, field 230; DCGM's rules for it: reset, reboot and drain-and-reset FAIL,
          drain of peers WARN
Clears    when the driver asks for nothing any more, which after a reset shows that it was done; the remedy; a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.findings import Clear, Finding, Remedy
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

RESET_CLEARS: tuple[Clear, ...] = ("reset", "reboot", "replace", "ack")
REBOOT_CLEARS: tuple[Clear, ...] = ("reboot", "replace", "ack")


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What one number asks for."""

    reason: str
    remedy: Remedy = "none"


ACTIONS: dict[int, Action] = {
    0: Action(reason="the driver asks for nothing"),
    1: Action(remedy="reset", reason="the driver asks for a reset of the GPU"),
    2: Action(remedy="reboot", reason="the driver asks for a reboot of the node"),
    3: Action(reason="the driver wants the traffic of its peers off the GPU"),
    4: Action(remedy="reset", reason="the driver asks for work to end and then for a reset"),
    5: Action(reason="the IMEX domain must be recovered: restart its service on the nodes of the domain"),
    6: Action(remedy="reset", reason="the driver asks for a reset of the GPU through its bus"),
    7: Action(remedy="reboot", reason="the driver asks for a reboot of the system"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """When the driver's word is enough by itself."""

    hold: Seconds = Seconds(30.0)  # between two looks that agree

    def __post_init__(self) -> None:
        if self.hold <= 0:
            raise ValueError("hold: must be more than 0: one look is no proof")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when the driver asks for a reset or a reboot; whether a reset was asked for beyond doubt."""

    needed: Held = Held()
    reset: bool = False


class RecoveryAction:
    """Reports what the driver asks for."""

    name = "recovery_action"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("recovery_action",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        asked = row.bits("recovery_action")
        if asked is None:
            return memory, ()
        if memory.needed.since is not None and memory.needed.since.boot != row.at.boot:
            # What the driver asked for before the reboot is answered; it must ask again.
            memory = Memory()
        action = ACTIONS.get(asked, Action(reason=f"the driver asks for {asked}, an action that is not known yet"))
        fatal = action.remedy != "none"
        needed = memory.needed.told(fatal, row.at)
        sure = fatal and needed.seconds(row.at) >= self.settings.hold
        finding = Finding(
            subject=subject, check=self.name, code="recovery_action", at=row.at, stands=asked != 0,
            severity="critical" if fatal else "degraded", remedy=action.remedy, advice="drain" if fatal else "watch",
            clears=REBOOT_CLEARS if action.remedy == "reboot" else RESET_CLEARS, reason=action.reason,
            self_evident=sure, proves="reset" if asked == 0 and memory.reset else None,
        )  # fmt: skip
        return Memory(needed=needed, reset=sure and action.remedy == "reset"), (finding,)


def build(settings: Settings, rules: Rules) -> RecoveryAction:
    """The detector with a site's settings."""
    return RecoveryAction(settings)
