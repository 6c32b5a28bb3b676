"""Checkpoints every so often: what a failure costs, and what saving itself costs.

A job that checkpoints loses what it did since its last save that was complete. No event is made of a save: only of the
last one, when the run ends before its time.

Assumes  every job that checkpoints does so at the same interval from its start, by the clock; a save that stalls the
         job stalls it for `stall`; one that does not is complete `write` after it was begun and slows nothing
Source   every 5 to 10 min to shared storage, asynchronously: the texts' advice
"""

from collections.abc import Mapping

import msgspec

from gpuguard.scheduler.plan import Start
from gpuguard.simulator.chance import Dice
from gpuguard.simulator.engine import Life, Model, World
from gpuguard.simulator.options import Length, Seconds, read


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Units   seconds; interval: of work between the begin of one save and that of the next, 0: nobody ever saves"""

    interval: Seconds = 600
    stall: Length = 0.0
    write: Seconds = 60


class Checkpoints(Model):
    name = "checkpoints"
    loses = "saving"

    def __init__(self, settings: Settings) -> None:
        self._interval = settings.interval
        self._stall = settings.stall if settings.interval else 0.0
        # What stalls the job is complete when the job goes on.
        self._write = 0.0 if self._stall else settings.write

    def speed(self, world: World, life: Life, decision: Start) -> float:
        return self._interval / (self._interval + self._stall) if self._stall and life.job.checkpoints else 1.0

    def saved(self, world: World, life: Life, at: int, asked: bool) -> int | None:
        if asked:
            return at
        if not self._interval:
            return life.began
        turn = self._interval + self._stall
        saves = max(0, int((at - life.began - self._write) // turn))
        return life.began + int(saves * turn)


def build(settings: Mapping[str, str], dice: Dice) -> Model:
    """The model; it draws nothing."""
    return Checkpoints(read(Settings, settings, "checkpoints"))
