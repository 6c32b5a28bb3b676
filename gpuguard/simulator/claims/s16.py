"""The share of jobs that are queued, as a sign that sizes are wrong."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.settings import DAY, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mix, play
from gpuguard.simulator.summary import summary
from gpuguard.simulator.trace import TraceJob

ID = "S16"
CLAIM = "More than 30 % of the jobs queued, for long, means that jobs ask for the wrong sizes."
CLAIMED = "queued / submitted over 30 % = bad sizing"
NEEDS = ()

NODES, SPAN = 16, 7 * DAY
LOADS = (0.5, 0.8, 0.9, 1.0)
MARK = 0.30
MODERATE = 0.8


def measure(given: Given) -> Finding:
    """The same mix at several loads; and at each again with every job asking for twice the GPUs that it uses."""
    found = []
    for load in LOADS:
        jobs = mix(given.dice, capacity=8 * NODES, load=load, span=SPAN)
        for sizes, asked in (("right", jobs), ("doubled", [_doubled(one) for one in jobs])):
            for policy in ("fifo-pack", "gpuguard"):
                engine = play(
                    given, f"{policy}, load {load}, sizes {sizes}", cluster(NODES), asked, policies()[policy], start=0,
                    end=SPAN, until=SPAN, sampled=True,
                )  # fmt: skip
                told = summary(engine.course, cycles_ms=(), wall_s=0.0, peak_rss_mib=0.0)
                waited = sum((one.first_start or SPAN) - one.submit > MINUTE for one in engine.course.jobs)
                found.append({
                    "load_of_use": load, "sizes": sizes, "policy": policy, "queued_share": told["queued_share"],
                    "jobs_that_waited_share": round(waited / len(engine.course.jobs), 4),
                })  # fmt: skip
    return Finding(
        measured={"mark": MARK, "moderate_load": MODERATE, "runs": found},
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days, sizes and run times as in Philly",
            "queued share: jobs queued of those queued or running, averaged over the time in which jobs come",
            "wrong sizes: each job asks for twice the GPUs that it uses (8 stays 8 times 2, on two nodes)",
            "the claim's other reading, wrong weights of fair share, is not tried: here is one user",
        ),
    )


def _doubled(traced: TraceJob) -> TraceJob:
    return msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, gpus=2 * traced.job.gpus))


def judge(measured: Measured) -> Sequence[Row]:
    """A sign says something when it stays away from right sizes and comes with wrong ones."""
    mark, moderate = measured["mark"], measured["moderate_load"]
    ours = [run for run in measured["runs"] if run["policy"] == "gpuguard"]
    right = [run for run in ours if run["sizes"] == "right"]
    calm = max((run["queued_share"] for run in right if run["load_of_use"] <= moderate), default=0.0)
    wrong = [run for run in ours if run["sizes"] == "doubled"]
    least = min((run["queued_share"] for run in wrong if run["load_of_use"] >= moderate), default=0.0)
    full = max((run["queued_share"] for run in right), default=0.0)
    plain = max((
        run["queued_share"] for run in measured["runs"] if run["policy"] == "fifo-pack" and run["sizes"] == "right"
    ), default=0.0)  # fmt: skip
    return (
        Row(f"queued, right sizes, loads up to {moderate:g}", "under 30 %", _percent(calm), calm <= mark),
        Row(f"queued, doubled sizes, from load {moderate:g}", "over 30 %", _percent(least), least > mark),
        Row("queued, right sizes, any load to 1.0", "under 30 %", _percent(full), full <= mark),
        Row("the same, first come first served", "under 30 %", _percent(plain), plain <= mark),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
