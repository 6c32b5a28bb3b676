"""How long one pass of the scheduler core takes on a large cluster with a long queue, everything switched on.

usage  python bench/scheduler_cycle.py [--gpus N] [--queued N] [--cycles N] [--reservations K] [--seed S]

A cluster of 8-GPU nodes in racks of 10 and pods of 50, with cores, memory and wiring, is filled to 96 % with jobs of
200 users in 20 accounts; then --queued jobs of all tiers, levels, sizes and lengths wait. Each pass gets what 20 s of
such a cluster bring: 20 jobs end, as many are submitted, a node is drained, one comes back; fair share is computed anew
every 5 minutes, and room is made for jobs of level high. Prints JSON: the passes' times, what was decided, the memory;
and the ratio of twice as many GPUs to as many.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, DrainAsked, DrainLifted, Ended, NodeJoined, Submitted
from gpuguard.scheduler.plan import Kill, Preempt, Start
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR, Pool, Settings
from gpuguard.scheduler.state import State
from gpuguard.scheduler.wiring import two_sockets

# As in the Philly trace: most jobs take one GPU; 2 % are wide.
SIZES = ((1, 0.73), (2, 0.04), (4, 0.10), (8, 0.11), (16, 0.008), (32, 0.005), (64, 0.004), (128, 0.003))
LENGTHS = (2 * HOUR, DAY, 2 * DAY, 7 * DAY)


def nodes(gpus: int) -> list[NodeJoined]:
    """So many GPUs in nodes of 8."""
    return [
        NodeJoined(
            at=0, node=f"n{number:05d}", gpus=8, gpu_type="H100" if number % 4 else "A100", gpu_memory=81920, cpus=128,
            memory=2_000_000, rack=f"r{number // 10:04d}", pod=f"p{number // 50:03d}", watts=10_000.0,
            placement=two_sockets(8),
        )
        for number in range(gpus // 8)
    ]  # fmt: skip


def job(dice: Random, number: int, most: int) -> Job:
    """One of what people submit."""
    sizes, weights = zip(*SIZES, strict=True)
    gpus = min(dice.choices(sizes, weights)[0], most)
    tier = dice.choices(("training", "batch"), (0.7, 0.3))[0]
    user = dice.randrange(200)
    share = gpus == 1 and tier == "batch" and dice.random() < 0.3
    return Job(
        id=f"j{number:07d}", user=f"u{user}", account=f"a{user % 20}", tier=tier,
        level=dice.choices(("high", "normal", "low"), (0.05, 0.8, 0.15))[0], gpus=gpus,
        gpu_milli=dice.choice((250, 500)) if share else 1000, gpu_memory=dice.choice((8192, 20480)) if share else None,
        gpu_types=("H100",) if dice.random() < 0.1 else (), cpus=4 * gpus, memory=30_000 * gpus,
        walltime=dice.choice(LENGTHS), checkpoints=dice.random() < 0.5,
    )  # fmt: skip


def measure(gpus: int, queued: int, cycles: int, reservations: int, seed: int) -> dict[str, object]:
    """The times of the passes in milliseconds, and what they decided."""
    dice = Random(seed)
    settings = Settings(
        reservations=reservations, pools={"training": Pool(watts=1e12, wait=6 * HOUR), "interactive": Pool()}
    )
    state = State(settings)
    drained: list[str] = []
    state, _ = cycle(state, nodes(gpus), 0)
    now, number = 0, 0
    events: list[AnyEvent] = []
    began = time.perf_counter()
    # Filled, then queued up: in one pass each, as after a restart.
    for share in (0.96, None):
        wanted = round(gpus * share) if share else queued
        events, asked = [], 0
        while asked < wanted:
            one = job(dice, number, gpus // 16)
            number += 1
            asked += one.gpus if share else 1
            events.append(Submitted(at=now, job=one))
        state, _ = cycle(state, events, now)
        now += HOUR
    filled = time.perf_counter() - began
    taken: list[float] = []
    started = preempted = 0
    leaving: list[str] = []
    for turn in range(cycles):
        now += 20
        events = [Ended(at=now, job=name, code=143) for name in leaving if name in state.running]
        running = sorted(state.running)
        events += [Ended(at=now, job=name) for name in dice.sample(running, min(20, len(running)))]
        while len(state.queue) + len(events) < queued + 20:
            events.append(Submitted(at=now, job=job(dice, number, gpus // 16)))
            number += 1
        drained.append(f"n{dice.randrange(gpus // 8):05d}")
        events.append(
            DrainAsked(at=now, id=f"d{turn}", node=drained[-1], severity="confirmed", cause="xid79", seen=now)
        )
        if turn >= 20:
            events.append(DrainLifted(at=now, id=f"d{turn - 20}", node=drained[turn - 20], by="bench"))
        before = time.perf_counter()
        state, plan = cycle(state, events, now)
        taken.append((time.perf_counter() - before) * 1000)
        leaving = [one.job for one in plan.decisions if isinstance(one, Preempt | Kill)]
        started += sum(isinstance(one, Start) for one in plan.decisions)
        preempted += sum(isinstance(one, Preempt) for one in plan.decisions)
        print(f"\r{gpus} GPUs: pass {turn + 1} of {cycles}, {taken[-1]:.0f} ms ", end="", file=sys.stderr)
    print(file=sys.stderr)
    taken.sort()
    return {
        "gpus": gpus, "queued": len(state.queue), "running": len(state.running), "reservations": len(state.reserved),
        "cycles": len(taken), "p50_ms": round(taken[len(taken) // 2], 1),
        "p99_ms": round(taken[min(len(taken) - 1, len(taken) * 99 // 100)], 1), "max_ms": round(taken[-1], 1),
        "filling_s": round(filled, 2), "started": started, "preempted": preempted,
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=10_240)
    parser.add_argument("--queued", type=int, default=50_000)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--reservations", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    once = measure(options.gpus, options.queued, options.cycles, options.reservations, options.seed)
    twice = measure(2 * options.gpus, options.queued, options.cycles, options.reservations, options.seed)
    ratio = float(str(twice["p50_ms"])) / float(str(once["p50_ms"]))
    print(json.dumps({"once": once, "twice": twice, "ratio_of_medians": round(ratio, 2)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
