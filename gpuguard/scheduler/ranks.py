"""Who goes before whom when there is not enough for both: one number, and who may use it against others.

Theory. Three levels, and within a level the tiers in the order that the settings give them: batch yields to training
of its level. Against everybody claiming the top level there is a cap: what goes beyond it counts as normal.
"""

from gpuguard.scheduler.request import Job, Level
from gpuguard.scheduler.settings import Settings


def rank(job: Job, settings: Settings, level: Level | None = None) -> int:
    """Lower is more important: the level decides, the tier's order within it. `level`: what the job counts as now."""
    orders = [rule.order for rule in settings.tiers.values()]
    width = max(orders) - min(orders) + 1
    return settings.levels[level or job.level] * width + settings.tiers[job.tier].order - min(orders)


def may_preempt(job: Job, settings: Settings) -> bool:
    """It may ask others to leave. Interactive work lives in what is free; work without GPUs has nothing to take."""
    return settings.preemption.enabled and job.gpus > 0 and job.tier in {"training", "batch"}


def high_allowed(high: int, allocated: int, asked: int, share: float) -> bool:
    """A job of this size still counts as high when it starts; else it counts as normal, whole.

    Shape   high, allocated: GPUs held now, less those of the victims if there are any; in one unit, any
    """
    # Thousandths of a per cent are exact enough for a setting, and the same on every machine.
    return (high + asked) * 100_000 <= round(share * 100_000) * (allocated + asked)
