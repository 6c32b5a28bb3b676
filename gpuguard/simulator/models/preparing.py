"""Data preparation: on GPUs or on CPUs, with or without the order in which things depend on each other.

Some training jobs need data that a job prepare-ID makes first. With the order known (`dag`) they start when it has
ended well; without it they start when there is room, hold their GPUs and do nothing until it is over. Beside that,
cleaning jobs of some minutes come at a steady rate. All of these are on GPUs, of which they use little, or on CPUs.

Assumes  which jobs need data hangs on their ids alone; preparation takes as long on CPUs as on GPUs unless `slower`
         says otherwise
Source   the second text: predecessors queued as ordinary jobs while training holds GPUs and idles; cleaning in 3 to
         5 min jobs at high frequency, ranked above training, takes all free GPUs; a warm-up job used under 20 %
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Finish, Start
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import HOUR
from gpuguard.simulator.chance import Dice, chance, seed_of, stream
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.options import Count, Length, Part, Seconds, read
from gpuguard.simulator.trace import TraceJob

PREFIX, CLEANS = "prepare-", "clean-"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   on: what preparation and cleaning run on. share: of the training jobs that need data. gpus, cpus: of each
    such job. use: of its GPUs. cleaning: jobs an hour. first: those rank above training

    Units   seconds; least, most: of preparation; shortest, longest: of cleaning
    """

    on: Literal["cpu", "gpu"] = "cpu"
    dag: bool = True
    share: Part = 0.5
    gpus: Count = 1
    cpus: Length = 8.0
    use: Part = 0.1
    least: Seconds = 600
    most: Seconds = 7200
    slower: Length = 1.0
    cleaning: Length = 0.0
    shortest: Seconds = 180
    longest: Seconds = 300
    first: bool = False


class Preparing(Model):
    name = "preparing"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._stands: dict[str, None] = {}
        self._over: dict[str, bool] = {}

    def submits(self, traced: TraceJob) -> TraceJob:
        job = traced.job
        if not job.gpus or job.tier != "training" or chance(self._seed, "needs", job.id) >= self._settings.share:
            return traced
        self._over[PREFIX + job.id] = False
        if self._settings.dag:
            after = (*job.after, Dependency(relation="afterok", name=PREFIX + job.id))
            return msgspec.structs.replace(traced, job=msgspec.structs.replace(job, after=after))
        # Whoever has to wait for data with GPUs in hand asks for them as much longer.
        walltime = None if job.walltime is None else job.walltime + self._seconds(job.id)
        return msgspec.structs.replace(traced, job=msgspec.structs.replace(job, walltime=walltime))

    def begin(self, world: World, start: int, end: int) -> None:
        for name in self._over:
            life = world.lives[name.removeprefix(PREFIX)]
            self._submit(world, name, life.record.submit, self._seconds(life.job.id), life.job.user)
        if not self._settings.cleaning:
            return
        draws = stream(self._seed, "cleaning")
        at, count = start + int(draws.exponential(HOUR / self._settings.cleaning)), 1
        while at < end:
            seconds = round(draws.between(self._settings.shortest, self._settings.longest) * self._slower)
            self._submit(world, f"{CLEANS}{count}", at, seconds, "cleaning")
            at, count = at + int(draws.exponential(HOUR / self._settings.cleaning)), count + 1

    @property
    def _slower(self) -> float:
        return self._settings.slower if self._settings.on == "cpu" else 1.0

    def _seconds(self, id: str) -> int:
        own = stream(self._seed, "length", id)
        return max(1, round(own.between(self._settings.least, self._settings.most) * self._slower))

    def _submit(self, world: World, id: str, at: int, seconds: int, user: str) -> None:
        site = self._settings
        on_gpu = site.on == "gpu"
        job = Job(
            id=id, user=user, tier="training" if site.first and on_gpu else "batch", gpus=site.gpus if on_gpu else 0,
            level="high" if site.first and on_gpu else "normal", cpus=site.cpus, prepares=not on_gpu,
            walltime=2 * max(1, seconds),
        )  # fmt: skip
        world.submit(at, TraceJob(job=job, submit_s=at, duration_s=seconds))
        world.lives[id].record.use = site.use if on_gpu else 1.0

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        if isinstance(decision, Start) and self._over.get(PREFIX + decision.job) is False:
            self._stands[decision.job] = None
            world.pace(decision.job, "data", 0.0)
        elif isinstance(decision, Finish) and decision.job in self._over:
            self._over[decision.job] = True
            job = decision.job.removeprefix(PREFIX)
            if job in self._stands:
                del self._stands[job]
                world.pace(job, "data", 1.0)


def build(settings: Mapping[str, str], dice: Dice) -> Preparing:
    """The model with a seed of its own."""
    return Preparing(read(Settings, settings, "preparing"), seed_of(dice))
