"""A reset by `nvidia-smi --gpu-reset`, once nothing stands against it.

What stands against it, in the order in which it is looked at:

1. somebody has the GPU's device file open. Every client counts, monitors too, and an open NVML is one: the driver
   answers "In use by another client". Who computes is waited for; a service that stays, such as nv-hostengine, needs a
   person.
2. MIG instances: a reset would do away with them, and whoever made them does not know.
3. the fabric. On NVSwitches GPUs before Ampere can only be reset all together; Ampere's one by one only while Fabric
   Manager runs; Hopper's and newer ones by themselves.
4. persistence mode, which keeps the GPU attached too. It is switched off for the reset and on again after it.

From the first change on nothing is broken off half-way.

Source  nvidia-smi(1) of 580, --gpu-reset; NVSentinel issue 1690 and gpu-operator issue 118 for persistence mode
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpuguard.actuators.gpus.devices import DROP_IN, Device, Holder, has_switches, holders, runs
from gpuguard.actuators.gpus.errand import WAITING, Occupied
from gpuguard.actuators.gpus.smi import Card, Lost, Smi, Unlisted
from gpuguard.child.program import Answer, Told, Unanswered
from gpuguard.errors import Absent, ActionRefused, ReadFailed
from gpuguard.model.actions import LET_GO, Outcome
from gpuguard.model.ids import PciAddress
from gpuguard.sweeping.files import read_bytes

PERSISTENCED: Final = "nvidia-persistenced"[:15]
FABRIC_MANAGER: Final = "nv-fabricmanager"
# Services that hold a GPU for as long as they run: to wait for their end would be in vain.
SERVICES: Final = {
    "nv-hostengine": "systemctl stop nvidia-dcgm", "dcgm-exporter": "stop DCGM's exporter",
    "dcgmexporter": "stop DCGM's exporter", "nvsm_core": "systemctl stop nvsm",
    "nvidia-device-p": "stop the device plugin", "Xorg": "stop the display server",
}  # fmt: skip
AMPERE: Final = 8.0
HOPPER: Final = 9.0
USED_AGAIN: Final = 30.0
# The process of ours that asks NVML ends within 3.5 s of being told to.
OURS_GOES: Final = 5.0
NEXT: Final = "a reboot is the next step"
OURS: Final = b"gpuguard.sources.nvml.child"
# Said by nvidia-smi when somebody was faster than we, and when the GPU cannot be reset by itself.
_TAKEN: Final = ("in use by another client", "in use by another process", "being used by one or more")
_TOGETHER: Final = ("must also be reset", "must be reset", "peer gpus", "additional gpus")
_UNABLE: Final = ("not supported", "insufficient permissions", "not permitted", "requires root")


def reset(smi: Smi, proc: Path, every: Sequence[Device], targets: Sequence[Device], within: float) -> Outcome:
    """The GPUs were reset and answer, or the outcome says why not.

    Units   within: seconds for the reset itself
    Raises  Occupied, ActionRefused; Unanswered when nvidia-smi hangs half-way, Told when told to stop
    """
    found = holders(proc, {device.minor for device in targets})
    if (
        found
        and all(looks(proc, holder) or holder.comm == PERSISTENCED for holder in found)
        and any(looks(proc, holder) for holder in found)
    ):
        message = "only gpuguard's own look at the driver has the GPU open; it lets go, and this is tried again"
        return Outcome(result="deferred", message=message, retry_after=OURS_GOES, node_state=LET_GO)
    unused(found)
    wanted = [device.pci for device in targets]
    try:
        cards = smi.cards(wanted)
    except Told:
        raise
    except Lost as error:
        # It cannot be told to reset: the next rung is due.
        return Outcome(result="failed", message=f"nothing was reset: {error}")
    except (Unlisted, Unanswered) as error:
        raise ActionRefused(f"nothing was reset, as nvidia-smi does not tell of the GPU: {error}") from error
    _no_instances(smi, cards)
    _fabric(smi, proc, every, wanted)
    kept = [card.pci for card in cards if card.persistent]
    smi.whole = True
    try:
        for pci in kept:
            smi.ask("-pm", "0", "-i", pci)
        unused(holders(proc, {device.minor for device in targets}), also=PERSISTENCED)
        try:
            answer = smi.ask("--gpu-reset", "-i", ",".join(wanted), within=within)
        except Unanswered as error:
            return Outcome(result="failed", message=f"the reset of {_named(wanted)} did not end, {NEXT}: {error}")
    finally:
        lost = [pci for pci in kept if not _persistent_again(smi, pci)]
    outcome = _told(answer, wanted) or _came_back(smi, wanted)
    if lost:
        note = f"{outcome.message}; persistence mode of {_named(lost)} could not be switched on again"
        return msgspec.structs.replace(outcome, message=note)
    return outcome


def looks(proc: Path, holder: Holder) -> bool:
    """Whether this is the process by which gpuguard looks at the driver. One that only calls itself so keeps its GPU
    from being reset, and no more."""
    try:
        return OURS in read_bytes(proc / str(holder.pid) / "cmdline", 4096).split(b"\0")
    except (Absent, ReadFailed):
        return False


def unused(found: Sequence[Holder], also: str | None = None) -> None:
    """Nobody has the GPU open. nvidia-persistenced lets go of it when persistence mode is switched off, so it counts
    only when `also` names it.

    Raises  Occupied for one who will go, ActionRefused for one who stays
    """
    for holder in found:
        if holder.comm in SERVICES:
            raise ActionRefused(
                f"{holder} holds the GPU and stays; {SERVICES[holder.comm]} while it is reset; nothing was reset"
            )
    in_use = [holder for holder in found if holder.comm != PERSISTENCED]
    if in_use:
        more = f" and {len(in_use) - 1} more" if len(in_use) > 1 else ""
        raise Occupied(f"{in_use[0]}{more} has the GPU open; nothing was reset", USED_AGAIN)
    if found and also == PERSISTENCED:
        raise ActionRefused(
            f"{found[0]} holds the GPU although persistence mode was switched off: systemctl stop nvidia-persistenced "
            "for the time of the reset; nothing was reset"
        )


def _no_instances(smi: Smi, cards: Sequence[Card]) -> None:
    for card in cards:
        if card.mig and (count := smi.instances(card)):
            raise ActionRefused(
                f"{card.pci} is parted into {count} MIG instances, which a reset would do away with; remove them first "
                f"(nvidia-smi mig -i {card.index} -dci && nvidia-smi mig -i {card.index} -dgi); nothing was reset"
            )


def _fabric(smi: Smi, proc: Path, every: Sequence[Device], wanted: Sequence[PciAddress]) -> None:
    if len(wanted) == len(every) or not has_switches(proc):
        return
    told = smi.capabilities(wanted)
    oldest = min(told.values(), default=HOPPER)
    if oldest < AMPERE:
        raise ActionRefused(
            "on NVSwitches, GPUs before Ampere are only reset all together; nothing was reset; reboot the node instead"
        )
    if oldest < HOPPER and not runs(proc, FABRIC_MANAGER):
        raise ActionRefused(
            "Ampere's GPUs on NVSwitches can be reset one by one only while Fabric Manager runs: "
            "systemctl start nvidia-fabricmanager; nothing was reset"
        )


def _persistent_again(smi: Smi, pci: PciAddress) -> bool:
    try:
        return smi.ask("-pm", "1", "-i", pci).code == 0
    except Unanswered:
        return False


def _told(answer: Answer, wanted: Sequence[PciAddress]) -> Outcome | None:
    """What nvidia-smi's answer means, None where it says that the reset was done."""
    text = f"{answer.out} {answer.err}".lower()
    if answer.code == 0:
        return None
    said = f"nvidia-smi (exit code {answer.code}) says: {answer.said}"
    if any(words in text for words in _TAKEN):
        message = f"{_named(wanted)} was not reset, somebody has it open; {said}"
        return Outcome(result="deferred", message=message, retry_after=USED_AGAIN, node_state=WAITING)
    if any(words in text for words in _TOGETHER):
        return Outcome(
            result="refused", message=f"{_named(wanted)} cannot be reset by itself, reboot the node instead; {said}"
        )
    if answer.code in (2, 3, 4, 9, 12, 13) or any(words in text for words in _UNABLE):
        message = f"{_named(wanted)} cannot be reset here; {said}; {DROP_IN}, else reboot the node instead"
        return Outcome(result="refused", message=message)
    return Outcome(result="failed", message=f"the reset of {_named(wanted)} did not come through, {NEXT}; {said}")


def _came_back(smi: Smi, wanted: Sequence[PciAddress]) -> Outcome:
    """It is not enough that the program was content: the GPU must answer."""
    try:
        smi.cards(wanted)
    except (Unlisted, ActionRefused, Unanswered) as error:
        return Outcome(
            result="failed", message=f"{_named(wanted)} was reset and does not answer since, {NEXT}: {error}"
        )
    return Outcome(result="done", message=f"{_named(wanted)} was reset and answers")


def _named(wanted: Sequence[PciAddress]) -> str:
    return wanted[0] if len(wanted) == 1 else f"{wanted[0]} and {len(wanted) - 1} more"
