"""What a job asks for, as its owner said it: the noun that a submission carries through the whole core.

Units   seconds, MiB, cores; `gpu_milli` is a share of one GPU in thousandths
"""

from typing import Literal

import msgspec

Tier = Literal["interactive", "training", "batch", "background"]
Level = Literal["high", "normal", "low"]
TIERS: tuple[Tier, ...] = ("interactive", "training", "batch", "background")
LEVELS: tuple[Level, ...] = ("high", "normal", "low")

WHOLE = 1000
"""Thousandths of a GPU."""

Relation = Literal["afterok", "afterany", "singleton", "condition"]


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """What must come true before a job may start.

    Shape   afterok, afterany: `name` is another job's id. singleton: no other job of the same user and `name` may be
            queued before it or run. condition: `name` is a word that a ConditionMet event tells (file present, model
            downloaded)
    """

    relation: Relation
    name: str


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How near to each other the nodes of a job shall be.

    Shape   within: the smallest room that all nodes should share. required: start nowhere else. wait: how long after
            it could first have started elsewhere a job waits for this room before it takes what there is; None: as the
            pool says
    Source  as Slurm's --switches=count@time
    """

    within: Literal["rack", "pod", "any"] = "rack"
    required: bool = False
    wait: int | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it was submitted.

    Shape   gpus: in all; 0 is work for CPUs. nodes: over how many nodes, in equal parts; None: as few as hold it, whole
            nodes and what is left on one more. gpu_milli under 1000: a share of one GPU, of which others may hold the
            rest. gpu_types: any of these; empty: any. cpus, memory, memory_bandwidth (MiB/s) and network_bandwidth
            (MiB/s): what is asked `per` job, node or GPU; None: not said (cpus: the settings' least by GPU).
            gpu_memory: MiB on each GPU. walltime: the most it may run; required for training. checkpoints: it saves and
            resumes, so its end is no loss. preemptible: None follows the tier; True needs checkpoints.
            extends: checkpoints prove that it may run on past its walltime. least_gpus: what it also takes when it is
            started again; None: only all. requeues: how often a failure may start it again. exclusive: alone on its
            nodes. prepares: makes data for others (room is kept for it). proof: exit 0 counts only with a proof of
            completion
    """

    id: str
    user: str = "anyone"
    account: str = "all"
    queue: str = "training"
    qos: str = "normal"
    tier: Tier = "training"
    level: Level = "normal"
    name: str = ""
    gpus: int = 1
    nodes: int | None = None
    gpu_milli: int = WHOLE
    gpu_types: tuple[str, ...] = ()
    gpu_memory: int | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_bandwidth: float | None = None
    network_bandwidth: float | None = None
    per: Literal["job", "node", "gpu"] = "job"
    walltime: int | None = None
    checkpoints: bool = False
    preemptible: bool | None = None
    extends: bool = False
    least_gpus: int | None = None
    requeues: int = 3
    exclusive: bool = False
    prepares: bool = False
    proof: bool = False
    wish: Wish = Wish()
    after: tuple[Dependency, ...] = ()
    pool: str | None = None

    @property
    def shares(self) -> bool:
        """It takes a part of one GPU."""
        return self.gpu_milli < WHOLE

    @property
    def may_be_preempted(self) -> bool:
        """It can be a victim: it resumes, and its tier or its owner allows it."""
        if not self.checkpoints:
            return False
        return self.tier in {"batch", "training"} if self.preemptible is None else self.preemptible
