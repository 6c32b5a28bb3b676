"""How long the best subsets of a node's GPUs take: all sets of free ones of 8 GPUs, all 16 GPUs once, then a look-up.

On random wirings, where hardly two choices are equal, and on an even one as real machines have it. The middle run
counts; the slowest is told beside it, as what else the machine does is in it. Prints one JSON object, measured beside
asked; exit code 1 when something takes longer than asked.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.model.topology import Topology
from gpuguard.topology.rings import ring
from gpuguard.topology.subsets import Masks, Subsets
from tests.support.wirings import graph, h100x8, plain

ASKED = {"every_free_mask_of_8_ms": 20.0, "full_mask_of_16_ms": 1000.0, "look_up_us": 10.0}
LOOK_UPS = 10_000

Wirings = tuple[list[list[int]], list[list[int]], list[str]]


def took(work: Callable[..., object], *what: object) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    work(*what)
    return time.perf_counter() - began


def grids(size: int, dice: random.Random | None) -> Wirings:
    """What joins and what parts each two GPUs: by chance, or as on a machine with switches and two sockets."""
    wires, far = ([[0] * size for _ in range(size)] for _ in range(2))
    for i in range(size):
        for j in range(i):
            wires[i][j] = wires[j][i] = dice.randrange(19) if dice else 18
            far[i][j] = far[j][i] = dice.randrange(7) if dice else 3 if (i < size // 2) == (j < size // 2) else 6
    return wires, far, [str(i * 2 // size) for i in range(size)]


def every_free_mask(wirings: Wirings) -> None:
    """The table of every set of free GPUs, from nothing."""
    masks = Masks(*wirings)
    for free in range(masks.full + 1):
        masks.table_mask(free)


def full_mask(wirings: Wirings) -> None:
    """The table of all GPUs, from nothing."""
    masks = Masks(*wirings)
    masks.table_mask(masks.full)


def look_ups(masks: Masks) -> None:
    """The best five of all, asked again and again."""
    for _ in range(LOOK_UPS):
        masks.best_mask(5, masks.full)


def table_and_ring(made: Topology) -> None:
    """What a person sees of a node, from nothing."""
    Subsets(made).table()
    ring(made)


def main() -> int:
    """0 as fast as asked, 1 not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="how often each is done")
    args = parser.parse_args()
    # The same wirings each time: chance is seeded.
    kinds = [None, *(random.Random(seed) for seed in range(3))]
    made = graph(h100x8())
    eight, sixteen, looks, whole = [], [], [], []
    for _ in range(args.runs):
        whole.append(took(table_and_ring, made))
        for dice in kinds:
            eight.append(took(every_free_mask, grids(8, dice)))
            sixteen.append(took(full_mask, wirings := grids(16, dice)))
            masks = Masks(*wirings)
            masks.table_mask(masks.full)
            looks.append(took(look_ups, masks) / LOOK_UPS)
    mesh = plain([[2 * (abs(i - j) in (1, 4, 8)) for j in range(16)] for i in range(16)])
    measured = {
        "every_free_mask_of_8_ms": round(statistics.median(eight) * 1000, 2),
        "full_mask_of_16_ms": round(statistics.median(sixteen) * 1000, 1),
        "look_up_us": round(statistics.median(looks) * 1e6, 2),
    }
    result = {
        "bench": "topology_subsets",
        "runs": args.runs,
        "measured": measured,
        "asked": ASKED,
        "slowest": {
            "every_free_mask_of_8_ms": round(max(eight) * 1000, 2),
            "full_mask_of_16_ms": round(max(sixteen) * 1000, 1),
        },
        "table_and_ring_of_a_node_of_8_ms": round(statistics.median(whole) * 1000, 2),
        "ring_of_16_ms": round(took(ring, mesh) * 1000, 1),
        "holds": all(measured[name] <= asked for name, asked in ASKED.items()),
    }
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
