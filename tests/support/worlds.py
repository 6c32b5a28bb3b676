"""Small worlds: a few nodes, a few jobs, and a run of them over the real core."""

from collections.abc import Sequence

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import Settings
from gpuguard.scheduler.wiring import two_sockets
from gpuguard.simulator.course import JobRecord
from gpuguard.simulator.engine import Engine, Model
from gpuguard.simulator.policies import policies
from gpuguard.simulator.trace import TraceJob


def nodes(*racks: int, pod: str = "p", gpus: int = 8) -> list[NodeJoined]:
    """So many nodes in each rack, all of the common wiring."""
    return [
        NodeJoined(
            at=0, node=f"r{rack}n{at}", gpus=gpus, rack=f"r{rack}", pod=pod, cpus=128, placement=two_sockets(gpus)
        )
        for rack, count in enumerate(racks)
        for at in range(count)
    ]  # fmt: skip


def traced(id: str, gpus: int, seconds: int, at: int = 0, **asked: object) -> TraceJob:
    """A job that runs so long, and asked for ten times that."""
    job = Job(**{"id": id, "gpus": gpus, "walltime": 10 * seconds, **asked})  # type: ignore[arg-type] # the caller's own words
    return TraceJob(job=job, submit_s=at, duration_s=seconds)


def ran(
    jobs: Sequence[TraceJob],
    models: Sequence[Model] = (),
    where: Sequence[NodeJoined] = (),
    settings: Settings | None = None,
) -> Engine:
    """The run, over."""
    site = settings if settings is not None else policies()["gpuguard"]
    engine = Engine(list(where) or nodes(2), jobs, site, models=models)
    for _ in engine.run():
        pass
    return engine


def record(engine: Engine, id: str) -> JobRecord:
    return next(job for job in engine.course.jobs if job.id == id)
