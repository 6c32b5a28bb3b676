"""A shop of 64 cards, and its cures one after the other."""

from collections.abc import Sequence
from math import fsum

import msgspec

from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, at_least, ratio
from gpuguard.simulator.course import Course, Segment
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models import manual
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, mix, play, traced
from gpuguard.simulator.trace import TraceJob

ID = "S11"
CLAIM = "Order alone made 64 cards do far more: cleaning off GPUs, a memory patrol, nobody past the scheduler."
CLAIMED = (
    "used 31 -> 84 %, wait 3.6 -> 0.7 h, 47 -> 119 epochs a week, out of memory 22 -> 3 a week, an epoch 58 -> 41 min"
)
NEEDS = ()

NODES, SPAN = 8, 7 * DAY
CARD = 81_920
MEAN, MEDIAN = 8.0 * HOUR, 4.0 * HOUR
LOAD, LOOK = 1.0, 0.5
SWEEP = ((0.7, 0.5), (1.0, 0.2), (1.0, 0.5), (1.0, 0.9), (1.2, 0.5))
CLEANING = 30
"""Cleaning jobs an hour."""
BEFORE, AFTER, WAITS, EPOCHS, CRASHES, LENGTHS = 31, 84, (3.6, 0.7), (47, 119), (22, 3), (58, 41)
NEAR_BEFORE, NEAR_AFTER, NEAR, MANY = 10, 5, 0.9, 5


def measure(given: Given) -> Finding:
    """Four steps at the reference; first and last by load and by how many people look."""
    sweep = []
    ladder: dict[str, object] = {}
    for load, look in SWEEP:
        training = mix(
            given.dice, capacity=8 * NODES, load=load, span=SPAN, mean=MEAN, median=MEDIAN, longest=2 * DAY
        )  # fmt: skip
        cleaning = _cleaning(given.dice)
        first = _by_hand(given, [*training, *cleaning], look, 12 * HOUR)
        last = _ordered(given, training)
        sweep.append({"load": load, "look": look, "before": first, "after": last})
        if (load, look) == (LOAD, LOOK):
            ladder = {
                "by_hand": first,
                "cleaning_on_cpus": _by_hand(given, training, look, 12 * HOUR),
                "and_memory_patrol": _by_hand(given, training, look, 5 * MINUTE),
                "and_scheduler": last,
            }
    return Finding(
        measured={"steps": ladder, "sweep": sweep},
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days; training of Philly's sizes that runs {MEAN / HOUR:g} h in the"
            f" mean and 2 days at most, at load {LOAD:g}, swept {SWEEP[0][0]:g} to {SWEEP[-1][0]:g}",
            f"before: {CLEANING} cleaning jobs an hour of 3 to 5 min and 4 GB on one GPU each, cards picked by hand,"
            f" {LOOK:.0%} of the people look first (swept 20 to 90 %), memory that is left held stays for 12 h",
            "the world by hand is that of S10: two on a card at 35 %, crashes where memory does not fit, five tries",
            "cures in turn: cleaning to CPUs, memory cleaned away after 5 min, all training through the queue",
            "wait is from submit to the start of the run that ended well, so crashed tries count as waiting; who"
            " never got through has no wait",
            "an epoch is taken as 41 min of all 64 cards at full speed, for 47 of 58 min on 64 cards are about the use"
            " that the claim tells; jobs keep their GPUs busy while they work, so what slow data costs is not in it",
        ),
    )


def _cleaning(dice: Dice) -> list[TraceJob]:
    found: list[TraceJob] = []
    at = 0.0
    while (at := at + dice.expovariate(CLEANING / HOUR)) < SPAN:
        found.append(traced(f"clean{len(found):05}", int(at), 180 + dice.randrange(121), 1, gpu_memory=4096))
    return found


def _by_hand(given: Given, jobs: Sequence[TraceJob], look: float, cleaned: int) -> dict[str, float | None]:
    given.say(f"by hand, {look:.0%} look, memory held {cleaned // MINUTE} min")
    world = manual.build({"look": f"{look}", "cleaned": f"{cleaned}"}, given.dice)
    outcome = world.run(cluster(NODES, gpu_memory=CARD), jobs)
    return _figures(outcome.course, len([at for _, at in outcome.out_of_memory if at < SPAN]))


