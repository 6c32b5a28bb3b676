"""A training loop that waits for its batches, and one whose workers load ahead."""

from collections.abc import Sequence
from math import ceil

from gpuguard.scheduler.settings import HOUR
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, at_least, shown
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced

ID = "B4.4d"
CLAIM = "With workers that load ahead and live on between epochs a video model trains far faster on the same GPUs."
CLAIMED = "nearly 40 % faster"
NEEDS = ()

LOADS = (0.1, 0.2, 0.4, 1.0, 2.0, 8.0)
"""How long one worker loads a batch, of how long the GPU computes on it."""
COMPUTE = 0.5
BATCHES, EPOCHS = 300, 3
WORKERS, PREFETCH = 12, 4
START = 5.0
"""Seconds in which workers are made anew, where they do not live on."""
JOBS = 24
NEARLY = 1.35
HEAVY = 1.0
"""Beyond this a batch takes longer to load than to compute."""


def measure(given: Given) -> Finding:
    """A loop without workers, with two that prefetch little, and as advised, by how heavy loading is."""
    sweep = []
    for load in LOADS:
        throws = given.dice.getrandbits(64)
        times = {}
        for name, workers, ahead, lives in (
            ("no_workers", 0, 0, False), ("two_workers", 2, 2, False), ("advised", WORKERS, PREFETCH, True),
        ):  # fmt: skip
            given.dice.seed(f"{throws}")  # the same batches
            times[name] = _epochs(given.dice, load * COMPUTE, workers, ahead, lives)
        ends = {name: _jobs(given, f"{name}, loading {load:g}", seconds) for name, seconds in times.items()}
        sweep.append({
            "loading_to_computing": load, "busy_without_workers": _busy(times["no_workers"]),
            "busy_as_advised": _busy(times["advised"]),
            "faster_than_no_workers": round(ends["no_workers"] / ends["advised"], 3),
            "faster_than_two_workers": round(ends["two_workers"] / ends["advised"], 3),
        })  # fmt: skip
    return Finding(
        measured={"sweep": sweep},
        assumptions=(
            f"a batch is computed in {COMPUTE} s and loaded in a log-normal time; {BATCHES} batches an epoch,"
            f" {EPOCHS} epochs",
            f"advised: {WORKERS} workers, {PREFETCH} batches ahead each, kept between epochs; before: the loop loads"
            f" itself, or two workers with 2 ahead that are made anew each epoch ({START:g} s)",
            "cores are not scarce; how heavy loading is decides it all, hence the sweep",
            f"throughput is that of {JOBS} such jobs on 8 GPUs, one after the other",
        ),
    )


def _epochs(dice: Dice, loading: float, workers: int, ahead: int, lives: bool) -> float:
    """Seconds for all epochs."""
    now = 0.0
    for epoch in range(EPOCHS):
        if workers and (epoch == 0 or not lives):
            now += START
        now = _epoch(dice, now, loading, workers, workers * ahead)
    return now


def _epoch(dice: Dice, start: float, loading: float, workers: int, ahead: int) -> float:
    """When the last batch is computed. Batch n is loaded by worker n mod workers, at most `ahead` before it is used."""
    free = [start] * max(1, workers)
    begun: list[float] = []
    now = start
    for batch in range(BATCHES):
        took = loading * dice.lognormvariate(-0.125, 0.5)
        if not workers:
            now += took + COMPUTE
            continue
        worker = batch % workers
        # A worker goes on when one of those that were loaded ahead has been taken.
        may = begun[batch - ahead] if batch >= ahead else start
        free[worker] = max(free[worker], may) + took
        begun.append(max(now, free[worker]))
        now = begun[-1] + COMPUTE
    return now


def _busy(seconds: float) -> float:
    """The part of the time in which the GPU computes."""
    return round(BATCHES * EPOCHS * COMPUTE / seconds, 3)


def _jobs(given: Given, what: str, seconds: float) -> int:
    jobs = [traced(f"j{number:02}", 0, ceil(seconds), 1, walltime=24 * HOUR) for number in range(JOBS)]
    return play(given, what, cluster(1), jobs, policies()["gpuguard"]).course.last


def judge(measured: Measured) -> Sequence[Row]:
    """The gain comes up somewhere before loading is heavier than computing; from where on is told."""
    gains = {row["loading_to_computing"]: row["faster_than_no_workers"] for row in measured["sweep"]}
    moderate = max((gain for load, gain in gains.items() if load <= HEAVY), default=None)
    least = min((load for load, gain in gains.items() if gain >= NEARLY), default=None)
    return (
        Row(
            "faster, up to loading as long as computing", "nearly 40 %",
            shown(None if moderate is None else 100 * (moderate - 1), " % at most", 0), at_least(moderate, NEARLY),
        ),
        Row(
            "nearly 40 % from loading of so much of computing on", "-", shown(least, "", 1), least is not None,
        ),
    )  # fmt: skip
