"""The tiers and levels as one table of bands: who goes before whom, who may take whose place, and who shares the cap.

A band is what another scheduler calls a QOS or a priority class. Each tier has one for each level. Formal training has
a second one, named `resumable`, for the jobs that resume from checkpoints and so may be victims: other schedulers
cannot ask job by job, so that a job says it by the band it chooses.
"""

from collections.abc import Iterator

import msgspec

from gpuguard.scheduler.request import LEVELS, TIERS, Job, Level, Tier
from gpuguard.scheduler.settings import Settings

RESUMABLE = "resumable"


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """One tier at one level.

    Shape   rank: 0 goes first; bands of one tier and level have the same. victim: its jobs may be stopped, as they
            resume. takes: the bands whose jobs may be stopped for one of this, by name
    """

    name: str
    tier: Tier
    level: Level
    rank: int
    victim: bool
    takes: tuple[str, ...] = ()


def bands(settings: Settings) -> tuple[Band, ...]:
    """All bands in the order in which they go first.

    The level decides before the tier does, as a high job is one that somebody answers for.
    """
    found = sorted(_bands(settings), key=lambda band: (band.rank, band.name))
    return tuple(msgspec.structs.replace(band, takes=tuple(_taken(band, found, settings))) for band in found)


def _bands(settings: Settings) -> Iterator[Band]:
    steps = sorted({rule.order for rule in settings.tiers.values()})
    for tier in (tier for tier in TIERS if tier in settings.tiers):
        for level in LEVELS:
            rank = settings.levels[level] * len(steps) + steps.index(settings.tiers[tier].order)
            # A tier's own word: what its jobs are when they say no more than that they resume.
            resumes = Job(id="", tier=tier, checkpoints=True).may_be_preempted
            opted = tier == "training" and resumes
            yield Band(name=f"{tier}-{level}", tier=tier, level=level, rank=rank, victim=resumes and not opted)
            if opted:
                yield Band(name=f"{RESUMABLE}-{level}", tier=tier, level=level, rank=rank, victim=True)


def _taken(band: Band, among: list[Band], settings: Settings) -> Iterator[str]:
    """Strictly downward and in the same pool. Interactive work lives in what is free, background needs no GPU."""
    own = settings.tiers[band.tier]
    if not (settings.preemption.enabled and own.gpus and band.tier in {"training", "batch"}):
        return
    for other in among:
        rule = settings.tiers[other.tier]
        if other.victim and rule.gpus and rule.pool == own.pool and other.rank > band.rank:
            yield other.name


def high_caps(settings: Settings, gpus: int) -> dict[str, int]:
    """How many GPUs each band of the high level may hold at once, so that all together never hold more than its share.

    Schedulers that cap each band by itself know no cap over several: the whole is dealt out evenly, and what is left
    over goes to formal training first.
    """
    high = [band for band in bands(settings) if band.level == "high" and settings.tiers[band.tier].gpus]
    if not high:
        return {}
    each, over = divmod(int(settings.high_share * gpus + 1e-9), len(high))
    first = sorted(high, key=lambda band: (band.tier != "training", band.victim, band.rank, band.name))
    return {band.name: each + (place < over) for place, band in enumerate(first)}


def home(settings: Settings) -> str:
    """The pool that queues are in: that of formal training."""
    return settings.tiers["training"].pool if "training" in settings.tiers else next(iter(settings.pools))


def own_pools(settings: Settings) -> dict[str, int | None]:
    """The other pools that tiers with GPUs run in, with the longest session there; they take the place of a queue."""
    found: dict[str, int | None] = {}
    for tier in (tier for tier in TIERS if tier in settings.tiers):
        rule = settings.tiers[tier]
        if rule.gpus and rule.pool != home(settings):
            before = found.get(rule.pool, 0)
            found[rule.pool] = None if rule.session is None or before is None else max(before, rule.session)
    return found
