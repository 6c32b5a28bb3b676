"""Whether a job could ever run on the nodes that exist, and how it would lie on them.

What counts is what exists, whether it is busy, drained or in repair at present. Found once for each shape of job.
A node without a pool takes jobs of every pool. Nodes whose rack (or pod) nobody tells are in one rack (or pod).
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.layout import CORE, Part, layout, parts
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings

SHAPES: Final = 10_000
"""Shapes that are remembered; a site with more finds some of them anew."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`count` nodes that are alike, whatever they do at present.

    Units   as those of a node that joins: cores, MiB, MiB/s; None does not constrain
    """

    gpus: int
    gpu_type: str = ""
    gpu_memory: int | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_bandwidth: float | None = None
    network_bandwidth: float | None = None
    pool: str = ""
    rack: str = ""
    pod: str = ""
    count: int = 1


def kinds(nodes: Iterable[NodeJoined]) -> tuple[Kind, ...]:
    """The nodes, those that are alike counted together, in the order in which the first of each came."""
    counts: dict[Kind, int] = {}
    for node in nodes:
        kind = Kind(
            gpus=node.gpus, gpu_type=node.gpu_type, gpu_memory=node.gpu_memory, cpus=node.cpus, memory=node.memory,
            memory_bandwidth=node.memory_bandwidth, network_bandwidth=node.network_bandwidth, pool=node.pool,
            rack=node.rack, pod=node.pod,
        )  # fmt: skip
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(msgspec.structs.replace(kind, count=count) for kind, count in counts.items())


class Capacity:
    """The nodes of a site, counted; made anew when they or the settings change."""

    def __init__(self, settings: Settings, machines: Sequence[Kind]) -> None:
        self.settings = settings
        self.machines = tuple(kind for kind in machines if kind.count > 0)
        self._fits: dict[tuple[object, ...], tuple[Part, ...] | None] = {}

    def fitting(self, job: Job) -> tuple[Part, ...] | None:
        """How the job lies on nodes of which there are enough, in all; None: on no nodes that exist."""
        tied = self._tied(job)
        shape = (
            job.gpus, job.nodes, job.gpu_milli, job.gpu_types, job.gpu_memory, job.cpus, job.memory,
            job.memory_bandwidth, job.network_bandwidth, job.per, job.pool or self.settings.tiers[job.tier].pool, tied,
        )  # fmt: skip
        try:
            return self._fits[shape]
        except KeyError:
            if len(self._fits) >= SHAPES:
                self._fits.clear()
            return self._fits.setdefault(shape, self._fit(job, tied))

    def _tied(self, job: Job) -> str:
        """The room that all nodes of the job have to share."""
        if job.wish.required and job.wish.within != "any":
            return job.wish.within
        pool = self.settings.pools.get(job.pool or self.settings.tiers[job.tier].pool)
        return "any" if pool is None or pool.spans else "pod"

    def _fit(self, job: Job, tied: str) -> tuple[Part, ...] | None:
        kinds = self._eligible(job)
        told = any(kind.cpus is not None for kind in kinds)
        rooms: dict[tuple[str, ...], list[Kind]] = {}
        for kind in kinds:
            rooms.setdefault(_room(kind, tied), []).append(kind)
        # The greatest nodes first; where there are too few of them, smaller ones.
        for size in sorted({kind.gpus for kind in kinds}, reverse=True):
            asked = parts(job, layout(job, (size,)), self.settings, cores_told=told)
            if any(_holds(room, asked) for room in rooms.values()):
                return asked
        return None

    def _eligible(self, job: Job) -> list[Kind]:
        """The nodes of its pool that have the GPUs it wants, however many."""
        pool = job.pool or self.settings.tiers[job.tier].pool
        kinds = [kind for kind in self.machines if kind.pool in {"", pool}]
        if job.gpus:
            kinds = [
                kind
                for kind in kinds
                if (not job.gpu_types or kind.gpu_type in job.gpu_types)
                and (job.gpu_memory is None or kind.gpu_memory is None or kind.gpu_memory >= job.gpu_memory)
            ]
        return kinds

    def shortage(self, job: Job) -> tuple[str, str]:
        """Why it fits nothing: the first thing asked of which there is too little."""
        pool = job.pool or self.settings.tiers[job.tier].pool
        kinds = self._eligible(job)
        wanted = " or ".join(job.gpu_types) + " " if job.gpu_types else ""
        memory = f" of at least {job.gpu_memory} MiB" if job.gpu_memory is not None else ""
        if not kinds or (job.gpus and not any(kind.gpus for kind in kinds)):
            asked = f"with {wanted}GPUs{memory} " if job.gpus else ""
            types = sorted({kind.gpu_type for kind in self.machines if kind.gpus and kind.gpu_type})
            has = f"The site has GPUs of {', '.join(types)}" if types else "The site tells no types of GPUs"
            return f"No node {asked}is in pool {pool}.", f"{has}: ask other GPUs, or another pool."
        told = any(kind.cpus is not None for kind in kinds)
        wants = parts(job, layout(job, {kind.gpus for kind in kinds}), self.settings, cores_told=told)
        need, total = wants[0], sum(part.nodes for part in wants)
        of = f" with {need.gpus} {wanted}GPU{'' if need.gpus == 1 else 's'}{memory}" if job.gpus else ""
        sentence = f"It asks {total} node{'' if total == 1 else 's'}{of} in pool {pool}"
        left = [kind for kind in kinds if kind.gpus >= need.gpus]
        if not _holds(left, tuple(_bare(part) for part in wants)):
            there = sum(kind.count for kind in left)
            return f"{sentence}; {_exist(there)}.", "Ask fewer GPUs, or lay them on more or fewer nodes."
        for field, amount, each in (
            ("cpus", need.cpus, f"{need.cpus / CORE:g} cores"),
            ("memory", need.memory, f"{need.memory} MiB"),
            ("memory_bandwidth", need.memory_bandwidth, f"{need.memory_bandwidth} MiB/s of memory bandwidth"),
            ("network_bandwidth", need.network_bandwidth, f"{need.network_bandwidth} MiB/s of network bandwidth"),
        ):
            left = [kind for kind in left if _enough(kind, field, amount)]
            if not _holds(left, tuple(_bare(part) for part in wants)):
                there = sum(kind.count for kind in left)
                said = "" if field != "cpus" or job.cpus is not None else " (not said: the least for its GPUs)"
                return (
                    f"{sentence}, and {each}{said} on each; {_exist(there)}.",
                    f"Say less for `{field}`, or lay it on more `nodes`.",
                )
        tied = self._tied(job)
        if tied != "any":
            return f"{sentence}, all in one {tied}; no {tied} has as many.", "Ask fewer, or do not require it."
        return f"{sentence}; too few nodes have all of it at once.", "Ask less of each node."


def _exist(count: int) -> str:
    return f"{count} such node{' exists' if count == 1 else 's exist'}"


def _room(kind: Kind, tied: str) -> tuple[str, ...]:
    return () if tied == "any" else (kind.pod,) if tied == "pod" else (kind.pod, kind.rack)


def _enough(kind: Kind, field: str, amount: int) -> bool:
    there: float | None = getattr(kind, field)
    return there is None or (there * CORE + 1e-6 if field == "cpus" else there) >= amount


def _carries(kind: Kind, part: Part) -> bool:
    return kind.gpus >= part.gpus and all(
        _enough(kind, field, getattr(part, field))
        for field in ("cpus", "memory", "memory_bandwidth", "network_bandwidth")
    )


def _bare(part: Part) -> Part:
    """Its GPUs alone."""
    return Part(part.nodes, part.gpus, part.milli, 0, 0, 0, 0)


def _holds(kinds: Sequence[Kind], asked: Sequence[Part]) -> bool:
    """There are nodes for all parts at once: each node that carries a part carries every later one too."""
    total = 0
    for part in asked:
        total += part.nodes
        if sum(kind.count for kind in kinds if _carries(kind, part)) < total:
            return False
    return True
