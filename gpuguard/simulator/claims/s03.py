"""What packing by size does to how much the cluster gets done."""

from collections.abc import Sequence

from gpuguard.scheduler.settings import DAY
from gpuguard.simulator.claim import Finding, Given, Measured, Row, shown
from gpuguard.simulator.course import Course
from gpuguard.simulator.scenes import PHILLY, philly_run
from gpuguard.simulator.summary import utilisation

ID = "S3"
CLAIM = "Packing by descending size raises the throughput as well."
CLAIMED = "throughput rose, no figure"
NEEDS = (PHILLY,)

LEAST = 0.01
"""Less of a change in the share of GPUs at work is none."""


def measure(given: Given) -> Finding:
    """GPUs at work while jobs come, and how long all of them take."""
    found = {policy: _done(philly_run(given, policy)) for policy in ("fifo-spread", "easy-spread", "gpuguard")}
    return Finding(
        measured={"policies": found},
        assumptions=(
            "Philly, days 42 to 84, on 130 nodes of 8 GPUs: the runs of S2",
            "throughput is the share of all GPU time that jobs held while they came: all run to the end alike",
        ),
    )


def _done(course: Course) -> dict[str, float | None]:
    used = utilisation(course, course.start, course.end)
    ended = sum(job.end is not None and job.end <= course.end for job in course.jobs)
    return {
        "utilisation": None if used is None else round(used, 4), "ended_in_window": ended,
        "makespan_days": round((course.last - course.start) / DAY, 2),
    }  # fmt: skip


def judge(measured: Measured) -> Sequence[Row]:
    """More GPUs at work, and more jobs done in the same time."""
    before, after = measured["policies"]["fifo-spread"], measured["policies"]["gpuguard"]
    more = after["utilisation"] - before["utilisation"]
    return (
        Row(
            "GPUs at work while jobs come", "more",
            f"{shown(100 * before['utilisation'])} -> {shown(100 * after['utilisation'])} %", more >= LEAST,
        ),
        Row(
            "jobs ended in these 42 days", "more", f"{before['ended_in_window']:,} -> {after['ended_in_window']:,}",
            after["ended_in_window"] > before["ended_in_window"],
        ),
    )  # fmt: skip
