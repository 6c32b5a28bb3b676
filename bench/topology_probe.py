"""What it costs to learn how a machine is wired: the source's first look at a recorded machine, and the graph of it.

Each look is a new source, as after a start of the agent. Milliseconds by the clock, the median of all looks, and of
processor time, threads included; the children are every process that the interpreter was asked to start meanwhile.
Prints one JSON object; exit code 1 when what was asked does not hold.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.topology import LEARNED, Settings, Wiring
from gpuguard.topology.build import build

NODES = Path(__file__).resolve().parents[1] / "fixtures" / "nodes"
ASKED_MS = 100.0  # for eight GPUs and ten cards
LOOKS = 50
# The interpreter's own names for every way to start a process.
STARTS = (
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "os.exec",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
)


def measure(machine: str) -> dict[str, float]:
    """What a look at one machine costs, and what it found."""
    now = ManualClock().now()
    looks, graphs = [], []
    busy = time.process_time()
    for _ in range(LOOKS):
        began = time.perf_counter()
        rows = Wiring(Settings(), NODES / machine, NODES / machine / LEARNED).sweep(now)
        looked = time.perf_counter()
        graph = build(rows)
        looks.append((looked - began) * 1000)
        graphs.append((time.perf_counter() - looked) * 1000)
    busy = (time.process_time() - busy) / LOOKS * 1000
    return {
        "probe_ms": round(statistics.median(map(sum, zip(looks, graphs, strict=True))), 2), "cpu_ms": round(busy, 2),
        "look_ms": round(statistics.median(looks), 2), "slowest_look_ms": round(max(looks), 2),
        "graph_ms": round(statistics.median(graphs), 2), "gpus": len(graph.gpus), "nics": len(graph.nics),
        "bridges": len(graph.bridges), "rows": len(rows),
    }  # fmt: skip


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(description="What it costs to learn how a machine is wired.")
    parser.add_argument("machines", nargs="*", default=["h100x8", "a100x8", "l40sx4"])
    asked = parser.parse_args()
    children: list[str] = []
    sys.addaudithook(lambda event, _: children.append(event) if event in STARTS else None)
    found = {machine: measure(machine) for machine in asked.machines}
    print(json.dumps({"asked_ms": ASKED_MS, "children": len(children), **found}))
    slow = any(cost["probe_ms"] > ASKED_MS for cost in found.values())
    return int(slow or bool(children))


if __name__ == "__main__":
    sys.exit(main())
