"""How often to save, and whether training may stand still for it."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from gpuguard.scheduler.plan import AnyDecision, Start
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, shown
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.goodput import goodput
from gpuguard.simulator.models import checkpoints
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced

ID = "S15"
CLAIM = "Checkpoints every 5 to 10 minutes, written asynchronously, make failures cheap."
CLAIMED = "every 5-10 min, asynchronous"
NEEDS = ()

NODES, WORK = 2048, 10 * DAY
TOLD = 8
"""So many nodes are told to the core as one: it has one job to place, and each start costs by the node."""
RATE = 4.0
"""Failures per 1,000 node-days. Source: Llama 3 3.8, InfiniteHBD 4.2, Meta RSC 2.3 to 6.5."""
STALL, WRITE = 60, 60
INTERVALS = (150, 300, 600, 1800, 3600, 4 * HOUR)
ADVISED = (300, 600)
NEARLY = 600
"""Up to here an interval is short beside the time between failures, which the expectation takes for granted."""
CHEAP, APART, AGREES = 0.05, 0.05, 0.02


class Failing(Model):
    """The job dies now and then, whatever it does, and is started again."""

    name = "failing"

    def __init__(self, dice: Dice, mean: float) -> None:
        self._dice = dice
        self._mean = mean
        self.failures = 0

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """Each run has an end of its own."""
        if isinstance(decision, Start):
            at = now + 1 + int(self._dice.expovariate(1.0 / self._mean))
            world.call(at, partial(self._fail, world, decision.job, now))

    def _fail(self, world: World, job: str, began: int, now: int) -> None:
        life = world.lives[job]
        if life.shares and life.began == began:
            self.failures += 1
            world.end(job, now, 134)


def measure(given: Given) -> Finding:
    """One job on all nodes, by interval, standing still to save and not; what it took, and what it should have."""
    throws = given.dice.getrandbits(64)
    mean = DAY * 1000.0 / (RATE * NODES)
    found = []
    for way in ("asynchronous", "standing_still"):
        for interval in INTERVALS:
            given.dice.seed(f"{throws}")  # the same failures, as long as nothing shifts them
            found.append({"way": way, "interval_s": interval, **_run(given, way, interval, mean)})
    return Finding(
        measured={"mean_time_between_failures_s": round(mean), "gpus": 8 * NODES, "runs": found},
        assumptions=(
            f"one job of {8 * NODES:,} GPUs with {WORK // DAY} days of work; {RATE:g} failures per 1,000 node-days, so"
            f" one in {mean / HOUR:.1f} h",
            f"the core is told of {TOLD} nodes as one, for speed; failures are counted by the real ones",
            f"a save takes {WRITE} s to write: training goes on meanwhile, or stands still for it",
            "the job is started again at once: what detection, new nodes and loading cost is the same for all intervals"
            " and left out",
            "expected: half an interval and the writing lost by failure, and the stall of each save",
        ),
    )


def _run(given: Given, way: str, interval: int, mean: float) -> dict[str, float]:
    stall = STALL if way == "standing_still" else 0
    saving = checkpoints.build({"interval": f"{interval}", "stall": f"{stall}", "write": f"{WRITE}"}, given.dice)
    failing = Failing(given.dice, mean)
    job = traced("large", 0, WORK, 8 * NODES, walltime=365 * DAY, checkpoints=True, requeues=100_000)
    engine = play(
        given, f"{way}, every {interval / MINUTE:g} min", cluster(NODES // TOLD, 8 * TOLD), [job],
        policies()["fifo-pack"], models=[saving, failing],
    )  # fmt: skip
    course = engine.course
    split = goodput(course, 0, course.last)
    lost = split.lost["failure"]
    late = WRITE if way == "asynchronous" else 0
    # Work that takes W is broken off every M; of each M about half an interval and the writing are done again.
    expected = (1.0 - (interval / 2 + stall / 2 + late) / mean) * interval / (interval + stall)
    return {
        "failures": failing.failures, "useful_share": round(WORK / course.last, 4),
        "expected_useful_share": round(max(0.0, expected), 4),
        "lost_gpu_hours_by_failure": round(lost / HOUR / max(1, failing.failures), 1),
        "stalled_share": round(split.lost["saving"] / split.capacity, 4),
    }  # fmt: skip


def judge(measured: Measured) -> Sequence[Row]:
    """Little is lost at the advice, longer intervals cost more, standing still costs more, and theory agrees."""
    share = {(run["way"], run["interval_s"]): run["useful_share"] for run in measured["runs"]}
    advised = [share["asynchronous", interval] for interval in ADVISED]
    still = [share["standing_still", interval] for interval in ADVISED]
    longer = [share["asynchronous", interval] for interval in sorted({way[1] for way in share}) if interval >= 600]
    off = max(
        abs(run["useful_share"] - run["expected_useful_share"])
        for run in measured["runs"]
        if run["interval_s"] <= NEARLY
    )
    return (
        Row("lost, asynchronous, every 5 and 10 min", "little", _both(advised), min(advised) >= 1 - CHEAP),
        Row(
            "lost, standing still, every 5 and 10 min", "clearly more", _both(still),
            all(one - other >= APART for one, other in zip(advised, still, strict=True)),
        ),
        Row(
            "lost, asynchronous, from 10 min to 4 h", "ever more", f"{_percent(longer[0])} to {_percent(longer[-1])}",
            all(one > other for one, other in pairwise(longer)),
        ),
        Row(
            "simulated against expected, intervals to 10 min", "alike", f"{100 * off:.1f} points apart",
            off <= AGREES,
        ),
    )  # fmt: skip


def _both(shares: Sequence[float]) -> str:
    return " and ".join(_percent(share) for share in shares)


def _percent(share: float) -> str:
    return shown(100 * (1 - share), " %")
