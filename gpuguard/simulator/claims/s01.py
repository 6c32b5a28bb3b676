"""A large cluster that is far from full, and yet has no room for a job of 128 GPUs."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gpuguard.scheduler.measures import SLOTS
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, shown
from gpuguard.simulator.course import Sample
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import PHILLY, cluster, philly, play
from gpuguard.simulator.trace import TraceJob

ID = "S1"
CLAIM = "A centre with 10,000 GPUs can be unable to start one job of 128 GPUs, because what is free lies scattered."
CLAIMED = "10,000 GPUs; a 128-GPU job cannot start"
NEEDS = (PHILLY,)

NODES, EACH, WIDE = 1250, 8, 128
LOADS = (0.6, 0.75, 0.9)
SPAN = 12 * HOUR
NEVER = 0.05
"""A job that could have started in less than this share of the time counts as one that cannot."""
AT_ALL_EVENTS = 0.95


def measure(given: Given) -> Finding:
    """Both ways of placing at several loads, from a cluster that is already at work."""
    jobs = [one for one in philly(given).jobs if 1 <= one.job.gpus <= EACH]
    found = []
    for load in LOADS:
        submitted = at_work(given.dice, jobs, load * NODES * EACH)
        for policy in ("easy-spread", "easy-pack"):
            engine = play(
                given, f"{policy} at load {load}", cluster(NODES), submitted, policies()[policy], start=0, end=SPAN,
                until=SPAN, sampled=True,
            )  # fmt: skip
            found.append({"placement": policy.removeprefix("easy-"), "load": load, **_state(engine.course.samples)})
    return Finding(
        measured={"gpus": NODES * EACH, "job_gpus": WIDE, "runs": found},
        assumptions=(
            f"jobs of 1 to {EACH} GPUs as in Philly, run times up to 7 days, walltimes as people ask for them",
            f"the cluster begins as it is after a long time at that load; then {SPAN // HOUR} h are looked at",
            f"a 128-GPU job takes {WIDE // EACH} whole nodes; where they lie is left out of account",
            "both placements backfill behind one reservation; nothing fails",
        ),
    )


def at_work(dice: Dice, jobs: Sequence[TraceJob], gpus: float) -> list[TraceJob]:
    """Jobs that hold about so many GPUs at instant 0, each somewhere within its run, and those that come in SPAN.

    One that is met at work is met the more likely the longer it runs.
    """
    longest = max(one.duration_s or 0 for one in jobs)
    found: list[TraceJob] = []
    held = 0
    while held < gpus:
        one = jobs[dice.randrange(len(jobs))]
        if dice.random() * longest < (one.duration_s or 0):
            held += one.job.gpus
            found.append(_again(one, len(found), 0, max(60, int(dice.random() * (one.duration_s or 0)))))
    mean = sum(one.job.gpus * (one.duration_s or 0) for one in jobs) / len(jobs)
    for _ in range(round(gpus * SPAN / mean)):
        one = jobs[dice.randrange(len(jobs))]
        found.append(_again(one, len(found), 1 + int(dice.random() * SPAN), one.duration_s or 0))
    return found


def _again(one: TraceJob, number: int, submit: int, duration: int) -> TraceJob:
    job = msgspec.structs.replace(one.job, id=f"j{number:05}", walltime=max(duration, one.job.walltime or 7 * DAY))
    return msgspec.structs.replace(one, job=job, submit_s=submit, duration_s=duration)


def _state(samples: Sequence[Sample]) -> dict[str, float]:
    """Averages over the time that was looked at."""
    at = SLOTS.index(WIDE)
    total = busy = free = fits = whole = 0.0
    for sample, following in pairwise(samples):
        held = min(following.at, SPAN) - sample.at
        if held <= 0:
            continue
        total += held
        busy += sample.busy * held
        free += sample.free * held
        fits += (sample.slots[at] > 0) * held
        whole += sample.slots[at] * (WIDE // EACH) * held
    total = total or 1.0
    return {
        "used_share": round(busy / total / (NODES * EACH), 4),
        "free_gpus": round(free / total, 1),
        "room_for_wide_share": round(fits / total, 4),
        "wide_jobs_that_fit": round(whole / total / (WIDE // EACH), 2),
    }


def judge(measured: Measured) -> Sequence[Row]:
    """Scattered: cannot start though more than ten times as much is free. Packed: at the same load it can."""
    wide = measured["job_gpus"]
    spread = [run for run in measured["runs"] if run["placement"] == "spread"]
    stuck = [run for run in spread if run["free_gpus"] >= 10 * wide and run["room_for_wide_share"] <= NEVER]
    worst = max(stuck, key=lambda run: run["free_gpus"], default=max(spread, key=lambda run: run["free_gpus"]))
    packed = next(run for run in measured["runs"] if run["placement"] == "pack" and run["load"] == worst["load"])
    return (
        Row(
            f"spread, {shown(worst['free_gpus'], digits=0)} GPUs free: room for {wide}", "never",
            f"{100 * worst['room_for_wide_share']:.0f} % of the time", bool(stuck),
        ),
        Row(
            f"packed, {shown(packed['free_gpus'], digits=0)} GPUs free: room for {wide}", "always",
            f"{100 * packed['room_for_wide_share']:.0f} % of the time",
            packed["room_for_wide_share"] >= AT_ALL_EVENTS,
        ),
    )  # fmt: skip
