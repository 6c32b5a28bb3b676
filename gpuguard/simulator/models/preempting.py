"""Who can be preempted, and who leaves when told: jobs that checkpoint, and how fast they save and go.

A job that checkpoints and hears SIGTERM saves, and is gone after some seconds. One that does not hear it, or needs
longer than its grace, is killed at the end of it and has only what it saved before.

Assumes  which jobs checkpoint hangs on their ids alone; where a trace says that a job does, it does
Source   the text: without a hook for SIGTERM preemption is a disaster; it has no figures, so these are nobody's
"""

from collections.abc import Mapping

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Kill, Preempt
from gpuguard.simulator.chance import Dice, chance, seed_of, stream
from gpuguard.simulator.engine import TERMINATED, Model, World
from gpuguard.simulator.options import Length, Part, read
from gpuguard.simulator.trace import TraceJob

KILLED, SIGKILL = 137, 9


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   checkpoint: share of the jobs that do so; ignore: share of these that do not hear SIGTERM

    Units   seconds, from SIGTERM to the end of the job, evenly between
    """

    checkpoint: Part = 0.5
    ignore: Part = 0.1
    least: Length = 5.0
    most: Length = 60.0


class Preempting(Model):
    """Shape   killed: jobs that had to be, in order, once for each time"""

    name = "preempting"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self.killed: list[str] = []

    def submits(self, traced: TraceJob) -> TraceJob:
        job = traced.job
        if job.checkpoints or not job.gpus or chance(self._seed, "saves", job.id) >= self._settings.checkpoint:
            return traced
        return msgspec.structs.replace(traced, job=msgspec.structs.replace(job, checkpoints=True))

    def takes(self, world: World, decision: AnyDecision, now: int) -> bool:
        if not isinstance(decision, Preempt | Kill) or decision.job not in world.lives:
            return False
        life = world.lives[decision.job]
        if not life.shares or life.speed <= 0:
            return False
        own = stream(self._seed, "leaves", decision.job, life.began)
        needs = round(own.between(self._settings.least, self._settings.most))
        deaf = chance(self._seed, "deaf", decision.job) < self._settings.ignore
        if not deaf and needs <= decision.grace:
            world.end(decision.job, now + needs, TERMINATED)
        else:
            life.obeys = False
            self.killed.append(decision.job)
            world.end(decision.job, now + decision.grace, KILLED, SIGKILL)
        return True


def build(settings: Mapping[str, str], dice: Dice) -> Preempting:
    """The model with a seed of its own."""
    return Preempting(read(Settings, settings, "preempting"), seed_of(dice))
