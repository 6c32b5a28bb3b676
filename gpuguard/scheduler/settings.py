"""What a site may tune of the scheduler. Defaults are complete."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuguard.scheduler.request import Level, Tier

MINUTE, HOUR, DAY = 60, 3600, 86400


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with its limits; None is no limit. `weight`: hours by which its jobs count as submitted earlier."""

    limit: int | None = None
    gpus: int | None = None
    weight: float = 0.0
    extension: int = 0


class TierRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a tier is treated.

    Shape   session: seconds after which a session is ended, however long it asked. shares: may hold a part of a GPU.
            order: who yields to whom, the higher to the lower. first: goes before all other tiers. delay: hours by
            which its jobs count as submitted later
    """

    walltime_required: bool = False
    session: int | None = None
    shares: bool = True
    gpus: bool = True
    pool: str = "training"
    order: int = 0
    first: bool = False
    delay: float = 0.0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A logical part of the cluster.

    Shape   placement: pack fills nodes, spread evens them. terms: scorers that choose among nodes, in order, where the
            usual ones will not do. watts: budget of the nodes that are in use, None: none.
            wait: the most seconds that a job waits for its rack before it takes nodes further apart. spans: whether a
            job may span
            pods
    """

    placement: Literal["pack", "spread"] = "pack"
    terms: tuple[str, ...] = ()
    watts: float | None = None
    wait: int = DAY
    spans: bool = True


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of the order, in hours of age: a job's virtual time is its submit time with these added and taken away.

    Shape   size: earlier by so much for each doubling of the GPUs. several: earlier by so much where it takes several
            nodes, which come together late. length: later for each doubling of (the walltime
            plus 2 h). most: no job is moved further than this, which bounds how often one is overtaken. share: how
            much later the user who had most is. patience: seconds after which a job goes first, whatever its key
    """

    size: float = 18.0
    several: float = 48.0
    length: float = 18.0
    most: float = 168.0
    share: float = 24.0
    qos: Mapping[str, float] = {}
    patience: int = 14 * DAY
    half_life: int = 7 * DAY
    refresh: int = 5 * MINUTE


class Turning(msgspec.Struct, frozen=True, kw_only=True):
    """Racks that jobs of one node stay out of which may run longer than `length`.

    Shape   share: so many times the part that jobs over several nodes have of the GPU time; 0: none. most: no more than
            this part of the racks. expected: that part before anything is known. half_life: of what is known
    """

    share: float = 2.0
    most: float = 1 / 6
    length: int = 2 * DAY
    expected: float = 0.1
    half_life: int = 7 * DAY


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    grace: int = 2 * MINUTE
    least_run: int = 30 * MINUTE
    cooldown: int = 2 * HOUR
    gpus_per_hour: int = 256
    hold: int = 10 * MINUTE


class Care(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes that fail are treated. `flaps` returns within `flap_window` make a node go to maintenance.

    `again`: seconds after which what was asked of an agent (Diagnose, Reclaim) is asked again.
    """

    heartbeat: int = 60
    dead: int = 10 * MINUTE
    flaps: int = 3
    flap_window: int = DAY
    again: int = 10 * MINUTE


def _queues() -> dict[str, Queue]:
    return {
        "trial": Queue(limit=2 * HOUR, weight=2.0),
        "training": Queue(limit=7 * DAY, extension=7 * DAY),
        "urgent": Queue(limit=DAY, weight=24.0),
    }


def _tiers() -> dict[Tier, TierRule]:
    return {
        "interactive": TierRule(session=HOUR, pool="interactive", first=True),
        "training": TierRule(walltime_required=True, shares=False, order=1),
        "batch": TierRule(order=2, delay=6.0),
        "background": TierRule(gpus=False, order=3, delay=12.0),
    }


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of `cycle` that is no event.

    Shape   shares: by account or user, 1 where nothing is said. gpu_weights: standard cards by GPU type. high_share:
            the part of all allocated GPUs that jobs of level high may hold. cores_per_gpu: at least so many cores go
            with a GPU. reservations: for so many of the first. key: how jobs are ordered
    """

    queues: Mapping[str, Queue] = msgspec.field(default_factory=_queues)
    tiers: Mapping[Tier, TierRule] = msgspec.field(default_factory=_tiers)
    pools: Mapping[str, Pool] = msgspec.field(
        default_factory=lambda: {"training": Pool(), "interactive": Pool(placement="spread", wait=0)}
    )
    order: Order = Order()
    turning: Turning = Turning()
    preemption: Preemption = Preemption()
    care: Care = Care()
    shares: Mapping[str, float] = {}
    gpu_weights: Mapping[str, float] = msgspec.field(default_factory=lambda: {"A10": 1.0, "A100": 4.0})
    high_share: float = 0.2
    cores_per_gpu: float = 2.0
    reservations: int = 5
    backfill: bool = True
    key: Literal["fifo", "weighted"] = "weighted"
    topology: bool = True
    queued_share: float = 0.3
    levels: Mapping[Level, int] = msgspec.field(default_factory=lambda: {"high": 0, "normal": 1, "low": 2})
