"""What packing by size does to those who ask for many GPUs."""

from collections.abc import Sequence

from gpuguard.scheduler.settings import MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row, at_least, ratio, shown
from gpuguard.simulator.scenes import PHILLY, mean_wait, philly_run

ID = "S2"
CLAIM = "Packing by descending size instead of spreading makes large jobs wait far less."
CLAIMED = "6 h -> 20 min, 18 times"
NEEDS = (PHILLY,)

FACTOR = 18.0
POLICIES = ("fifo-spread", "easy-spread", "gpuguard")


def measure(given: Given) -> Finding:
    """The same jobs, spread first come first served, spread with backfill, and as gpuguard ships."""
    found = {}
    for policy in POLICIES:
        jobs = philly_run(given, policy).jobs
        found[policy] = {
            "wait_9_and_more_s": mean_wait(jobs, 9), "wait_64_and_more_s": mean_wait(jobs, 64),
            "wait_up_to_8_s": mean_wait(jobs, 1, 8),
        }  # fmt: skip
        large = sum(job.gpus >= 64 for job in jobs)
    before, after = found["fifo-spread"], found["gpuguard"]
    return Finding(
        measured={
            "policies": found, "jobs_64_and_more": large,
            "factor_9_and_more": ratio(before["wait_9_and_more_s"], after["wait_9_and_more_s"]),
            "factor_from_easy_spread": ratio(
                found["easy-spread"]["wait_9_and_more_s"], after["wait_9_and_more_s"]
            ),
        },
        assumptions=(
            "Philly, days 42 to 84, on 130 nodes of 8 GPUs; run times up to 7 days, walltimes as people ask for them",
            f"large is 9 GPUs and more: the trace has {large} of 64 and more, too few for a mean",
            "the order that ships weighs length as well as size, so that small jobs do not pay for the large ones",
        ),
    )  # fmt: skip


def judge(measured: Measured) -> Sequence[Row]:
    """As many times less as claimed, and not at the cost of the small ones."""
    before, after = measured["policies"]["fifo-spread"], measured["policies"]["gpuguard"]
    small = after["wait_up_to_8_s"] <= before["wait_up_to_8_s"]
    return (
        Row(
            f"wait of 9 GPUs and more, {_minutes(before['wait_9_and_more_s'])} -> "
            f"{_minutes(after['wait_9_and_more_s'])}",
            f"{FACTOR:.0f} times less", shown(measured["factor_9_and_more"], " times"),
            at_least(measured["factor_9_and_more"], FACTOR),
        ),
        Row(
            "wait of up to 8 GPUs", "not more",
            f"{_minutes(before['wait_up_to_8_s'])} -> {_minutes(after['wait_up_to_8_s'])}", small,
        ),
    )  # fmt: skip


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / MINUTE:,.0f} min"
