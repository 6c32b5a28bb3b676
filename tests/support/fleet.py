"""Small fleets in which much happens, for tests: a world that has run to its end."""

from gpuguard.custody.budget import Limits
from gpuguard.simulator.fleet.faults import HOUR, Recipe
from gpuguard.simulator.fleet.noise import RATES, Kind
from gpuguard.simulator.fleet.policies import POLICIES
from gpuguard.simulator.fleet.rhythm import Pace
from gpuguard.simulator.fleet.world import World
from tests.support.core import detectors

# A hundred times as much as in real fleets, repaired within hours.
BUSY = Recipe(rate=300.0, storms=20.0, median=3 * HOUR, mean=6 * HOUR)
QUIET = Recipe(rate=0.0, storms=0.0, common_days=0.0)
LOUD: dict[Kind, float] = {kind: rate * (1 if kind == "rotation" else 10) for kind, rate in RATES.items()}
SILENT: dict[Kind, float] = dict.fromkeys(RATES, 0.0)
# Looks that are rarer than the agent's, so that a week of all of them is soon over.
SLOW = Pace(fast=60.0, medium=120.0, slow=600.0, infiniband=120.0, edac=240.0, tick=60.0)
# A few nodes may all be taken: what is tested elsewhere shall not stand in the way.
OPEN = Limits(share=1.0, overall=1.0, most=1000, cause_nodes=1000)


def ran(
    policy: str = "gpuguard", *, nodes: int = 4, days: float = 7.0, seed: int = 1, gpus: int = 2,
    recipe: Recipe = BUSY, rates: dict[Kind, float] | None = None, limits: Limits = OPEN, pace: Pace = SLOW,
    whole: bool = False,
) -> World:  # fmt: skip
    """The world after its last day."""
    world = World(
        POLICIES[policy], detectors(), nodes=nodes, days=days, seed=seed, gpus=gpus, recipe=recipe,
        rates=LOUD if rates is None else rates, limits=limits, pace=pace, whole=whole, noted=True,
    )  # fmt: skip
    for _ in world.run():
        pass
    return world