def _ordered(given: Given, jobs: Sequence[TraceJob]) -> dict[str, float | None]:
    settings = policies()["gpuguard"]
    return _figures(play(given, "through the queue", cluster(NODES), jobs, settings, start=0, end=SPAN).course, 0)


def _figures(course: Course, crashes: int) -> dict[str, float | None]:
    """What training came to; cleaning counts as use of GPUs, but not as training."""
    split = goodput(course, 0, SPAN)
    training = [job for job in course.jobs if job.id.startswith("j")]
    well = [job for job in training if job.outcome == "completed"]
    waits = [_last_start(job.segments) - job.submit for job in well]
    held = fsum(segment.end - segment.start for job in well for segment in job.segments if segment.kept is None)
    done = fsum(segment.done for job in well for segment in job.segments if segment.kept is None)
    worked = fsum(
        job.gpus * segment.done * max(0, min(segment.end, SPAN) - segment.start) / max(1, segment.end - segment.start)
        for job in training
        for segment in job.segments
        if segment.kept is None
    )
    weeks = SPAN / (7 * DAY)
    return {
        "used": round(split.used / split.capacity, 4), "busy": round(split.used_share, 4),
        "wait_h": round(sum(waits) / len(waits) / HOUR, 2) if waits else None,
        "epochs_a_week": round(worked / (8 * NODES * LENGTHS[1] * MINUTE) / weeks, 1),
        "epoch_min": round(LENGTHS[1] * held / done, 1) if done else None,
        "out_of_memory_a_week": round(crashes / weeks, 1),
        "ended_well_share": round(len(well) / max(1, len(training)), 4),
    }  # fmt: skip


def _last_start(segments: Sequence[Segment]) -> int:
    """When the run began that was not broken off; runs at several paces are several segments without a gap."""
    start: int | None = None
    for segment in reversed(segments):
        if segment.kept is not None or (start is not None and segment.end != start):
            break
        start = segment.start
    return start or 0


def judge(measured: Measured) -> Sequence[Row]:
    """Before within 10 points, after at most 5 below; of the ratios nine tenths."""
    before, after = measured["steps"]["by_hand"], measured["steps"]["and_scheduler"]
    was, now = 100 * before["used"], 100 * after["used"]
    crashes = _row(
        "out of memory a week", CRASHES, "", before["out_of_memory_a_week"], after["out_of_memory_a_week"], less=True
    )
    # That none are left says little where there were not about as many before.
    near = before["out_of_memory_a_week"] <= MANY * CRASHES[0]
    return (
        Row(
            "GPUs used", f"{BEFORE} -> {AFTER} %", f"{was:.0f} -> {now:.0f} %",
            abs(was - BEFORE) <= NEAR_BEFORE and now >= AFTER - NEAR_AFTER,
        ),
        _row("mean wait", WAITS, "h", before["wait_h"], after["wait_h"], less=True),
        _row("epochs a week", EPOCHS, "", before["epochs_a_week"], after["epochs_a_week"], less=False),
        msgspec.structs.replace(crashes, holds=crashes.holds and near),
        _row("an epoch", LENGTHS, "min", before["epoch_min"], after["epoch_min"], less=True),
    )  # fmt: skip


def _row(
    what: str, claimed: tuple[float, float], unit: str, before: float | None, after: float | None, *, less: bool
) -> Row:
    """As many times less, or more, as was claimed."""
    one, other = claimed
    factor = one / other if less else other / one
    found = ratio(before, after) if less else ratio(after, before)
    none_left = less and before is not None and before > 0 and after == 0
    told = "-" if before is None or after is None else f"{before:,.1f} -> {after:,.1f} {unit}".rstrip()
    return Row(what, f"{one} -> {other} {unit}".rstrip(), told, none_left or at_least(found, NEAR * factor))
