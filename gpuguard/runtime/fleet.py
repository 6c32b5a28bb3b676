"""What a simulated fleet needs of this machine: the detectors that ship, a stopwatch, and how much memory it took."""

import gc
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuguard.runtime.assembly import assemble
from gpuguard.runtime.simulation import Facts, Show, peak_rss_mib
from gpuguard.runtime.words import listed, many, paragraph
from gpuguard.simulator.fleet.policies import POLICIES
from gpuguard.simulator.fleet.tables import FLEET
from gpuguard.simulator.fleet.world import World
from gpuguard.simulator.tables import table

# So many days are simulated, of as many nodes as come to the node-days asked for: a common cause comes each 35 d.
DAYS = 60


def shape(node_days: int) -> tuple[int, float]:
    """How many nodes, and for how many days each."""
    nodes = max(1, math.ceil(node_days / DAYS))
    return nodes, node_days / nodes


def simulated(policy: str, *, node_days: int, seed: int, show: Show) -> Facts:
    """One policy's run over the fleet, and what it came to.

    Raises  ConfigInvalid when the tables that ship were broken
    """
    nodes, days = shape(node_days)
    began = time.perf_counter()
    world = World(POLICIES[policy], assemble(with_sources=False).detectors, nodes=nodes, days=days, seed=seed)
    # What was drawn stays until the end: a collector that looks through it again and again costs a tenth of the run.
    gc.freeze()
    try:
        for done, total in world.run():
            show(done, total)
    finally:
        gc.unfreeze()
    return {
        "policy": policy, "seed": seed, **world.figures(), "wall_s": round(time.perf_counter() - began, 3),
        "peak_rss_mib": round(peak_rss_mib(), 1),
    }  # fmt: skip


def page(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The runs side by side for people, in lines of 80 columns."""
    first = runs[0]
    yield from paragraph(
        f"{many(first['nodes'], 'node')} with {first['gpus_per_node']} GPUs, {first['node_days']:,} node-days, seed"
        f" {first['seed']}. {_unseen(first)}"
    )
    yield ""
    yield from table({str(run["policy"]): run for run in runs}, FLEET).splitlines()


def _unseen(run: Mapping[str, Any]) -> str:
    """What no agent on a node can find, in a sentence."""
    causes: Mapping[str, int] = run["unseen"]
    if not causes:
        return "No fault was of a kind that nothing on a node can tell of."
    named = listed(f"{count:,} of {cause.replace('_', ' ')}" for cause, count in causes.items())
    return f"Nothing on a node could tell of {many(sum(causes.values()), 'fault')}: {named}."
