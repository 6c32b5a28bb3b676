"""GPUs that go bad one by one, noticed sooner or later."""

from collections.abc import Sequence
from math import fsum

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row, shown
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models import faults
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mix, play

ID = "S14"
CLAIM = (
    "At 10,000 GPUs one or two go bad every day; unless they are taken out within minutes, jobs go on dying on them."
)
CLAIMED = "1 to 2 faults a day; isolated within minutes"
NEEDS = ()

NODES, SPAN, LOAD = 32, 5 * DAY, 0.9
DELAYS = (MINUTE, 5 * MINUTE, 30 * MINUTE, DAY)
FAULTS_A_DAY = 3.0
"""On the cluster of the scenario: more than it would have, for figures by fault need faults."""
ONE, TIMES = 2.0, 3.0

LLAMA_RATE, LLAMA_GPU = 3.8, 268 / 419
"""Interruptions per 1,000 node-days, and the part of them that are a GPU's. Source: Llama 3 405B, 16,384 H100, 54 days:
faulty GPU 148, HBM3 72, SRAM 19, GSP 17, silent corruption 6, thermal interface 6, of 419."""
HBD_GPU_RATE = 1.13
"""GPU faults per 1,000 node-days. Source: InfiniteHBD, 400 nodes, 349 days."""


def measure(given: Given) -> Finding:
    """The same jobs and faults, by how long a bad GPU stays unnoticed."""
    jobs = mix(given.dice, capacity=8 * NODES, load=LOAD, span=SPAN, longest=DAY)
    throws = given.dice.getrandbits(64)
    found = []
    for delay in DELAYS:
        given.dice.seed(f"{throws}")  # the same faults each time
        settings = {
            "rate": f"{1000.0 * FAULTS_A_DAY / NODES}", "again": "0", "common": "0", "gpu": "1", "node": "0",
            "link": "0", "detect": f"{delay}",
        }  # fmt: skip
        model = faults.build(settings, given.dice)
        engine = play(
            given, f"noticed after {delay // MINUTE} min", cluster(NODES), jobs, policies()["gpuguard"],
            models=[model], start=0, end=SPAN,
        )  # fmt: skip
        many = max(1, len(model.happened))
        lost = goodput(engine.course).lost["failure"]
        found.append({
            "noticed_after_s": delay, "faults": len(model.happened),
            "crashes_by_fault": round(len(model.crashes) / many, 3),
            "lost_gpu_hours_by_fault": round(lost / HOUR / many, 2),
        })  # fmt: skip
    return Finding(
        measured={
            "gpu_faults_a_day_at_10000": {
                "by_llama_3": round(1.25 * LLAMA_RATE * LLAMA_GPU, 2),
                "by_infinitehbd": round(1.25 * HBD_GPU_RATE, 2),
            },
            "delays": found,
        },
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days, Philly's sizes and run times up to a day, load {LOAD}, jobs do"
            " not save",
            f"{FAULTS_A_DAY:g} GPUs a day go bad here, far more than would, so that there is something to count; what a"
            " fault costs does not hang on how many there are",
            "a job on a bad GPU dies after 5 min in the mean (exponential), and the next one finds the GPU free; the"
            " drain is of the GPU alone, and ends what runs on it",
            "a day is what it takes where only people notice",
        ),
    )


def judge(measured: Measured) -> Sequence[Row]:
    """The rate by published counts; about one crash a fault within minutes, and several times that after a day."""
    rates = list(measured["gpu_faults_a_day_at_10000"].values())
    by_delay = {row["noticed_after_s"]: row["crashes_by_fault"] for row in measured["delays"]}
    soon = [by_delay[delay] for delay in DELAYS[:2]]
    late = by_delay[DAY]
    return (
        Row(
            "GPU faults a day at 10,000, two counts", "1 to 2", f"{min(rates):.1f} and {max(rates):.1f}",
            any(1.0 <= rate <= 2.0 for rate in rates),
        ),
        Row(
            "crashes by fault, noticed after 1 and 5 min", f"up to {ONE:.0f}", " and ".join(map(_two, soon)),
            max(soon) <= ONE,
        ),
        Row(
            "crashes by fault, noticed after a day", f"{TIMES:.0f} times as many", _two(late),
            late >= TIMES * max(fsum(soon) / len(soon), 1e-9),
        ),
    )  # fmt: skip


def _two(value: float) -> str:
    return shown(value, "", 2)
