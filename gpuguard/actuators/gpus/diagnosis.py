"""The tests of GPUs on their way back: what nvidia-smi says, DCGM's diagnostic, and what the site has of its own.

They are run in this order, and the first fault ends it: a GPU that is known to be bad is not put under load.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from gpuguard.actuators.gpus import dcgm, site
from gpuguard.actuators.gpus.devices import Device, holders
from gpuguard.actuators.gpus.errand import Occupied, Steps
from gpuguard.actuators.gpus.levels import Levels
from gpuguard.actuators.gpus.parts import Part, joined
from gpuguard.actuators.gpus.smi import Card, Lost, Smi, Unlisted
from gpuguard.child.program import Told, Unanswered
from gpuguard.errors import ActionRefused
from gpuguard.model.actions import Outcome

DCGMI_PLACES: Final = ("/usr/bin", "/usr/local/bin", "/usr/local/dcgm/bin")
QUICK: Final = "quick"
BUSY_AGAIN: Final = 30.0
# DCGM's own processes have CUDA loaded and are no work.
MONITORS: Final = frozenset({"nv-hostengine", "dcgm-exporter", "nvidia-persiste"})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a site has switched on.

    Units   site_limit: seconds
    """

    dcgm: Literal["auto", "required", "off"]
    dcgmi: str
    level: int
    site_tests: tuple[str, ...]
    site_limit: float
    levels: Levels


def diagnose(steps: Steps, smi: Smi, proc: Path, targets: Sequence[Device], plan: Plan) -> Outcome:
    """The GPUs were tested, or the outcome says why they were not.

    Raises  Occupied while something computes on one of them; ActionRefused where that cannot be told; Told
    """
    at_work = [
        holder
        for holder in holders(proc, {device.minor for device in targets})
        if holder.computes and holder.comm not in MONITORS
    ]
    if at_work:
        raise Occupied(f"{at_work[0]} computes on the GPU; nothing was tested", BUSY_AGAIN)
    quick, cards = _quick(smi, targets)
    if quick.verdict != "pass":
        return joined([quick])
    found = [quick, _dcgm(steps, cards, plan)]
    for path in plan.site_tests:
        if any(part.verdict == "fail" for part in found):
            break
        gpus, indexes = ",".join(card.pci for card in cards), ",".join(str(card.index) for card in cards)
        found.append(site.ran(steps, path, gpus, indexes, plan.site_limit))
    return joined(found)


def glance(smi: Smi, targets: Sequence[Device]) -> Outcome:
    """What the driver says of the GPUs, which disturbs nothing that runs on them."""
    return joined([_quick(smi, targets)[0]])


def _quick(smi: Smi, targets: Sequence[Device]) -> tuple[Part, list[Card]]:
    wanted = [device.pci for device in targets]
    try:
        cards = smi.cards(wanted)
        faults, said = smi.faults(wanted)
    except Told:
        raise
    except Lost as error:
        return Part(name=QUICK, verdict="fail", words=str(error)), []
    except (Unlisted, ActionRefused, Unanswered) as error:
        return Part(name=QUICK, verdict="unknown", words=str(error)), []
    if faults:
        return Part(name=QUICK, verdict="fail", words=", ".join(faults)), cards
    reports = "reports no fault" if said else "does not tell of faults"
    return Part(name=QUICK, verdict="pass", words=f"{len(cards)} answered, the driver {reports}"), cards


def _dcgm(steps: Steps, cards: Sequence[Card], plan: Plan) -> Part:
    if plan.dcgm == "off":
        return Part(name=dcgm.NAME, verdict="skip", words="switched off")
    lacking: Literal["unknown", "skip"] = "unknown" if plan.dcgm == "required" else "skip"
    path = plan.dcgmi or next((f"{place}/dcgmi" for place in DCGMI_PLACES if os.access(f"{place}/dcgmi", os.X_OK)), "")
    if not path:
        return Part(name=dcgm.NAME, verdict=lacking, words="not installed")
    if any(card.mig for card in cards):
        return Part(name=dcgm.NAME, verdict=lacking, words="not for GPUs in MIG mode")
    level, limit = max(plan.levels.of(card.name, plan.level) for card in cards)
    try:
        known = dcgm.numbers(steps.run(path, ("discovery", "-l"), 30.0).out)
        numbers = [known[card.pci] for card in cards if card.pci in known]
        if len(numbers) != len(cards):
            return Part(name=dcgm.NAME, verdict="unknown", words="DCGM does not know the GPU; is nv-hostengine up?")
        wanted = ",".join(map(str, numbers))
        answer = steps.run(path, ("diag", "-r", str(level), "-j", "-i", wanted), limit)
    except Told:
        raise
    except Unanswered as error:
        return Part(name=dcgm.NAME, verdict="unknown", words=str(error))
    part = dcgm.verdict(answer, numbers)
    return msgspec.structs.replace(part, words=f"level {level}, {part.words}")
