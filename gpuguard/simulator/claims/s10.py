"""Clusters of four sizes, with cards picked by hand and with a queue."""

from collections.abc import Mapping, Sequence

from gpuguard.scheduler.settings import DAY
from gpuguard.simulator.claim import Finding, Given, Measured, Row, at_least, ratio
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models import manual
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import SIZES, cluster, mix, play
from gpuguard.simulator.trace import TraceJob

ID = "S10"
CLAIM = "Order instead of picking by hand about doubles what GPUs are used, and the larger the cluster the more."
CLAIMED = "used 41 -> 87 % (4 GPUs), 52 -> 91 (8), 37 -> 89 (32), 29 -> 84 (128); throughput 1.9, 2.3, 3.1, 4.6 times"
NEEDS = ()

FIGURES: Mapping[int, tuple[int, int, float]] = {
    4: (41, 87, 1.9), 8: (52, 91, 2.3), 32: (37, 89, 3.1), 128: (29, 84, 4.6),
}  # fmt: skip
"""GPUs: used before and after in per cent, and throughput."""
SPAN = 7 * DAY
LOOK, LOAD = 0.5, 1.2
LOOKS, LOADS = (0.2, 0.5, 0.9), (0.7, 1.0, 1.2)
SWEPT = 32
NEAR_BEFORE, NEAR_AFTER, NEAR_FACTOR = 10, 5, 0.9


def measure(given: Given) -> Finding:
    """Each size in both worlds; one size by how many people look and by the load."""
    sizes = {str(gpus): _both(given, gpus, LOAD, LOOK) for gpus in FIGURES}
    sweep = [
        {"gpus": SWEPT, "load": load, "look": look, **_both(given, SWEPT, load, look)}
        for load in LOADS
        for look in LOOKS
    ]
    return Finding(
        measured={"sizes": sizes, "sweep": sweep},
        assumptions=(
            f"jobs of Philly's sizes and run times (a day at most) for {SPAN // DAY} days, none larger than the cluster"
            f" or a node; offered load {LOAD:g}, for the claim is of shops that want more than they have; swept"
            f" {LOADS[0]:g} to {LOADS[-1]:g}",
            f"before: nobody queues. {LOOK:.0%} of the people look for free cards, three times half an hour apart, the"
            " others take the first of some node; swept 20 to 90 %",
            "two on a card run at 35 % each; memory of a job is 40 % of a card in the median; where it does not fit one"
            " crashes and is tried again, five times at most; 2 % of the ends leave memory held for 12 h",
            "used is work that was kept, of all GPU time: what was crashed or slowed down is not used; jobs keep their"
            " GPUs busy while they work",
            "throughput is that work, after over before",
        ),
    )


def _both(given: Given, gpus: int, load: float, look: float) -> dict[str, float | None]:
    each = min(8, gpus)
    jobs = mix(
        given.dice, capacity=gpus, load=load, span=SPAN, longest=DAY,
        sizes=[(size, often) for size, often in SIZES if size <= each],
    )  # fmt: skip
    nodes = cluster(gpus // each, each)
    before = _by_hand(given, gpus, jobs, look)
    course = play(given, f"{gpus} GPUs, queue", nodes, jobs, policies()["gpuguard"], start=0, end=SPAN).course
    after = goodput(course, 0, SPAN)
    used = after.used / after.capacity
    return {
        **before, "used_after": round(used, 4), "busy_after": round(after.used_share, 4),
        "throughput": ratio(used, before["used_before"]),
    }  # fmt: skip


def _by_hand(given: Given, gpus: int, jobs: Sequence[TraceJob], look: float) -> dict[str, float | None]:
    given.say(f"{gpus} GPUs, by hand, {look:.0%} look")
    each = min(8, gpus)
    world = manual.build({"look": f"{look}"}, given.dice)
    outcome = world.run(cluster(gpus // each, each), jobs)
    split = goodput(outcome.course, 0, SPAN)
    return {
        "used_before": round(split.used / split.capacity, 4), "busy_before": round(split.used_share, 4),
        "crashes_a_week": round(len(outcome.out_of_memory) / (SPAN / DAY) * 7, 1),
        "given_up_share": round(len(outcome.given_up) / len(jobs), 4),
    }  # fmt: skip


def judge(measured: Measured) -> Sequence[Row]:
    """Before within 10 points, after at most 5 below, and nine tenths of the factor; and more for larger clusters."""
    rows = []
    for gpus, (before, after, factor) in FIGURES.items():
        told = measured["sizes"][str(gpus)]
        was, now = 100 * told["used_before"], 100 * told["used_after"]
        near = abs(was - before) <= NEAR_BEFORE and now >= after - NEAR_AFTER
        more = told["throughput"]
        rows.append(Row(f"{gpus} GPUs: used", f"{before} -> {after} %", f"{was:.0f} -> {now:.0f} %", near))
        rows.append(
            Row(
                f"{gpus} GPUs: throughput", f"{factor} times", "-" if more is None else f"{more:.1f} times",
                at_least(more, NEAR_FACTOR * factor),
            )
        )  # fmt: skip
    factors = [told["throughput"] or 0.0 for told in measured["sizes"].values()]
    rows.append(Row("the larger the cluster, the more is gained", "yes", _series(factors), factors == sorted(factors)))
    return tuple(rows)


def _series(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
