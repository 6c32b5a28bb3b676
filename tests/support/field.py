"""A node with its jobs, played by hand through the real core: what would be said of it, and when.

    node = Field()
    job = node.job("slurm/7", gpus=range(4))
    node.run(600, step=1.0)         # ten minutes, each rank makes a step a second
    job[0].doing = "locked"
    node.run(120)                   # nobody makes a step
    assert node.standing(job.name) == {"job_hung"}

Each process does one of the things of tests/support/training_looks.py until it is told to do another; sources look at
their usual pace. Everything can be set in between: a process' columns, what the scheduler says, which sources are away.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from gpuguard.health import policy
from gpuguard.health.decide import decide
from gpuguard.health.state import Health
from gpuguard.model.events import Booted, Sweep, Tick
from gpuguard.model.ids import NODE, BootId, EventId, JobId, PciAddress, SubjectId, gpu, job, rank, task
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values, merged
from gpuguard.runtime.assembly import assemble
from tests.support.training_looks import DOINGS, LIMIT_WATTS, MEMORY, Board, board

BOOT = BootId("5c0ffee0-0000-4000-8000-0000000000f2")
BEGIN, UTC = 10_000.0, 1_750_000_000.0
Rows = dict[SubjectId, Values]


@dataclass(slots=True)
class Process:
    """One process: what it does, what it tells, and what has been counted of it. `step` None tells of no progress;
    `on` is the number of its GPU. `task` and `tells` are columns that are set over what follows from that."""

    pid: int
    rank: int
    on: int | None
    board: Board
    doing: str = "work"
    used: float = 0.7 * MEMORY
    started: float = BEGIN - 4.0
    step: int | None = None
    phase: str = "start"
    moved: float = BEGIN
    since: float = BEGIN
    stepped: float = 0.0
    done: bool = False
    gone: bool = False
    tells: Values = field(default_factory=dict)
    task: Values = field(default_factory=dict)
    cpu: float = 0.0
    children: float = 0.0
    switches: float = 0.0
    read: float = 0.0
    written: float = 0.0
    mixes: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """One job; `says` is what its scheduler tells of it, None where none does."""

    name: JobId
    world: int
    processes: list[Process]
    says: Values | None
    telling: tuple[int, ...] = ()
    restart: int = 0

    def __getitem__(self, number: int) -> Process:
        return self.processes[number]

    def do(self, doing: str) -> None:
        """All of them do this from now on."""
        for process in self.processes:
            process.doing = doing


class Field:
    """One node and what the core makes of it."""

    def __init__(self, *, gpus: int = 8, pipes: bool = True, looks: float = 5.0) -> None:
        self.now, self.count, self.looks = BEGIN, gpus, looks
        self.jobs: list[Job] = []
        self.boards = [
            board(Random(100 + n), peers=gpus > 1, pipes=pipes, likeness=Random(7)) for n in range(gpus)
        ]  # fmt: skip
        self.away: set[str] = set()  # sources that say nothing
        self.schedules: int | None = 1
        self.cards: Values = {}  # columns of every GPU that are set over what is measured
        self._pids, self._sequence, self._tick = 5000, 0, BEGIN
        self._detectors, self._settings = assemble(with_sources=False).detectors, policy.Settings()
        self.health = Health(now=self._instant())
        self._stood: frozenset[tuple[str, str]] = frozenset()
        self.story: list[tuple[float, str, str]] = []  # seconds, subject, code of each finding as it came
        self._decide(Booted(id=EventId("start"), at=self._instant(), previous=None))

    def job(
        self, name: str, gpus: Iterable[int] = range(8), *, tells: Iterable[int] | None = None, doing: str = "work",
        slurm: bool = True, **says: int | str | None,
    ) -> Job:  # fmt: skip
        """A job with a process on each of these GPUs, of which those with the numbers `tells` use the library."""
        numbers = list(gpus)
        processes = []
        for place, number in enumerate(numbers):
            self._pids += 7
            processes.append(Process(
                pid=self._pids, rank=place, on=number, board=self.boards[number], doing=doing, moved=self.now,
                since=self.now, started=self.now - 4.0,
            ))  # fmt: skip
        told: Values = {
            "job_name": "train", "job_user": "ada", "job_state": "RUNNING", "job_alive": 1,
            "job_gpus_asked": len(numbers), "job_gpus_given": ",".join(map(str, numbers)), "job_nodes": 1,
            "job_restarts": 0, "job_requeueable": 1, **says,
        }  # fmt: skip
        made = Job(
            name=JobId(name), world=len(numbers), processes=processes, says=told if slurm else None,
            telling=tuple(range(len(numbers)) if tells is None else tells),
        )  # fmt: skip
        self.jobs.append(made)
        return made

    def run(self, seconds: float, *, step: float = 0.0, of: Job | None = None, phase: str = "step") -> None:
        """So long everybody does what he does; where `step` is set those that tell make a step each so many seconds."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            for one in self.jobs:
                for process in one.processes:
                    self._live(process)
                    if step and (of is None or of is one) and not process.gone and not process.done:
                        self._step(process, step, phase)
            for sweep in self._due():
                self._decide(sweep)
            if self.now >= self._tick:
                self._tick = self.now + 10.0
                self._decide(Tick(id=EventId(f"tick:{self.now}"), at=self._instant()))

    def say(self, process: Process, phase: str) -> None:
        """It tells that it does this now."""
        process.phase, process.since, process.moved = phase, self.now, self.now

    def forget(self, process: Process) -> None:
        """Its number is another process' now, as after a restart; nothing of it is counted on."""
        self._pids += 7
        process.pid, process.started, process.step, process.gone = self._pids, self.now, None, False
        process.cpu = process.children = process.switches = process.read = process.written = 0.0
        self.say(process, "start")

    # --- what is found ----------------------------------------------------------------------------------------------

    def standing(self, subject: str) -> set[str]:
        """Codes of what stands on a job, a GPU by its number, or the node."""
        name = self._subject(subject)
        known = self.health.subjects.get(name)
        return {one.finding.code for one in known.standing} if known is not None else set()

    def reason(self, subject: str, code: str) -> str:
        """What is said with it; '' where it does not stand."""
        known = self.health.subjects.get(self._subject(subject))
        return next((s.finding.reason for s in known.standing if s.finding.code == code), "") if known else ""

    def told(self, subject: str) -> Values:
        """The newest values of it."""
        return merged(self.health.readings.get(self._subject(subject), {}), self._instant())

    def codes(self) -> set[str]:
        """Everything that was ever said."""
        return {code for _, _, code in self.story}

    def _subject(self, name: str) -> SubjectId:
        if name.isdecimal():
            return gpu(self.address(int(name)))
        return NODE if name == "node" else job(JobId(name))

    # --- how it is played -------------------------------------------------------------------------------------------

    def address(self, number: int) -> PciAddress:
        return PciAddress(f"0000:{0x19 + 16 * number:02x}:00.0")

    def _instant(self) -> Instant:
        return Instant(boot=BOOT, mono=self.now, utc=UTC + self.now)

    def _decide(self, event: Booted | Sweep | Tick) -> None:
        self.health, decision = decide(self.health, event, self._detectors, self._settings)
        assert not decision.failed, decision.failed
        if not isinstance(event, Booted):
            stands = frozenset(
                (name, s.finding.code) for name, known in self.health.subjects.items() for s in known.standing
            )
            self.story += [(self.now - BEGIN, name, code) for name, code in sorted(stands - self._stood)]
            self._stood = stands

    def _live(self, process: Process) -> None:
        does = DOINGS[process.doing]
        if not process.gone:
            process.cpu += does.cpu
            process.children += does.children
            process.switches += does.switches
            process.read += does.read
            process.written += does.written
        process.mixes = [*process.mixes[-4:], {"gone" if process.gone else process.doing: 1.0}]

    def _step(self, process: Process, every: float, phase: str) -> None:
        if self.now - process.stepped >= every:
            made = max(1, round(1.0 / every))
            process.step, process.stepped, process.moved = (process.step or 0) + made, self.now, self.now
            if process.phase != phase:
                process.phase, process.since = phase, self.now

    def _due(self) -> Iterator[Sweep]:
        second = int(self.now - BEGIN)
        if second % 2 == 0:
            yield from self._sweep("heartbeats", "fast", 10.0, self._heartbeats())
        if second % self.looks == 0:
            yield from self._sweep("nvml", "fast", 15.0, self._gpus())
        if second % 30 == 2 or second == 1:
            yield from self._sweep("nvml", "medium", 90.0, self._processes())
        if second % 10 == 3:
            yield from self._sweep("tasks", "fast", 30.0, self._tasks())
        if second % 30 == 4 or second == 1:
            yield from self._sweep("slurm", "medium", 90.0, self._scheduler())

    def _sweep(self, source: str, rate: Rate, valid_for: float, rows: Rows) -> Iterator[Sweep]:
        self._sequence += 1
        if rows and source not in self.away:
            yield Sweep(
                id=EventId(f"{source}/{rate}:{self._sequence}"), at=self._instant(), source=source, rate=rate,
                valid_for=valid_for, rows=rows,
            )  # fmt: skip

    def _heartbeats(self) -> Rows:
        return {rank(one.name, one[n].rank): self._beat(one, one[n]) for one in self.jobs for n in one.telling}

    def _beat(self, of: Job, process: Process) -> Values:
        row: Values = {
            "rank_job": of.name, "rank_number": process.rank, "rank_world": of.world, "rank_restart": of.restart,
            "rank_pid": process.pid, "rank_uid": 2001, "rank_host": "node01", "rank_via": "library",
            "rank_phase": process.phase, "rank_phase_seconds": self.now - process.since,
            "rank_progress_seconds": self.now - process.moved, "rank_done": int(process.done), "rank_preempt": 0,
            "rank_gone": int(process.gone),
        }  # fmt: skip
        if process.step is not None:
            row["rank_step"] = process.step
        return row | process.tells

    def _on(self, number: int) -> list[tuple[Job, Process]]:
        return [(one, p) for one in self.jobs for p in one.processes if p.on == number and not p.gone]

    def _gpus(self) -> Rows:
        rows: Rows = {NODE: {"nvml_hung": 0, "gpus_visible": self.count, "gpus_lost": 0}}
        for number in range(self.count):
            here = [process for _, process in self._on(number)]
            mix, last = {"gone": 5.0}, {"gone": 1.0}
            if here:
                mix, last = {}, here[0].mixes[-1]
                for one in here[0].mixes:
                    for doing, seconds in one.items():
                        mix[doing] = mix.get(doing, 0.0) + seconds
            used = sum(process.used for process in here)
            rows[gpu(self.address(number))] = self.boards[number].row(mix, last, used) | {
                "gpu_index": number} | self.cards  # fmt: skip
        return rows

    def _processes(self) -> Rows:
        rows: Rows = {}
        for number in range(self.count):
            here = self._on(number)
            rows[gpu(self.address(number))] = {"power_limit_watts": LIMIT_WATTS, "process_count": len(here)}
            for _, process in here:
                rows[SubjectId(f"process:{self.address(number)}/{process.pid}")] = {
                    "process_name": "python3", "process_kind": "compute", "process_user": "ada",
                    "process_memory_bytes": int(process.used),
                }  # fmt: skip
        return rows

    def _tasks(self) -> Rows:
        rows: Rows = {NODE: {"io_stall_seconds_total": 0.0}}
        for one in self.jobs:
            for process in one.processes:
                does, number = DOINGS[process.doing], str(process.rank)
                row: Values = {
                    "task_job": one.name, "task_part": "0", "task_uid": 2001, "task_devices": str(process.on),
                    "task_rank": number,
                }  # fmt: skip
                row |= {"task_gone": 1} if process.gone else {
                    "task_name": "python3", "task_state": does.states[0], "task_parent": 400, "task_gone": 0,
                    "task_started_seconds": process.started, "task_cpu_seconds_total": process.cpu,
                    "task_switches_total": int(process.switches), "task_read_bytes_total": int(process.read),
                    "task_written_bytes_total": int(process.written), "task_children": 8,
                    "task_waits_in": "" if does.states[0] == "R" else does.waits_in,
                    "task_children_cpu_seconds_total": process.children, "task_io_stall_seconds_total": 0.0,
                }  # fmt: skip
                rows[task(process.pid)] = row | process.task
        return rows

    def _scheduler(self) -> Rows:
        rows: Rows = {job(one.name): one.says for one in self.jobs if one.says is not None}
        return rows | {NODE: {"scheduler_jobs_known": self.schedules}}
