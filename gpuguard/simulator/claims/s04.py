"""Ten jobs of 4 GPUs, spread over 8 nodes of 8."""

from collections.abc import Sequence

from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.engine import Engine
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced

ID = "S4"
CLAIM = "Ten jobs of 4 GPUs, spread over 8 nodes of 8, leave 24 GPUs free and no whole node."
CLAIMED = "24 free, no whole node; a 24-GPU job forced across nodes loses 30 % of its speed"
NEEDS = ()

LOSS = 0.30


def measure(given: Given) -> Finding:
    """Both placements, and what a job of 24 GPUs finds after them."""
    spread, packed = (_after_ten(given, policy) for policy in ("easy-spread", "easy-pack"))
    return Finding(
        measured={**spread, "packed": packed},
        assumptions=(
            f"the loss of {LOSS:.0%} on more nodes than need be is taken from the claim; only the nodes are counted",
            "a job of 24 GPUs whose owner names no nodes wants whole ones, and waits; 4 on each of 6 it must ask for",
        ),
    )


def _after_ten(given: Given, policy: str) -> dict[str, object]:
    small = [traced(f"small{number}", 0, DAY, 4) for number in range(10)]
    settings = policies()[policy]
    engine = play(given, f"ten jobs, {policy}", cluster(8), small, settings)
    left = _left(engine, 0)
    wide = {
        name: _starts(given, policy, Job(id="wide", gpus=24, nodes=nodes, walltime=HOUR))
        for name, nodes in (("wide_starts_on_3_nodes", 3), ("wide_starts_on_6_nodes", 6))
    }
    return {
        "free_gpus": sum(left),
        "whole_nodes_free": left.count(8),
        "free_by_node": left,
        **wide,
    }


def _starts(given: Given, policy: str, job: Job) -> bool:
    """The job starts at once, a minute after the ten."""
    small = [traced(f"small{number}", 0, DAY, 4) for number in range(10)]
    wide = traced(job.id, 60, HOUR, job.gpus, nodes=job.nodes, walltime=job.walltime)
    engine = play(given, f"24 GPUs, {policy}", cluster(8), [*small, wide], policies()[policy])
    return engine.lives[job.id].record.first_start == 60


def _left(engine: Engine, at: int) -> list[int]:
    """GPUs of each node that nobody holds at an instant."""
    left = dict(engine.course.nodes)
    for _, segment, _ in engine.course.held():
        if segment.start <= at < segment.end:
            for share in segment.shares:
                left[share.node] -= share.mask.bit_count()
    return list(left.values())


def judge(measured: Measured) -> Sequence[Row]:
    """Counted, and the job of 24 looked for."""
    packed = measured["packed"]
    return (
        Row("spread: GPUs free", "24", str(measured["free_gpus"]), measured["free_gpus"] == 24),
        Row("spread: whole nodes free", "0", str(measured["whole_nodes_free"]), measured["whole_nodes_free"] == 0),
        Row(
            "spread: 24 GPUs start on 3 nodes; on 6", "no; yes",
            f"{_yes(measured['wide_starts_on_3_nodes'])}; {_yes(measured['wide_starts_on_6_nodes'])}",
            not measured["wide_starts_on_3_nodes"] and measured["wide_starts_on_6_nodes"],
        ),
        Row(
            "packed: 24 GPUs start on 3 nodes", "yes", _yes(packed["wide_starts_on_3_nodes"]),
            packed["wide_starts_on_3_nodes"],
        ),
    )  # fmt: skip


def _yes(value: bool) -> str:
    return "yes" if value else "no"
