"""How a job lies on nodes: over how many, with how many GPUs on each, and what else it takes of every one of them.

A job that names its nodes gets equal parts. One that names none gets as few nodes as hold its GPUs: one that is big
enough, else whole nodes and what is left on one more. Parts lie on different nodes, greatest first; a later part never
asks more of a node than an earlier one, so whoever has room for all parts can fill them in their order.
"""

import math
from collections.abc import Collection

import msgspec

from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import Settings

CORE = 1000
"""Thousandths of a core."""

Layout = tuple[tuple[int, int], ...]
"""(nodes, GPUs on each of them), greatest first."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """`nodes` nodes, and what the job takes of each.

    Units   milli: thousandths of each of its GPUs; cpus: thousandths of a core; memory: MiB; bandwidths: MiB/s
    """

    nodes: int
    gpus: int
    milli: int
    cpus: int
    memory: int
    memory_bandwidth: int
    network_bandwidth: int


def layout(job: Job, node_gpus: Collection[int]) -> Layout:
    """The nodes and the GPUs on each; `node_gpus` are the sizes of the nodes that it may use.

    Shape   20 GPUs on nodes of 8: ((2, 8), (1, 4)). No sizes: one node
    """
    if job.nodes is not None:
        return ((job.nodes, job.gpus // job.nodes),)
    size = max(node_gpus, default=0)
    if size >= job.gpus or size <= 0:
        return ((1, job.gpus),)
    whole, rest = divmod(job.gpus, size)
    return ((whole, size), (1, rest)) if rest else ((whole, size),)


def parts(job: Job, lies: Layout, settings: Settings, *, cores_told: bool = True) -> tuple[Part, ...]:
    """What a job that lies so takes of each node.

    Shape   said for the job: split by GPUs (by nodes where it has none), rounded up. Cores not said: the settings'
            least for each GPU, or one core where there is no GPU; none where no node tells its cores (`cores_told`),
            for then nobody counts them
    """
    cpus = _thousandths(job.cpus)
    memory = _thousandths(job.memory)
    memory_bandwidth = _thousandths(job.memory_bandwidth)
    network_bandwidth = _thousandths(job.network_bandwidth)
    count = sum(nodes for nodes, _ in lies)
    least = _thousandths(settings.cores_per_gpu)
    found = []
    for nodes, gpus in lies:
        if job.per == "node":
            over, below = 1, 1
        elif job.per == "gpu":
            over, below = gpus, 1
        elif job.gpus:
            over, below = gpus, job.gpus
        else:
            over, below = 1, count
        if job.cpus is not None:
            cores = _up(cpus * over, below)
        elif not cores_told:
            cores = 0
        else:
            cores = _up(least * gpus * job.gpu_milli, WHOLE) if gpus else CORE
        found.append(
            Part(
                nodes, gpus, job.gpu_milli, cores, _up(memory * over, below * 1000),
                _up(memory_bandwidth * over, below * 1000), _up(network_bandwidth * over, below * 1000),
            )
        )  # fmt: skip
    return tuple(found)


def sizes(job: Job, node_gpus: Collection[int] = ()) -> tuple[int, ...]:
    """How many GPUs a restart takes, largest first: all; one node less, and one more less; below a node, halves.

    Shape   the least that the job takes is always among them. `node_gpus`: sizes of the nodes, where the job names none
    """
    least = job.gpus if job.least_gpus is None else min(max(job.least_gpus, 1), job.gpus)
    step = job.gpus // job.nodes if job.nodes else max(node_gpus, default=0)
    found = [job.gpus]
    if 0 < step < job.gpus:
        found.extend(range((job.gpus - 1) // step * step, max(least, step) - 1, -step))
    if found[-1] <= step or step <= 0:
        while (half := found[-1] // 2) > least:
            found.append(half)
    if found[-1] > least:
        found.append(least)
    return tuple(found)


def resized(job: Job, gpus: int) -> Job:
    """The job with so many GPUs: nodes as full as before, and what was said for the whole job in proportion."""
    if gpus == job.gpus:
        return job
    on_each = job.gpus // job.nodes if job.nodes else 0
    # A count that is no multiple of a node's part has no equal parts: it lies as one that names no nodes.
    nodes = (gpus // on_each if gpus % on_each == 0 else None) if on_each else None
    share = gpus / job.gpus if job.per == "job" else 1.0

    def scaled(amount: float | None) -> float | None:
        return None if amount is None else amount * share

    return msgspec.structs.replace(
        job, gpus=gpus, nodes=nodes, cpus=scaled(job.cpus), memory=scaled(job.memory),
        memory_bandwidth=scaled(job.memory_bandwidth), network_bandwidth=scaled(job.network_bandwidth),
    )  # fmt: skip


def _up(amount: int, below: int) -> int:
    return -(-amount // below)


# 0.1 * 3 is a little more than 0.3: what is a billionth too much is not rounded up. Parts are counted in whole numbers.
def _thousandths(amount: float | None) -> int:
    return 0 if amount is None else math.ceil(amount * 1000 - 1e-6)
