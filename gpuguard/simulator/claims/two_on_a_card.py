"""Two jobs on one card, or one after the other."""

from collections.abc import Sequence

from gpuguard.scheduler.plan import AnyDecision, Finish, Start
from gpuguard.scheduler.settings import HOUR
from gpuguard.simulator.claim import Finding, Given, Measured, Row, shown
from gpuguard.simulator.course import Course
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced
from gpuguard.simulator.summary import utilisation

ID = "B3.1b"
CLAIM = "Two jobs that share a card run at 35 % each: utilisation reads 100 %, and less gets done than by one alone."
CLAIMED = "35 % each, 70 % together, while utilisation reads 100 %"
NEEDS = ()

PACE = 0.35
PACES = (0.25, 0.35, 0.45, 0.5, 0.6)
LENGTH = HOUR
TOGETHER, EXACT = 0.70, 0.01


class Sharing(Model):
    """Whoever is not alone on his card runs at this pace."""

    name = "sharing"
    loses = "sharing"

    def __init__(self, pace: float) -> None:
        self._pace = pace

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """Each start and each end changes it for those who are there."""
        if isinstance(decision, Start | Finish):
            there = [name for name, life in world.lives.items() if life.shares]
            for name in there:
                world.pace(name, "sharing", self._pace if len(there) > 1 else 1.0)


def measure(given: Given) -> Finding:
    """Both at once on halves of the card, and one after the other on all of it; by the pace of the two."""
    alone = _run(given, "one after the other", 1.0, 1000)
    sweep = []
    for pace in PACES:
        shared = _run(given, f"together at {pace:.0%}", pace, 500)
        sweep.append({"pace": pace, **_figures(shared)})
    return Finding(
        measured={"together": next(row for row in sweep if row["pace"] == PACE), "alone": _figures(alone),
                  "sweep": sweep},
        assumptions=(
            "one card, two jobs of one hour of work each; both are batch, for training never shares a card",
            f"{PACE:.0%} of the speed that each would have alone is the claim's own figure, hence the sweep: what is"
            " measured is what it comes to",
        ),
    )  # fmt: skip


def _run(given: Given, what: str, pace: float, milli: int) -> Course:
    jobs = [traced(name, 0, LENGTH, 1, gpu_milli=milli, tier="batch", walltime=10 * LENGTH) for name in ("a", "b")]
    return play(given, what, cluster(1, 1), jobs, policies()["gpuguard"], models=[Sharing(pace)]).course


def _figures(course: Course) -> dict[str, float | None]:
    ends = [job.end or 0 for job in course.jobs]
    used = utilisation(course, 0, course.last)
    return {
        "throughput": round(2 * LENGTH / course.last, 4), "mean_end_s": round(sum(ends) / len(ends)),
        "utilisation": None if used is None else round(used, 4),
    }  # fmt: skip


def judge(measured: Measured) -> Sequence[Row]:
    """By hand: two hours of work in 1 h / 0.35; one after the other in two hours."""
    together, alone = measured["together"], measured["alone"]
    done, reads = together["throughput"], together["utilisation"]
    return (
        Row("done by two together, of one alone", "70 %", _percent(done), abs(done - TOGETHER) <= EXACT),
        Row("the card's utilisation meanwhile", "100 %", _percent(reads), reads >= 1),
        Row("done one after the other", "more", _percent(alone["throughput"]), alone["throughput"] > done),
        Row(
            "mean end, together; one after the other", "later",
            f"{_hours(together['mean_end_s'])}; {_hours(alone['mean_end_s'])}",
            together["mean_end_s"] > alone["mean_end_s"],
        ),
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _hours(seconds: float) -> str:
    return shown(seconds / HOUR, " h")
