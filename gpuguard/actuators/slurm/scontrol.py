"""`scontrol` with the words of an actuator: what did not answer is put off, what is not there is refused."""

from collections.abc import Sequence
from typing import Final

from gpuguard.child.program import CHUNK, Answer, Program, Unanswered
from gpuguard.child.slurm import PLACES, environment, found
from gpuguard.errors import ActionDeferred, ActionRefused

__all__ = ["OUTPUT_LIMIT", "Answer", "Scontrol"]

# A node's record has 0.7 kB; the longest reason seen added 3 kB.
OUTPUT_LIMIT: Final = CHUNK


class Scontrol:
    """The program, found once."""

    def __init__(self, path: str, conf: str, *, limit: int = OUTPUT_LIMIT, time_format: str = "") -> None:
        """`limit` is how many bytes it may print; `time_format` how it prints times, as usual where empty."""
        self.path = path or found("scontrol")
        spelled = {"SLURM_TIME_FORMAT": time_format} if time_format else {}
        self._program = Program({**environment(conf), **spelled}, limit=limit)

    def run(self, arguments: Sequence[str], until: float) -> Answer:
        """What it answered before `until`; nothing of it is left running.

        Units   until: seconds of time.monotonic()
        Raises  ActionDeferred when it hung, printed without end or could not be started now; ActionRefused when this
                machine has none
        """
        self.path = self.path or found("scontrol")
        if not self.path:
            raise ActionRefused(
                f"no scontrol in {', '.join(PLACES)}; install Slurm's client commands on this node or set "
                "`scontrol` in [actuators.slurm]"
            )
        try:
            return self._program.run(self.path, arguments, until)
        except Unanswered as error:
            # A hang is also the usual answer of a slurmctld that is away: scontrol itself goes on trying for 9 s.
            raise ActionDeferred(f"{error}; is slurmctld up?", error.next_in) from error
