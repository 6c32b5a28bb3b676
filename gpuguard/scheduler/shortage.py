"""What is missing where a job finds no room: nodes that take work, GPUs, or what goes with them."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from gpuguard.scheduler.cluster import RESOURCES, Ask, Flags, Ints
from gpuguard.scheduler.queue import Chunk
from gpuguard.scheduler.request import WHOLE
from gpuguard.scheduler.state import State

SHOWN = 4
"""So many names are in a sentence."""


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """Shape: drained: too few nodes take work; room: too few GPUs are free; beside: too little is free beside these."""

    rule: Literal["drained", "room", "beside"]
    why: str
    facts: Mapping[str, int] = {}


def shortage(state: State, chunks: Sequence[Chunk], good: Ints) -> Shortage:
    """What these parts of a job that has no room miss first.

    Shape   good: how many GPUs of each node are not bad
    """
    for chunk in chunks:
        found = _short(state, chunk, good)
        if found is not None:
            return found
    why = f"it wants {wish(chunks[0])} and {wish(chunks[-1])}, and there are not enough nodes for both at once"
    return Shortage(rule="room", why=why)


def _short(state: State, chunk: Chunk, good: Ints) -> Shortage | None:
    """What this part misses; None: nothing."""
    cluster, ask = state.cluster, chunk.ask
    least = ask.planned
    exist = cluster.eligible(ask.kinds, ask.pool) & (cluster.size >= least)
    if ask.card_memory:
        exist = exist & (cluster.card_memory >= ask.card_memory)
    up = exist & cluster.usable & (good >= least)
    if np.count_nonzero(up) < chunk.nodes:
        return _drained(state, chunk, exist, up)
    fits = int(np.count_nonzero(cluster.fits(ask)))
    if fits >= chunk.nodes:
        return None
    free = up & (cluster.count >= ask.gpus)
    if ask.milli:
        free = up & ((cluster.count > 0) | (cluster.partial >= ask.milli))
    count, of = int(np.count_nonzero(free)), int(np.count_nonzero(up))
    facts = {"nodes": chunk.nodes, "gpus": ask.gpus, "free_nodes": count, "up": of}
    if count < chunk.nodes:
        why = f"it wants {wish(chunk)}: {count} of the {of} that could give it have that now"
        return Shortage(rule="room", why=why, facts=facts)
    why = f"it wants {wish(chunk)}: these are free on {count_of(count, 'node')}, but {_scarce(state, ask, free)}"
    return Shortage(rule="beside", why=why, facts={**facts, "fits": fits})


def _scarce(state: State, ask: Ask, free: Flags) -> str:
    """What is missing on most of these nodes beside their GPUs."""
    cluster = state.cluster
    if ask.alone and not (free & (cluster.busy == 0)).any():
        return "none of them is empty, and it wants them for itself"
    have = {
        name: int(np.count_nonzero(free & (cluster.spare[row] >= ask.amounts[row])))
        for row, name in enumerate(RESOURCES)
        if ask.amounts[row] and cluster.constrains[row]
    }
    if not have:
        return "too few of them have the rest of what it wants"
    name = min(have, key=lambda name: have[name])
    amount = ask.amounts[RESOURCES.index(name)]
    if name == "cpus":
        if ask.spares and have[name]:
            return f"the cores that are left go with free GPUs ({ask.spares / 1000:g} each)"
        return f"the {amount / 1000:g} cores beside them on {have[name]}"
    unit = "MiB" if name == "memory" else "MiB/s"
    return f"the {amount} {unit} of {name.replace('_', ' ')} beside them on {have[name]}"


def _drained(state: State, chunk: Chunk, exist: Flags, up: Flags) -> Shortage:
    names = state.cluster.names
    out = [names[node] for node in np.nonzero(exist & ~up)[0].tolist()]
    said = [f"{name} {_standing(state, name)}" for name in out[:SHOWN]]
    if len(out) > SHOWN:
        said.append(f"{len(out) - SHOWN} more are out")
    count, there = int(np.count_nonzero(up)), int(np.count_nonzero(exist))
    why = f"it wants {wish(chunk)} of pool {chunk.ask.pool}: {count} of the {there} that exist take work"
    if said:
        why += f" ({'; '.join(said)})"
    return Shortage(rule="drained", why=why, facts={"nodes": chunk.nodes, "up": count, "exist": there})


def _standing(state: State, node: str) -> str:
    life = state.lives.get(node)
    if life is None or life.phase.state == "up":
        return "has too few GPUs that are not bad"
    return f"is in {life.phase.state}" if life.phase.state == "maintenance" else f"is {life.phase.state}"


def wish(chunk: Chunk) -> str:
    """What this part asks for, in words."""
    nodes, ask = chunk.nodes, chunk.ask
    if ask.gpus:
        gpus = count_of(ask.gpus, "free GPU")
    elif ask.milli:
        gpus = f"{ask.milli / WHOLE:g} of a GPU"
    else:
        gpus = f"{ask.amounts[0] / 1000:g} cores"
    return f"1 node with {gpus}" if nodes == 1 else f"{nodes} nodes with {gpus} each"


def count_of(count: int, noun: str) -> str:
    """So many of it, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def gpus_of(milli: int) -> str:
    """Thousandths of a GPU as GPUs."""
    return f"{milli / WHOLE:g}"


def names_of(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
