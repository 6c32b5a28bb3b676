"""What both files have in common: the partitions, who runs in them, and how Slurm spells times and priorities."""

from textwrap import wrap

import msgspec

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE, Settings
from gpuguard.scheduler.tiers import Band, home, own_pools

WIDTH = 118


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or a pool that has nodes of its own.

    Shape   limit: the longest run in seconds. weight: hours by which its jobs go first. gpus: most of them in use
    """

    name: str
    pool: str
    limit: int | None
    weight: float = 0.0
    gpus: int | None = None

    @property
    def qos(self) -> str | None:
        """The QOS that bounds all jobs of the partition together."""
        return None if self.gpus is None else f"queue-{self.name}"


def partitions(settings: Settings) -> list[Partition]:
    """The queues, then the pools."""
    queues = [
        Partition(name=name, pool=home(settings), limit=queue.limit, weight=queue.weight, gpus=queue.gpus)
        for name, queue in settings.queues.items()
    ]
    return [*queues, *(Partition(name=pool, pool=pool, limit=limit) for pool, limit in own_pools(settings).items())]


def allowed(partition: Partition, settings: Settings, every: tuple[Band, ...]) -> list[str]:
    """The bands that run there; what needs no GPU has no pool of its own and runs in any queue."""

    def fits(band: Band) -> bool:
        rule = settings.tiers[band.tier]
        return (rule.pool if rule.gpus else home(settings)) == partition.pool

    return [band.name for band in every if fits(band)]


def is_victim(band: Band, settings: Settings) -> bool:
    """Its jobs may be stopped, and something may stop them."""
    return band.victim and settings.preemption.enabled


def priority(band: Band, every: tuple[Band, ...]) -> int:
    """Higher is better here, and 0 is what a QOS has of which nobody spoke."""
    return max(other.rank for other in every) - band.rank + 1


def span(seconds: int) -> str:
    """A length of time as days-hours:minutes:seconds."""
    days, rest = divmod(seconds, DAY)
    clock = f"{rest // HOUR:02}:{rest % HOUR // MINUTE:02}:{rest % MINUTE:02}"
    return f"{days}-{clock}" if days else clock


def said(text: str) -> list[str]:
    """A comment, in lines."""
    return [f"# {line}" for line in wrap(text, WIDTH - 2, break_on_hyphens=False)]
