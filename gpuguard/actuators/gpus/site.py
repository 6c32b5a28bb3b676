"""A site's own tests: programs that root alone can change, run with the GPU in their environment.

Exit code 0 is a pass, 1 a fault of the GPU, anything else that it could not be told: a shell that does not find its
program ends with 127, one that is killed with 137, and neither says anything about a GPU.
"""

import os
import stat
from typing import Final

from gpuguard.actuators.gpus.errand import Steps
from gpuguard.actuators.gpus.parts import Part
from gpuguard.child.program import Told, Unanswered

PASSED: Final = 0
FOUND: Final = 1


def ran(steps: Steps, path: str, gpus: str, indexes: str, within: float) -> Part:
    """What the site's test says.

    Raises  Told
    """
    name = os.path.basename(path)
    if (why := distrusted(path)) is not None:
        return Part(name=name, verdict="unknown", words=f"it was not run: {why}")
    try:
        answer = steps.run_with({"GPUGUARD_GPU": gpus, "GPUGUARD_GPU_INDEX": indexes}, path, within)
    except Told:
        raise
    except Unanswered as error:
        return Part(name=name, verdict="unknown", words=str(error))
    if answer.code == PASSED:
        return Part(name=name, verdict="pass", words="exit code 0")
    if answer.code == FOUND:
        return Part(name=name, verdict="fail", words=answer.said)
    return Part(name=name, verdict="unknown", words=f"exit code {answer.code}, it says: {answer.said}")


def distrusted(path: str) -> str | None:
    """Why a program is not to be run with our rights: others than root, and whom we run as, could change it. None when
    it may be."""
    trusted = {0, os.geteuid()}
    try:
        real = os.path.realpath(path, strict=True)
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
            return f"{path} is no program"
        while True:
            found = os.stat(real)
            # In a folder with the sticky bit nobody can take another's file away.
            open_to = found.st_mode & 0o022 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
            if found.st_uid not in trusted or open_to:
                return f"{real} can be changed by others than root; chown root and chmod go-w"
            if real == "/":
                return None
            real = os.path.dirname(real)
    except OSError as error:
        return f"{path}: {error.strerror}"
