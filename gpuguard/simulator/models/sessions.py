"""Interactive sessions: people who hold GPUs for days and use a tenth of them, with or without a limit.

Sessions are jobs of the interactive tier with ids session-1, session-2, ... With a limit the scheduler ends each when
it is used up, and its owner comes back some times; without one it lasts as long as its owner likes.

Assumes  how long sessions last, how many GPUs they hold and how much they use (1 to 3 days, 1 to 8 GPUs, 10 %) is the
         claim's; that whoever was ended comes back three times, some hours later, is nobody's measurement
Source   the text: sessions end strictly after 1 h and free their cards
"""

from collections.abc import Mapping

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Finish
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.scheduler.settings import Settings as Site
from gpuguard.simulator.chance import Dice, seed_of, stream
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.options import Count, Length, Part, Seconds, read
from gpuguard.simulator.trace import TraceJob

PREFIX = "session-"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shape   per_day: how many begin. most: GPUs, any power of two up to it. cap: the limit, 0: none. returns: how
    often a session that was ended is opened again, `gap` later on the mean

    Units   seconds
    """

    per_day: Length = 20.0
    most: Count = 8
    shortest: Seconds = DAY
    longest: Seconds = 3 * DAY
    use: Part = 0.1
    cap: Seconds = HOUR
    returns: Count = 3
    gap: Length = 4.0 * HOUR


class Sessions(Model):
    name = "sessions"

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._end = 0

    def site(self, settings: Site) -> Site:
        rule = msgspec.structs.replace(settings.tiers["interactive"], session=self._settings.cap or None)
        return msgspec.structs.replace(settings, tiers={**settings.tiers, "interactive": rule})

    def begin(self, world: World, start: int, end: int) -> None:
        self._end = end
        if not self._settings.per_day:
            return
        draws = stream(self._seed, "arrivals")
        at, count = start + int(draws.exponential(DAY / self._settings.per_day)), 1
        while at < end:
            self._open(world, f"{PREFIX}{count}", at)
            at, count = at + int(draws.exponential(DAY / self._settings.per_day)), count + 1

    def _open(self, world: World, id: str, at: int) -> None:
        # The same person with the same wish, however often he has to come back.
        own = stream(self._seed, id.partition(".")[0])
        gpus = 1 << own.whole(0, max(1, self._settings.most).bit_length() - 1)
        length = max(1, round(own.between(self._settings.shortest, self._settings.longest)))
        job = Job(
            id=id, user=id.partition(".")[0], tier="interactive", gpus=gpus, walltime=length, requeues=0
        )  # fmt: skip
        world.submit(at, TraceJob(job=job, submit_s=at, duration_s=length))
        world.lives[id].record.use = self._settings.use

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        if not isinstance(decision, Finish) or decision.outcome != "timeout" or not decision.job.startswith(PREFIX):
            return
        first, _, times = decision.job.partition(".")
        turn = int(times or 0) + 1
        if turn > self._settings.returns:
            return
        at = now + 1 + int(stream(self._seed, first, "again", turn).exponential(self._settings.gap))
        if at < self._end:
            self._open(world, f"{first}.{turn}", at)


def build(settings: Mapping[str, str], dice: Dice) -> Sessions:
    """The model with a seed of its own."""
    return Sessions(read(Settings, settings, "sessions"), seed_of(dice))
