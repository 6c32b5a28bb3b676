"""A node to which sweeps of jobs come, by hand."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuguard.health.board import Board
from gpuguard.jobs import activity, tasks, verdict
from gpuguard.jobs.derive import Jobs, Settings
from gpuguard.jobs.limits import parse_phases
from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, BootId, EventId, JobId, PciAddress, SubjectId, gpu, job, rank, task
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Readings, Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.assets import read_text

SEVEN = JobId("slurm/7")


def card(number: int) -> SubjectId:
    return gpu(PciAddress(f"0000:{number:02x}:00.0"))


class Node:
    """A node to which sweeps come; what is concluded is remembered as the core does."""

    def __init__(self, every: float = 1.0) -> None:
        phases = parse_phases(read_text("rules", "jobs", "phases.toml"))
        self.jobs = Jobs(
            Settings(every=Seconds(every)), verdict.Settings(), activity.Settings(), tasks.Settings(), phases
        )
        self.memory = self.jobs.start()
        self.readings: Readings = {}
        self.now = 1000.0
        self.spent = 0.0  # seconds on processors, for tests that count them
        self.boot = "A"
        self.told: Mapping[SubjectId, Values] = {}

    def sweep(self, rows: Mapping[SubjectId, Values], after: float = 0.0, valid_for: float = 60.0) -> None:
        self.now += after
        at = Instant(boot=BootId(self.boot), mono=self.now, utc=1e9 + self.now)
        event = Sweep(id=EventId("x"), at=at, source="test", rate="fast", valid_for=valid_for, rows=dict(rows))
        board = Board(self.readings)
        board.age(at)
        board.take(next(iter(rows)).partition(":")[0], "fast", valid_for, rows, event)
        self.memory, told = self.jobs.derive(self.memory, lambda *kinds: board.of(kinds, event), at, rows)
        self.told = told or self.told
        self.readings = board.readings

    def beat(
        self, step: int, *, after: float = 2.0, world: int | None = 2, ranks: Iterable[int] = (0, 1), **more: Any
    ) -> None:
        """Ranks tell that they are at this step; `more` are columns without their `rank_`."""
        told = {"world": world, "restart": 0, "phase": "step", "phase_seconds": 1.0, "progress_seconds": 0.0,
                "via": "library", "done": 0, "gone": 0, **more}  # fmt: skip
        named = {f"rank_{name}": value for name, value in told.items()}
        self.sweep(
            {
                rank(SEVEN, n): {"rank_job": SEVEN, "rank_number": n, "rank_pid": 100 + n, "rank_step": step, **named}
                for n in ranks
            },
            after, valid_for=3.0,
        )  # fmt: skip

    def tasks(self, *pids: int, owner: str | None = SEVEN, **more: Any) -> None:
        self.sweep(
            {
                task(pid): {"task_job": owner, "task_state": "S", "task_name": "python3", "task_gone": 0,
                            "task_started_seconds": 5.0, **more}
                for pid in pids
            },
            2.0,
        )  # fmt: skip

    def on_gpus(self, *pids: int, bytes_: float = 1e9) -> None:
        """Each process holds the GPU of its place."""
        rows: dict[SubjectId, Values] = {card(n): {"process_count": 1, "gpu_index": n} for n in range(2)}
        for n, pid in enumerate(pids):
            name = f"process:{card(n).partition(':')[2]}/{pid}"
            rows[SubjectId(name)] = {
                "process_memory_bytes": bytes_,
                "process_kind": "compute",
                "process_name": "python3",
            }
        self.sweep(rows, 2.0)

    def slurm(self, **more: Any) -> None:
        self.sweep({job(SEVEN): {"job_alive": 1, "job_gpus_asked": 2, "job_gpus_given": "0-1", **more},
                    NODE: {"scheduler_jobs_known": 1}}, 2.0)  # fmt: skip

    def of_job(self) -> Values:
        return dict(self.told.get(job(SEVEN), {}))
