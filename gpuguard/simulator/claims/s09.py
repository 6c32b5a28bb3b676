"""Eight GPUs, and a job for all of them at the head of the queue."""

from collections.abc import Mapping, Sequence

from gpuguard.scheduler.settings import HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced
from gpuguard.simulator.trace import TraceJob

ID = "S9"
CLAIM = "First come first served, all wait for the job at the head: few jobs run on many GPUs."
CLAIMED = "A (8 GPUs, 30 min) first; B (2 GPUs, 10 min) and C (4 GPUs, 10 h) start after it"
NEEDS = ()

BUSY = HOUR


def measure(given: Given) -> Finding:
    """On 8 idle GPUs; and with 4 of them taken for an hour more, so that A has to wait itself."""
    found: dict[str, dict[str, object]] = {}
    for policy in ("fifo-pack", "gpuguard"):
        idle = _starts(given, policy, _waiting(0))
        taken = _starts(given, policy, [traced("X", 0, BUSY + MINUTE, 4, walltime=BUSY + MINUTE), *_waiting(MINUTE)])
        found[policy] = {
            "order": _order(idle), "starts_s": idle,
            "with_4_gpus_taken": {"order": _order(taken), "starts_s": taken},
        }  # fmt: skip
    return Finding(
        measured={**found["gpuguard"], "fifo": found["fifo-pack"]},
        assumptions=(
            "one node of 8; A, B, C are submitted at one instant, in this order; walltimes are exact",
            "starts are counted from then; X holds 4 GPUs for one hour more",
            "on idle GPUs A starts at once under any policy that takes wide jobs first; it is where A must wait itself"
            " that others can use what it cannot",
        ),
    )


def _waiting(at: int) -> list[TraceJob]:
    return [
        traced(name, at, length, gpus, walltime=length)
        for name, gpus, length in (("A", 8, 30 * MINUTE), ("B", 2, 10 * MINUTE), ("C", 4, 10 * HOUR))
    ]


def _starts(given: Given, policy: str, jobs: Sequence[TraceJob]) -> dict[str, int]:
    """Seconds from their submit to the starts of A, B and C."""
    engine = play(given, policy, cluster(1), jobs, policies()[policy])
    return {
        name: (record.first_start or 0) - record.submit
        for name, record in ((name, engine.lives[name].record) for name in "ABC")
    }


def _order(starts: Mapping[str, int]) -> list[str]:
    return sorted(starts, key=lambda name: (starts[name], name))


def judge(measured: Measured) -> Sequence[Row]:
    """By hand: 30 min on idle GPUs, 90 with 4 taken; where A waits, B fits before it and C does not."""
    idle = measured["fifo"]["starts_s"]
    taken = measured["fifo"]["with_4_gpus_taken"]["starts_s"]
    ours = measured["with_4_gpus_taken"]["starts_s"]
    return (
        Row(
            "first come: B and C start after", "30 min", f"{_minutes(idle['B'])} and {_minutes(idle['C'])}",
            idle == {"A": 0, "B": 30 * MINUTE, "C": 30 * MINUTE},
        ),
        Row(
            "first come, 4 GPUs taken: B starts after", "90 min", _minutes(taken["B"]), taken["B"] == 90 * MINUTE,
        ),
        Row(
            "gpuguard, 4 GPUs taken: B starts after; A", "0; 60 min", f"{_minutes(ours['B'])}; {_minutes(ours['A'])}",
            ours["B"] == 0 and ours["A"] == BUSY,
        ),
    )  # fmt: skip


def _minutes(seconds: int) -> str:
    return f"{seconds / MINUTE:,.0f} min"
