"""Lines to include in slurm.conf: what is counted, the plan, the order, preemption, and the partitions."""

import math
from collections.abc import Iterator

from gpuguard.scheduler.renderings import Wish
from gpuguard.scheduler.renderings.slurm.partitions import Partition, allowed, said, span
from gpuguard.scheduler.renderings.slurm.qos import FILE as QOS
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE, Settings
from gpuguard.scheduler.tiers import Band, home

FILE = "gpuguard-slurm.conf"

# Priorities are whole numbers: this many stand for an hour by which a job counts as submitted earlier.
POINTS = 1000
# The longest that the backfill scheduler can look ahead. Units: minutes
WINDOW = 43200
# Above a day of looking ahead, steps of a minute make a plan too long to go through every cycle. Units: seconds
COARSE, FINE = 600, 60
# How many waiting jobs a backfill cycle looks at when the settings set no bound; Slurm's own 500 is less than a queue.
DEPTH = 5000
# Slurm lets a job wait no longer than this for its switches unless it is told. Units: seconds
SWITCH_WAIT = 300


def _limit(seconds: int | None) -> str:
    return "UNLIMITED" if seconds is None else span(seconds)


def _points(hours: float) -> int:
    return round(hours * POINTS)


def lines(settings: Settings, wish: Wish, places: list[Partition], every: tuple[Band, ...]) -> Iterator[str]:
    yield from said(
        f"{FILE}: tiers, queues, levels, order and preemption of gpuguard's scheduler, for Slurm 22.05 and later. "
        "Written by `gpuguard scheduler render --for slurm`: write it anew rather than edit it."
    )
    yield from said(
        "It needs slurmdbd. First put the line AccountingStorageTRES into slurm.conf and restart slurmctld: from then "
        f"on the database counts GPUs. Then run {QOS}, as slurmctld drops from AllowQos what it does not know. "
        "Then take from slurm.conf the keys that stand here, put `include` and the path of this file after its "
        "NodeName lines, and restart slurmctld; scontrol reconfigure will do where only partitions changed."
    )
    yield ""
    yield from _resources(settings, wish)
    yield ""
    yield from _backfill(settings)
    yield ""
    yield from _order(settings)
    yield ""
    yield from _preemption(settings)
    yield ""
    yield from _queues(settings, wish, places, every)


def _resources(settings: Settings, wish: Wish) -> Iterator[str]:
    yield "GresTypes=gpu"
    yield "SelectType=select/cons_tres"
    if wish.memory is None:
        yield from said(
            "Memory is not counted, as a job that names none would take a node's whole: --nodes FILE with a column mem "
            "gives each GPU its part, and then CR_Core_Memory."
        )
        yield "SelectTypeParameters=CR_Core"
    else:
        yield "SelectTypeParameters=CR_Core_Memory"
        yield from said("What a job gets that names no memory: of the node that has least for each GPU. MiB.")
        yield f"DefMemPerGPU={wish.memory}"
    types = "".join(f",gres/gpu:{name.lower()}" for name in settings.gpu_weights)
    yield f"AccountingStorageTRES=gres/gpu{types}"
    yield from said("Without these three no QOS binds anybody.")
    yield "AccountingStorageEnforce=associations,limits,qos"
    yield from said("A job over a partition's time limit is refused at once; by default it would wait for ever.")
    yield "EnforcePartLimits=ALL"
    if needing := [tier for tier, rule in settings.tiers.items() if rule.walltime_required]:
        yield from said(
            f"{' and '.join(needing).capitalize()} must say how long it runs. Slurm knows no such rule for one QOS; "
            "this one, for every job, takes the place of a JobSubmitPlugins of yours:"
        )
        yield "#JobSubmitPlugins=require_timelimit"


def _backfill(settings: Settings) -> Iterator[str]:
    if not settings.backfill:
        yield "SchedulerType=sched/builtin"
        return
    longest = max((queue.limit or WINDOW * MINUTE for queue in settings.queues.values()), default=DAY)
    window = min(math.ceil(longest / MINUTE), WINDOW)
    fine = window <= DAY // MINUTE
    yield from said(
        f"The plan reaches as far as the longest limit ({span(window * MINUTE)}): what ends beyond it would be started "
        "past waiting jobs. It goes in coarse steps, as a long one in fine steps makes a cycle too slow; bf_continue "
        "goes on where a cycle had to let go of its locks. The first jobs alone hold reservations, as ours do; Slurm's "
        "are of whole nodes, also for a job of one GPU."
    )
    words = [
        f"bf_window={window}", f"bf_resolution={FINE if fine else COARSE}",
        f"bf_max_job_test={DEPTH}", f"bf_job_part_count_reserve={settings.reservations}",
        "bf_continue",
    ]  # fmt: skip
    if settings.preemption.enabled:
        words.append("preempt_youngest_first")  # the nearest that Slurm has to least work lost
    wait = max((pool.wait for pool in settings.pools.values()), default=0)
    if settings.topology and wait > SWITCH_WAIT:
        words.append(f"max_switch_wait={wait}")
    yield "SchedulerType=sched/backfill"
    yield f"SchedulerParameters={','.join(words)}"


