"""Out of memory, and again: some jobs crash for want of GPU memory, and their owners submit them once more as they are.

A run that crashes ends within minutes with an error. Its owner comes back after a while, under the id with ~1, ~2, ...;
a job that checkpoints is started again by the scheduler instead. After some times the owner has made the batch smaller,
and it runs.

Assumes  which jobs do so hangs on their ids alone; every time but the last ends after a time that is exponential
Source   the text: 17 % of the jobs fail and are retried, mostly over the memory limit
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Finish, Start
from gpuguard.simulator.chance import Dice, chance, seed_of, stream
from gpuguard.simulator.engine import Life, Model, World
from gpuguard.simulator.options import Count, Length, Part, read
from gpuguard.simulator.trace import TraceJob


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   share: of the jobs. times: how often each crashes before it runs

    Units   seconds; after: from start to crash, pause: from crash to the next submit, on the mean
    """

    share: Part = 0.17
    times: Count = 2
    after: Length = 300.0
    pause: Length = 300.0


class Retries(Model):
    """Shape   crashes: job and instant"""

    name = "retries"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._mine: dict[str, None] = {}
        self._times: dict[str, int] = {}
        self._roots: dict[str, str] = {}
        self._crashed: dict[str, None] = {}
        self.crashes: list[tuple[str, int]] = []

    def submits(self, traced: TraceJob) -> TraceJob:
        # The trace's jobs alone: what other models add has its own fate.
        if traced.job.gpus and chance(self._seed, "over", traced.job.id) < self._settings.share:
            self._mine[traced.job.id] = None
        return traced

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        if isinstance(decision, Start):
            self._started(world, world.lives[decision.job], now)
        elif isinstance(decision, Finish) and decision.outcome == "failed" and decision.job in self._crashed:
            # Whoever fails for another reason, before or after, does not come again.
            root = self._root(decision.job)
            times = self._times[root]
            own = stream(self._seed, root, "pause", times)
            at = now + 1 + int(own.exponential(self._settings.pause))
            self._again(world, world.lives[decision.job], f"{root}~{times}", at)

    def _root(self, job: str) -> str:
        """The id of the trace; a trace may have a ~ in its own."""
        return self._roots.get(job, job)

    def _started(self, world: World, life: Life, now: int) -> None:
        root = self._root(life.job.id)
        self._crashed.pop(life.job.id, None)
        times = self._times.get(root, 0)
        if root not in self._mine or times >= self._settings.times:
            return
        at = now + 1 + int(stream(self._seed, root, "crash", times).exponential(self._settings.after))
        world.call(at, partial(self._crash, world, life, now))

    def _crash(self, world: World, life: Life, began: int, now: int) -> None:
        if life.shares and life.began == began:
            root = self._root(life.job.id)
            self._crashed[life.job.id] = None
            self._times[root] = self._times.get(root, 0) + 1
            self.crashes.append((life.job.id, now))
            world.end(life.job.id, now, 1)

    def _again(self, world: World, life: Life, id: str, at: int) -> None:
        while id in world.lives:
            id += "~"
        self._roots[id] = self._root(life.job.id)
        job = msgspec.structs.replace(life.job, id=id)
        world.submit(at, TraceJob(job=job, submit_s=at, duration_s=round(life.work)))
        world.lives[id].record.use = life.record.use


def build(settings: Mapping[str, str], dice: Dice) -> Retries:
    """The model with a seed of its own."""
    return Retries(read(Settings, settings, "retries"), seed_of(dice))
