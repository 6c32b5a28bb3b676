"""A wide job that waits an hour for its nodes, and short ones that come behind it."""

from collections.abc import Sequence

from gpuguard.scheduler.settings import HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced

ID = "S5"
CLAIM = "A job of 30 minutes starts at once in a gap that no long job needs within the hour."
CLAIMED = "30 min: at once; 61 min: not"
NEEDS = ()

GAP = HOUR
COME = 60


def measure(given: Given) -> Finding:
    """The short one alone behind the wide one, and the long one alone; with neither, to see that nobody is late."""
    found = {}
    for policy in ("easy-pack", "gpuguard"):
        short, wide_with_short = _behind(given, policy, 30 * MINUTE)
        long, wide_with_long = _behind(given, policy, 61 * MINUTE)
        _, wide_alone = _behind(given, policy, None)
        found[policy] = {
            "short_job_starts_at_once": short == 0, "long_job_starts_at_once": long == 0,
            "wide_job_late_s": max(wide_with_short, wide_with_long) - wide_alone,
        }  # fmt: skip
    return Finding(
        measured={**found["gpuguard"], "easy-pack": found["easy-pack"]},
        assumptions=(
            "2 nodes of 8; one is busy for 60 min more, the wide job asks for both, the others for 4 GPUs",
            "walltimes are exact; the plan rounds them up by at most a fifth",
        ),
    )


def _behind(given: Given, policy: str, length: int | None) -> tuple[int, int]:
    """How long a job of this length waits, and the wide one."""
    jobs = [
        traced("1-busy", 0, COME + GAP, 8, walltime=COME + GAP),
        traced("2-wide", COME, HOUR, 16, walltime=HOUR),
    ]
    if length is not None:
        jobs.append(traced("3-behind", COME, length, 4, walltime=length))
    engine = play(given, f"{policy}, {length or 0} s", cluster(2), jobs, policies()[policy])
    waits = {name: (life.record.first_start or 0) - COME for name, life in engine.lives.items()}
    return waits.get("3-behind", 0), waits["2-wide"]


def judge(measured: Measured) -> Sequence[Row]:
    """By hand: the gap is 60 minutes long."""
    short, long = measured["short_job_starts_at_once"], measured["long_job_starts_at_once"]
    late = measured["wide_job_late_s"]
    return (
        Row("30 min in a gap of 60: starts at once", "yes", "yes" if short else "no", bool(short)),
        Row("61 min in a gap of 60: starts at once", "no", "yes" if long else "no", not long),
        Row("the wide job starts later for it", "0 s", f"{late} s", late <= 0),
    )