def _order(settings: Settings) -> Iterator[str]:
    order = settings.order
    if settings.key == "fifo":
        yield "PriorityType=priority/basic"
        return
    weight = max((queue.weight for queue in settings.queues.values()), default=0.0)
    age, share, size = order.patience / HOUR, order.share, order.most if order.size else 0.0
    # One step of the QOS outweighs all the rest, so that level and tier come first. It is not made relative to the
    # highest QOS of the site, which may be another's.
    step = age + share + size + weight + 1
    yield from said(
        f"{POINTS} points are an hour by which a job counts as submitted earlier. Level and tier (the QOS) outweigh "
        f"all the rest together. Age grows for {span(order.patience)}; fair share is Slurm's Fair Tree on usage that "
        f"halves every {span(order.half_life)}."
    )
    yield from said(
        "Not to be had in Slurm: a bonus by each doubling of the GPUs (size counts in proportion, up to "
        f"{order.most:g} h for the whole cluster), and one for short jobs ({order.length:g} h by each doubling of the "
        "walltime); a job that has waited too long goes before its equals, not before everybody."
    )
    yield "PriorityType=priority/multifactor"
    yield f"PriorityDecayHalfLife={order.half_life // DAY}-{round(order.half_life % DAY / HOUR)}"
    yield f"PriorityCalcPeriod={max(1, order.refresh // MINUTE)}"
    yield f"PriorityMaxAge={span(order.patience)}"
    yield "PriorityFavorSmall=NO"
    yield "PriorityFlags=NO_NORMAL_QOS"
    yield f"PriorityWeightAge={_points(age)}"
    yield f"PriorityWeightFairShare={_points(share)}"
    yield f"PriorityWeightPartition={_points(weight)}"
    yield f"PriorityWeightQOS={_points(step)}"
    yield f"PriorityWeightTRES=GRES/gpu={_points(size)}"


def _preemption(settings: Settings) -> Iterator[str]:
    rule = settings.preemption
    if not rule.enabled:
        yield "PreemptType=preempt/none"
        yield "PreemptMode=OFF"
        return
    yield from said(
        "A QOS says in its own Preempt whom it may stop. Formal training is on no such list and so is never stopped; "
        "who resumes from checkpoints says so by a QOS resumable-*. The stopped job gets SIGTERM, then SIGKILL after "
        "its QOS's GraceTime, and waits again; for that its script must take --requeue or nothing, not --no-requeue."
    )
    yield from said(
        f"Not to be had in Slurm: the pause of {span(rule.cooldown)} before the same job is stopped again, the bound "
        f"of {rule.gpus_per_hour} GPUs stopped in an hour, a place held for the one that stopped them, and victims by "
        "the work lost since their last checkpoint."
    )
    yield "PreemptType=preempt/qos"
    yield "PreemptMode=REQUEUE"
    yield f"PreemptExemptTime={span(rule.least_run)}"
    yield "JobRequeue=1"


def _queues(settings: Settings, wish: Wish, places: list[Partition], every: tuple[Band, ...]) -> Iterator[str]:
    cores = math.ceil(settings.cores_per_gpu)
    yield from said(
        f"A GPU comes with {cores} cores unless the job asks for another number; Slurm knows no least. Time limits "
        "are of the queue, and a longer one is an administrator's to give (scontrol update JobId=N TimeLimit=+HOURS)."
    )
    if own := [one.pool for one in places if one.pool != home(settings) and one.pool not in wish.nodes]:
        yield from said(
            f"The nodes of {', '.join(own)} are not known here, so that they are those of all: --pool {own[0]}=NODES "
            f"gives it its own, and --pool {home(settings)}=NODES the others theirs. To let several jobs share a card "
            "there, its gres.conf needs Name=shard."
        )
    if settings.gpu_weights:
        yield from said(
            "Usage is charged in standard cards. Each GPU counts 1, and one of a type that the job named counts what "
            "is more than that on top: Slurm charges a type only where it is named."
        )
    most = max((one.weight for one in places), default=0.0)
    for one in places:
        rule = settings.pools.get(one.pool)
        words = [
            f"PartitionName={one.name}", f"Nodes={wish.nodes.get(one.pool, 'ALL')}", "State=UP",
            f"Default={'YES' if one.name == Job(id='').queue else 'NO'}", f"MaxTime={_limit(one.limit)}",
            f"DefCpuPerGPU={cores}", f"PriorityJobFactor={round(one.weight / most * 1000) if most else 1}",
        ]  # fmt: skip
        if rule is not None and rule.placement == "spread":
            words.append("LLN=YES")
        if one.qos is not None:
            words.append(f"QOS={one.qos}")
        words.append(f"AllowQos={','.join(allowed(one, settings, every))}")
        words.append(f'TRESBillingWeights="{_billing(settings)}"')
        yield " ".join(words)


def _billing(settings: Settings) -> str:
    more = ((name, weight - 1) for name, weight in settings.gpu_weights.items())
    extra = [f"GRES/gpu:{name.lower()}={weight:g}" for name, weight in more if weight]
    return ",".join(["CPU=0", "Mem=0", "GRES/gpu=1", *extra])
