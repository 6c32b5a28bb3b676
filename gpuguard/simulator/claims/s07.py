"""Backfill behind those who matter, with a low tier that yields."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row, at_least, ratio, shown
from gpuguard.simulator.course import Course, JobRecord
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import PHILLY, mean_wait, philly, philly_run, play
from gpuguard.simulator.summary import utilisation
from gpuguard.simulator.trace import TraceJob

ID = "S7"
CLAIM = "Backfill with a preemptible low tier shortens the wait of high priority, and raises low throughput and use."
CLAIMED = "high-priority wait / 4, low-priority throughput x 2 to 3, utilisation + 35 %"
NEEDS = (PHILLY,)

LOW = 0.4
SAVES = 10 * MINUTE
WAIT, THROUGHPUT, MORE = 4.0, 2.0, 1.35


def measure(given: Given) -> Finding:
    """Everybody alike and first come first served; then as gpuguard ships, with some of the jobs low."""
    window = philly(given)
    nodes = given.traces[PHILLY].nodes
    low = [given.dice.random() < LOW for _ in window.jobs]
    names = {traced.job.id for traced, is_low in zip(window.jobs, low, strict=True) if is_low}
    tiered = [_low(traced) if is_low else traced for traced, is_low in zip(window.jobs, low, strict=True)]
    plain = {name: philly_run(given, name) for name in ("fifo-spread", "fifo-pack")}
    ours = play(
        given, "Philly, gpuguard with a low tier", nodes, tiered, policies()["gpuguard"], start=window.start,
        end=window.end, saves=SAVES,
    )  # fmt: skip
    found = {name: _figures(course, names) for name, course in (*plain.items(), ("gpuguard", ours.course))}
    before, after = found["fifo-pack"], found["gpuguard"]
    return Finding(
        measured={
            "policies": found,
            **{
                f"{what}_{name.replace('-', '_')}": ratio(*pair)
                for name, run in found.items()
                if name != "gpuguard"
                for what, pair in (
                    ("high_wait_factor_from", (run["high_wait_s"], after["high_wait_s"])),
                    ("low_throughput_factor_from", (after["low_gpu_hours"], run["low_gpu_hours"])),
                    ("utilisation_factor_from", (after["utilisation"], run["utilisation"])),
                )
            },
            "utilisation_points": round(100 * ((after["utilisation"] or 0) - (before["utilisation"] or 0)), 2),
        },
        assumptions=(
            "Philly, days 42 to 84, on 130 nodes of 8 GPUs, load 0.9; walltimes as people ask for them",
            f"{LOW:.0%} of the jobs, drawn, are low: batch, preemptible, saving every {SAVES // MINUTE} min",
            "before: packed, first come first served; from spread it is told beside. Low throughput is the GPU hours"
            " that low jobs held in these 42 days",
            "the claim does not say whether its 35 % are points or per cent of the utilisation: taken as per cent",
        ),
    )  # fmt: skip


def _low(traced: TraceJob) -> TraceJob:
    job = msgspec.structs.replace(traced.job, tier="batch", checkpoints=True)
    return msgspec.structs.replace(traced, job=job)


def _figures(course: Course, low: set[str]) -> dict[str, float | None]:
    high = [job for job in course.jobs if job.id not in low]
    yielding = [job for job in course.jobs if job.id in low]
    used = utilisation(course, course.start, course.end)
    return {
        "high_wait_s": mean_wait(high), "low_wait_s": mean_wait(yielding),
        "low_gpu_hours": round(_gpu_hours(yielding, course.start, course.end), 1),
        "utilisation": None if used is None else round(used, 4),
        "low_preempted_share": round(
            sum(any(segment.how == "preempted" for segment in job.segments) for job in yielding)
            / max(1, len(yielding)), 4,
        ),
        "makespan_days": round((course.last - course.start) / DAY, 2),
    }  # fmt: skip


def _gpu_hours(jobs: Sequence[JobRecord], start: int, end: int) -> float:
    return (
        sum(
            max(0, min(segment.end, end) - max(segment.start, start)) * job.gpus
            for job in jobs
            for segment in job.segments
        )
        / HOUR
    )


def judge(measured: Measured) -> Sequence[Row]:
    """Each of the three figures, from packed first come first served."""
    before, after = measured["policies"]["fifo-pack"], measured["policies"]["gpuguard"]
    wait, done, used = (
        measured[f"{what}_factor_from_fifo_pack"] for what in ("high_wait", "low_throughput", "utilisation")
    )
    return (
        Row("wait of high priority", "4 times less", shown(wait, " times less"), at_least(wait, WAIT)),
        Row("throughput of low priority", "2 to 3 times", shown(done, " times", 2), at_least(done, THROUGHPUT)),
        Row(
            "GPUs at work", "+ 35 %",
            f"{shown(100 * before['utilisation'])} -> {shown(100 * after['utilisation'])} %", at_least(used, MORE),
        ),
    )  # fmt: skip
