"""A job that dies of its memory with the exit code of success, in the night."""

from collections.abc import Sequence

import msgspec

from gpuguard.scheduler.plan import AnyDecision, Finish, Start
from gpuguard.scheduler.settings import DAY, HOUR, MINUTE
from gpuguard.simulator.claim import Finding, Given, Measured, Row
from gpuguard.simulator.course import JobRecord
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, traced
from gpuguard.simulator.trace import TraceJob

ID = "A5.2g"
CLAIM = "A job that died with exit code 0 was taken for done and not started again; its GPUs stood idle until morning."
CLAIMED = "several hundred GPU time slots lost"
NEEDS = ()

NODES, GPUS = 8, 64
EVENING, MORNING, WORK, SAVES = 9 * HOUR, 18 * HOUR, DAY, 10 * MINUTE
"""From 14:00: it dies at 23:00, people come at 08:00; it would have taken a day, and saves every 10 min."""
SEVERAL, LITTLE = 200, 0.05


class Night(Model):
    """The first run dies at the evening with 0; if nobody started it again, its owner does in the morning."""

    name = "night"

    def __init__(self) -> None:
        self._died = False
        self.outcome = ""

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """What is done with the end is the core's word."""
        if isinstance(decision, Start) and not self._died:
            self._died = True
            world.end(decision.job, EVENING, 0, proof=False)
        elif isinstance(decision, Finish) and now == EVENING:
            self.outcome = decision.outcome
            life = world.lives[decision.job]
            left = round(life.work - (EVENING - EVENING % SAVES))
            job = msgspec.structs.replace(life.job, id="again")
            world.submit(MORNING, TraceJob(job=job, submit_s=MORNING, duration_s=left))


def measure(given: Given) -> Finding:
    """By the exit code alone, and with a proof of completion asked for."""
    by_code, by_proof = _night(given, proof=False), _night(given, proof=True)
    return Finding(
        measured={"by_exit_code": by_code, "by_proof": by_proof},
        assumptions=(
            f"{GPUS} GPUs; the job dies at 23:00 and its owner sees it at 08:00; it saves every {SAVES // MINUTE} min",
            "lost is GPU time from its death to when it is where it was, while nothing else is queued",
            "the rule that any exit but 0 is a failure does not find this one: the core asks for a proof",
        ),
    )


def _night(given: Given, *, proof: bool) -> dict[str, object]:
    model = Night()
    job = traced("train", 0, WORK, GPUS, checkpoints=True, proof=proof, walltime=3 * DAY)
    what = "by proof" if proof else "by exit code"
    engine = play(given, what, cluster(NODES), [job], policies()["gpuguard"], models=[model], saves=SAVES)
    late = engine.course.last - WORK
    return {
        "taken_for": model.outcome or "suspicious", "started_again_after_s": _again(engine.course.jobs) - EVENING,
        "lost_gpu_hours": round(GPUS * late / HOUR, 1),
    }  # fmt: skip


def _again(jobs: Sequence[JobRecord]) -> int:
    starts = [segment.start for job in jobs for segment in job.segments]
    return min((start for start in starts if start >= EVENING), default=EVENING)


def judge(measured: Measured) -> Sequence[Row]:
    """Taken for success and hundreds lost by the code; next to nothing by proof."""
    code, proof = measured["by_exit_code"], measured["by_proof"]
    lost, left = code["lost_gpu_hours"], proof["lost_gpu_hours"]
    return (
        Row("by exit code: taken for", "success", code["taken_for"], code["taken_for"] == "completed"),
        Row("by exit code: lost by morning", "several hundred GPU hours", f"{lost:,.0f}", lost >= SEVERAL),
        Row("by proof: lost", "next to nothing", f"{left:,.1f}", left <= LITTLE * lost),
    )
