"""Training that needs prepared data: started beside its preparation on the same GPUs, or after it on CPUs."""

from collections.abc import Sequence

from gpuguard.scheduler.plan import AnyDecision, Finish, Start
from gpuguard.scheduler.request import Dependency
from gpuguard.scheduler.settings import DAY, HOUR
from gpuguard.simulator.claim import Dice, Finding, Given, Measured, Row, at_least, shown
from gpuguard.simulator.engine import Model, World
from gpuguard.simulator.policies import policies
from gpuguard.simulator.scenes import cluster, play, run_times, size_of, traced
from gpuguard.simulator.trace import TraceJob

ID = "S12"
CLAIM = "Preparation moved to CPUs, with training started only after it, raises the throughput of the same GPUs."
CLAIMED = "+ 40 % effective throughput"
NEEDS = ()

NODES, SPAN, LOAD = 8, 10 * DAY, 1.5
PARTS = (0.1, 0.25, 0.5, 1.0)
"""How long preparing takes, of how long training then takes."""
PREPARES_ON = 2
REFERENCE = 0.25
CORES = 16
MORE = 1.40


class Unready(Model):
    """A training job that was started before its data stands holds its GPUs, and begins when the data is there."""

    name = "unready"
    loses = "data"

    def __init__(self, needs: dict[str, str]) -> None:
        self._needs = needs
        self._ready: set[str] = set()
        self._idle: dict[str, str] = {}

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """A start before its time is no start of the work; the end of what it waits for is."""
        if isinstance(decision, Start) and (data := self._needs.get(decision.job)) and data not in self._ready:
            self._idle[data] = decision.job
            world.pace(decision.job, "data", 0.0)
        elif isinstance(decision, Finish) and decision.job.startswith("prepare"):
            self._ready.add(decision.job)
            if waiting := self._idle.pop(decision.job, None):
                world.pace(waiting, "data", 1.0)


def measure(given: Given) -> Finding:
    """Pairs of preparation and training, more than the GPUs can do, in both ways; by how long preparing takes."""
    drawn = _drawn(given.dice)
    sweep = []
    for part in PARTS:
        naive = _trained(given, f"on GPUs, {part:g}", _naive(drawn, part), [Unready(_needs(drawn))], cpus=False)
        moved = _trained(given, f"on CPUs, {part:g}", _moved(drawn, part), [], cpus=True)
        sweep.append({
            "preparing_to_training": part, "trained_share_before": naive, "trained_share_after": moved,
            "gain": round(moved / naive, 3) if naive else None,
        })  # fmt: skip
    return Finding(
        measured={"reference": REFERENCE, "sweep": sweep},
        assumptions=(
            f"{NODES} nodes of 8 for {SPAN // DAY} days; pairs of a preparation and a training, more than fit",
            f"before: preparing holds {PREPARES_ON} GPUs and takes as long as on {CORES} cores; training is submitted"
            " with it and holds its GPUs until the data stands",
            "after: preparing runs on CPUs of nodes of their own, training waits for its success; cores are not scarce",
            "throughput is the share of the GPUs' time that trainings used which ended in these days",
            f"reference: preparing takes {REFERENCE:g} of the time that training takes",
        ),
    )


def _drawn(dice: Dice) -> list[tuple[int, int, int]]:
    """(submit, run time, GPUs) of the trainings."""
    missing = LOAD * 8 * NODES * SPAN
    found = []
    while missing > 0:
        gpus, length = size_of(dice), max(HOUR // 2, run_times(dice, longest=DAY))
        missing -= gpus * length
        found.append((int(dice.random() * SPAN), length, gpus))
    return sorted(found)


def _needs(drawn: Sequence[tuple[int, int, int]]) -> dict[str, str]:
    return {f"train{number:04}": f"prepare{number:04}" for number in range(len(drawn))}


def _naive(drawn: Sequence[tuple[int, int, int]], part: float) -> list[TraceJob]:
    found = []
    for number, (submit, length, gpus) in enumerate(drawn):
        preparing = max(60, round(part * length))
        found.append(traced(f"prepare{number:04}", submit, preparing, PREPARES_ON))
        found.append(traced(f"train{number:04}", submit, length, gpus, walltime=30 * DAY))
    return found


def _moved(drawn: Sequence[tuple[int, int, int]], part: float) -> list[TraceJob]:
    found = []
    for number, (submit, length, gpus) in enumerate(drawn):
        prepare = f"prepare{number:04}"
        found.append(
            traced(
                prepare, submit, max(60, round(part * length)), 0, tier="batch", cpus=float(CORES), prepares=True,
            )
        )  # fmt: skip
        found.append(
            traced(
                f"train{number:04}", submit, length, gpus, walltime=30 * DAY,
                after=(Dependency(relation="afterok", name=prepare),),
            )
        )  # fmt: skip
    return found


def _trained(given: Given, what: str, jobs: Sequence[TraceJob], models: Sequence[Model], *, cpus: bool) -> float:
    """The share of the GPUs' time in which trainings trained that ended in the span."""
    nodes = cluster(NODES, cpus=128.0)
    if cpus:
        nodes = [*nodes, *(node for node in cluster(NODES + 64, 0, cpus=128.0)[NODES:])]
    engine = play(
        given, what, nodes, jobs, policies()["fifo-pack"], models=models, start=0, end=SPAN, until=SPAN,
    )  # fmt: skip
    done = sum(
        life.record.gpus * life.work
        for name, life in engine.lives.items()
        if name.startswith("train") and life.record.end is not None and life.record.end <= SPAN
    )
    return round(done / (8 * NODES * SPAN), 4)


def judge(measured: Measured) -> Sequence[Row]:
    """The claimed gain at the reference; what the sweep spans is told beside."""
    gains = {row["preparing_to_training"]: row["gain"] for row in measured["sweep"]}
    return (
        Row(
            f"trained, where preparing takes {measured['reference']:g} of training", "+ 40 %",
            _more(gains[measured["reference"]]), at_least(gains[measured["reference"]], MORE),
        ),
    )  # fmt: skip


def _more(gain: float | None) -> str:
    return shown(None if gain is None else 100 * (gain - 1), " %", 0)
