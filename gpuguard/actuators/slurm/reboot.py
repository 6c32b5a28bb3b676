"""Asks Slurm to reboot this node, in the one form that leaves our drain in place.

`scontrol reboot NODE`, bare: no ASAP, no nextstate, no reason. On a drained, idle node Slurm 22.05.8 then goes
IDLE+DRAIN -> IDLE+DRAIN+REBOOT_REQUESTED -> DOWN+DRAIN+REBOOT_ISSUED -> (slurmd registers after the boot) IDLE+DRAIN,
and the reason stays ours with ` : reboot issued` behind it, which custody/token reads as ours still. The other forms
were tried and do not serve: ASAP (whose nextstate is RESUME) and nextstate=RESUME lift the drain before any check has
run; nextstate=DOWN takes the DRAIN flag away and leaves a DOWN node that only a person resumes.

It is done once the machine runs in another boot than the one in which it was wished: no answer of a program could
outlive the reboot, the boot's id does, and so the same wish sent again by the agent that comes up is no second reboot.

Source  Slurm 22.05.8 as observed; src/slurmctld/node_mgr.c (validate_node_specs), src/scontrol/reboot_node.c
"""

from pathlib import Path
from typing import Final

from gpuguard.actuators.slurm.node import complaint_of
from gpuguard.child.program import Answer
from gpuguard.errors import Absent, ActionDeferred, ActionRefused, GpuguardError, ReadFailed
from gpuguard.ports import NodeReport
from gpuguard.sweeping.files import read_text

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# A server takes from 3 to 30 minutes; the agent that asks is gone for most of it.
LOOK_AGAIN: Final = 30.0
_UNDER_WAY: Final = frozenset({"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"})


def this_boot(path: Path = BOOT_ID) -> str:
    """The id of the boot that this machine is in.

    Raises  ActionDeferred where it cannot be read: then it could not be told whether a reboot was done
    """
    try:
        return read_text(path)
    except (Absent, ReadFailed) as error:
        raise ActionDeferred(f"it cannot be told which boot this is: {error}", 60.0) from error


def under_way(report: NodeReport) -> bool:
    """Whether Slurm knows of a reboot that is asked for and not over."""
    return not _UNDER_WAY.isdisjoint(report.flags)


def complaint(answer: Answer, node: str) -> GpuguardError:
    """The error that a failed `scontrol reboot` stands for."""
    if "rebootprogram" in answer.said.lower():
        return ActionRefused(
            f"Slurm has no way to reboot ({answer.said}); set RebootProgram in slurm.conf, or reboot {node} by hand"
        )
    return complaint_of(answer, node)
