"""A training job on one node, simulated: its ranks, GPUs and processes as gpuguard's sources would show them.

    job = Training(seed=7, ranks=8, plan=(Part("start", 40), Part("steps", 120), Part("locked", 200, rank=3)))
    for sweep in job.sweeps(): ...

Time is virtual and begins at `BEGIN`; the same arguments give the same sweeps. The job does the parts of its plan one
after the other. Ranks work in step: each computes, then waits in a collective for the slowest. So whatever holds up one
holds up all, and the others spin: that is what makes a culprit hard to tell.

Parts that end by themselves
    start         imports and reads the model; no step yet
    steps         makes steps; `rank` with a `factor` is slower than the others by that
    compile       builds kernels, unequally long
    recompile     the same in the midst of a step, of which nobody says a word
    checkpoint    how: "first" rank 0 writes and the others wait, "all" write their shares, "async" writes beside steps
    evaluation    how: "all", or "first" rank 0 alone while the others wait
    restart       all processes end, one after the other, and come back as others; then as `start`
    slow storage  how: "trickle" reads take long again and again, "stall" no byte comes for the whole time, for `rank`
    starved       each step waits for loaders, which work hard
    done          says that it is complete and ends
Parts that never do: `rank` is, from then on, as it says, and the others wait for it
    killed, stopped, locked, "hang in storage", loop (a kernel on its GPU never ends), mismatch (it is in another
    collective than the others), partition (no rank here is at fault; with `nodes` > 1)

`told` is how progress is known: "heartbeats" (library; each `beat` seconds), "file" (a file of each rank, with its
step), "file of rank 0", "none". `declared` is who says which phase it is in: "all", "first" (rank 0), "none".
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, BootId, EventId, JobId, PciAddress, SubjectId, gpu, job, rank, task
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Rate, Values
from tests.support.training_looks import DOINGS, LIMIT_WATTS, MEMORY, Board, board

BOOT = BootId("5c0ffee0-0000-4000-8000-0000000000f1")
BEGIN = 10_000.0
UTC = 1_750_000_000.0
JOB = JobId("slurm/8123")
UID = 2001
BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")  # as on a DGX H100
NAMED = 60.0  # seconds for which a process that ended is still named by what was measured of it
FAULTS = ("killed", "stopped", "locked", "hang in storage", "loop", "mismatch", "partition")
Told = Literal["heartbeats", "file", "file of rank 0", "none"]
Rows = dict[SubjectId, Values]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a job's plan; `seconds` is how long it takes, or for a fault how long it is watched."""

    kind: str
    seconds: float
    rank: int = 0
    factor: float = 1.0
    how: str = ""


@dataclass(slots=True)
class Span:
    """Until `end` each rank does `first`, and from `until` on `then`."""

    end: float
    first: Sequence[str]
    until: Sequence[float]
    then: Sequence[str]
    step: bool = False  # a step is complete at its end


@dataclass(slots=True)
class Member:
    """One rank and its process."""

    number: int
    pid: int
    started: float
    moved: float  # it made a step, or said that it begins something else
    stepped: float
    phase_at: float
    board: Board
    phase: str = "start"
    step: int | None = None
    saved: int | None = None
    saved_at: float = 0.0
    blocked: float | None = None
    restart: int = 0
    former: int | None = None  # its process before the restart
    gone: bool = False
    done: bool = False
    used: float = 0.0
    doing: str = "import"
    cpu: float = 0.0
    children: float = 0.0
    switches: float = 0.0
    read: float = 0.0
    written: float = 0.0
    mixes: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=5))


class Training:
    """One job, from its first second on."""

    def __init__(
        self, *, seed: int, plan: Sequence[Part], ranks: int = 8, nodes: int = 1, told: Told = "heartbeats",
        declared: str = "all", step: float = 1.1, beat: float = 1.0, slurm: bool = True, pipes: bool = True,
        flight: bool = False, from_step: int = 0,
    ) -> None:  # fmt: skip
        self.plan, self.nodes, self.told, self.declared = tuple(plan), nodes, told, declared
        self.step_seconds, self.beat, self.slurm, self.flight = step, beat, slurm, flight
        self.chance = Random(seed)
        self.now = BEGIN
        self.part = self.plan[0]
        self.part_at = BEGIN
        self.fault: Part | None = None
        self.fault_at: float | None = None
        self._stall, self._sequence = 0.0, 0
        likeness = self.chance.random()
        self.members = [
            Member(
                number=number, pid=41_000 + 7 * number, started=BEGIN - 4.0, moved=BEGIN, stepped=BEGIN,
                phase_at=BEGIN,
                step=from_step or None,
                board=board(
                    Random(seed * 1000 + number), peers=ranks > 1, pipes=pipes, likeness=Random(likeness)
                ),
            )
            for number in range(ranks)
        ]  # fmt: skip

    @property
    def world(self) -> int:
        """Ranks over all nodes."""
        return self.nodes * len(self.members)

    # --- what happens -----------------------------------------------------------------------------------------------

    def sweeps(self) -> Iterator[Sweep]:
        """Every sweep of every source, in order of time, until the plan ends."""
        for _ in self._seconds():
            yield from self._due()

    def _seconds(self) -> Iterator[None]:
        """The job's time, second by second."""
        spans = self._spans()
        span = next(spans, None)
        since = BEGIN
        while span is not None:
            end = self.now + 1.0
            mixes: list[dict[str, float]] = [{} for _ in self.members]
            while span is not None:
                upto = min(end, span.end)
                for member, mix, first, until, then in zip(
                    self.members, mixes, span.first, span.until, span.then, strict=True
                ):
                    turn = min(max(until, since), upto)
                    if turn > since:
                        mix[first] = mix.get(first, 0.0) + turn - since
                        member.doing = first
                    if upto > turn:
                        mix[then] = mix.get(then, 0.0) + upto - turn
                        member.doing = then
                since = upto
                if span.end > end:
                    break
                if span.step:
                    self._stepped(span.end)
                span = next(spans, None)
            self.now = end
            self._account(mixes)
            yield

    def _spans(self) -> Iterator[Span]:
        at = BEGIN
        for part in self.plan:
            self.part, self.part_at = part, at
            for span in self._of(part, at):
                yield span
                at = span.end

    def _of(self, part: Part, at: float) -> Iterator[Span]:
        end = at + part.seconds
        match part.kind:
            case "start":
                yield from self._start(at, end)
            case "steps" | "starved":
                yield from self._steps(part, at, end)
            case "compile":
                self._phase("compile", at)
                yield self._all(end, "compile", "wait", [self.chance.uniform(0.5, 1.0) for _ in self.members], at)
            case "recompile":
                yield self._all(end, "compile", "wait", [self.chance.uniform(0.3, 1.0) for _ in self.members], at)
            case "checkpoint":
                yield from self._checkpoint(part, at, end)
            case "evaluation":
                yield from self._evaluation(part, at, end)
            case "restart":
                yield from self._restart(at, end)
            case "slow storage":
                yield from self._slow_storage(part, at, end)
            case "done":
                self._phase("step", at)
                for member in self.members:
                    member.done, member.moved = True, at
                yield self._all(end, "away")
            case _:
                yield self._fault(part, at, end)

    def _all(
        self, end: float, first: str, then: str = "", shares: Sequence[float] = (), at: float = 0.0
    ) -> Span:  # fmt: skip
        """All do the same, each for its share of the time, of which the largest counts as all of it, and then wait."""
        count, most = len(self.members), max(shares, default=1.0)
        until = [at + share / most * (end - at) for share in shares] if shares else [end] * count
        return Span(end=end, first=[first] * count, until=until, then=[then or first] * count)

    def _one(self, end: float, number: int, does: str, others: str = "wait", until: float | None = None) -> Span:
        """One does something, and then waits as well where that ends before; the others wait for it."""
        count = len(self.members)
        ends = [end] * count
        if until is not None:
            ends[number] = until
        first = [does if n == number else others for n in range(count)]
        then = ["wait" if n == number and until is not None else first[n] for n in range(count)]
        return Span(end=end, first=first, until=ends, then=then)

    def _start(self, at: float, end: float) -> Iterator[Span]:
        self._phase("start", at)
        model = at + 0.4 * (end - at)
        yield self._all(model, "import")
        for member in self.members:
            member.used = self.chance.uniform(0.5, 0.9) * MEMORY
        yield self._all(end, "restore", "wait", [self.chance.uniform(0.7, 1.0) for _ in self.members], model)

    def _steps(self, part: Part, at: float, end: float, saving: int | None = None) -> Iterator[Span]:
        chance, count = self.chance, len(self.members)
        while at < end:
            if part.kind == "starved":
                slow = self.step_seconds * chance.lognormvariate(2.1, 0.4)  # they read from one storage
                gaps = [slow * chance.uniform(0.8, 1.0) for _ in range(count)]
                longest = at + max(gaps)
                yield Span(end=longest, first=["load"] * count, until=[at + gap for gap in gaps], then=["wait"] * count)
                at = longest
            base = self.step_seconds * chance.lognormvariate(0.0, 0.06)
            if chance.random() < 0.004:  # a batch of long sequences, a collection of garbage, a neighbour
                base *= min(12.0, chance.paretovariate(1.5))
            takes = [base * chance.uniform(0.86, 0.95) for _ in range(count)]
            if part.factor > 1.0:
                takes[part.rank] *= part.factor
            ready = at + max(takes)
            works = ["work and save" if n == saving else "work" for n in range(count)]
            at_end = ready + 0.05 * base
            # The collective itself moves bytes: for the GPU that is work.
            yield Span(end=ready, first=works, until=[at + one for one in takes], then=["wait"] * count)
            yield Span(end=at_end, first=works, until=[at_end] * count, then=works, step=True)
            at = at_end

    def _checkpoint(self, part: Part, at: float, end: float) -> Iterator[Span]:
        self._phase("checkpoint", at)
        if part.how == "async":
            pause = at + min(part.seconds, self.chance.uniform(0.5, 3.0))
            yield self._all(pause, "save")
            self._phase("step", pause, blocked=pause - at)
            yield from self._steps(Part("steps", 0.0), pause, end, saving=0)
        elif part.how == "all":
            yield self._all(end, "save", "wait", [self.chance.uniform(0.6, 1.0) for _ in self.members], at)
        else:
            yield self._one(end, 0, "save", until=at + 0.97 * part.seconds)
        for member in self.members:
            member.saved, member.saved_at = member.step, end
        if part.how != "async":
            self._phase("step", end, blocked=end - at)

    def _evaluation(self, part: Part, at: float, end: float) -> Iterator[Span]:
        self._phase("evaluation", at)
        counted = at + 0.85 * part.seconds
        if part.how == "first":
            yield self._one(counted, 0, "evaluate")
            yield self._one(end, 0, "score")
        else:
            yield self._all(counted, "evaluate", "wait", [self.chance.uniform(0.8, 1.0) for _ in self.members], at)
            yield self._one(end, 0, "score")
        self._phase("step", end)

    def _restart(self, at: float, end: float) -> Iterator[Span]:
        """A launcher ends the ranks one after the other, and starts all of them again."""
        order = list(self.members)
        self.chance.shuffle(order)
        for member in order:
            member.gone = True
            at += self.chance.uniform(0.05, 0.6)
            yield Span(
                end=at, first=["gone" if m.gone else "wait" for m in self.members], until=[at] * len(self.members),
                then=["gone"] * len(self.members),
            )  # fmt: skip
        away = at + self.chance.uniform(1.0, 12.0)
        yield self._all(away, "away")
        for member in self.members:
            member.former, member.pid, member.started, member.gone = member.pid, member.pid + 5_003, away, False
            member.restart += 1
            member.step, member.moved, member.phase_at, member.phase = member.saved, away, away, "start"
            member.cpu = member.children = member.switches = member.read = member.written = member.used = 0.0
        yield from self._start(away, max(end, away + 10.0))

    def _slow_storage(self, part: Part, at: float, end: float) -> Iterator[Span]:
        if part.how == "stall":
            yield self._one(end, part.rank, "hang in storage")
            return
        while at < end:
            gap = min(end - at + 1.0, 3.0 * self.chance.paretovariate(1.3))
            number = self.chance.randrange(len(self.members))
            yield self._one(at + gap, number, "read slowly")
            at += gap
            for span in self._steps(Part("steps", 0.0), at, at + self.step_seconds * self.chance.uniform(0.5, 3.0)):
                yield span
                at = span.end

    def _fault(self, part: Part, at: float, end: float) -> Span:
        if part.kind not in FAULTS:
            raise ValueError(f"no such part of a plan: {part.kind!r}")
        self.fault, self.fault_at = part, at
        if part.kind in {"partition", "mismatch"}:
            return self._all(end, "wait")
        if part.kind == "killed":
            self.members[part.rank].gone = True
            return self._one(end, part.rank, "gone")
        return self._one(end, part.rank, part.kind)

    def _phase(self, phase: str, at: float, blocked: float | None = None) -> None:
        for member in self.members:
            if blocked is not None:
                member.blocked = blocked
            if self.declared == "all" or (self.declared == "first" and member.number == 0) or phase == "start":
                member.phase, member.phase_at, member.moved = phase, at, at

    def _stepped(self, at: float) -> None:
        for member in self.members:
            member.step = (member.step or 0) + 1
            member.moved = member.stepped = at
            if member.phase != "step":
                member.phase, member.phase_at = "step", at

    def _account(self, mixes: Sequence[dict[str, float]]) -> None:
        """A second has gone by: counters grow by what each did in it."""
        for member, mix in zip(self.members, mixes, strict=True):
            member.mixes.append(mix)
            for doing, seconds in mix.items():
                does = DOINGS[doing]
                spread = self.chance.uniform(0.8, 1.2) * seconds
                member.cpu += does.cpu * seconds * self.chance.uniform(0.9, 1.0)
                member.children += does.children * spread
                member.switches += does.switches * spread
                member.read += does.read * spread
                member.written += does.written * spread
        # The ranks are one cgroup: it waits for storage only while none of them does anything else.
        self._stall += min(
            (DOINGS[member.doing].stall for member in self.members if not member.gone), default=0.0
        )  # fmt: skip

    # --- what sources show of it ------------------------------------------------------------------------------------

    def _due(self) -> Iterator[Sweep]:
        second = int(self.now - BEGIN)
        if self.told == "heartbeats" and self.now % self.beat == 0:
            yield self._sweep("heartbeats", "fast", max(3 * self.beat, 10.0), self._heartbeats())
        elif self.told in {"file", "file of rank 0"} and second % 5 == 1:
            yield self._sweep("watchers", "fast", 15.0, self._files())
        if second % 5 == 0:
            yield self._sweep("nvml", "fast", 15.0, self._gpus())
        if second % 30 == 2 or second == 1:
            yield self._sweep("nvml", "medium", 90.0, self._processes())
        if second % 10 == 3:
            yield self._sweep("tasks", "fast", 30.0, self._tasks())
        if self.slurm and (second % 30 == 4 or second == 1):
            yield self._sweep("slurm", "medium", 90.0, self._jobs())
        if self.flight and self.fault_at is not None and self.now >= self.fault_at + 15.0 and second % 30 == 5:
            yield self._sweep("flight_recorder", "medium", 90.0, self._dumps())

    def _sweep(self, source: str, rate: Rate, valid_for: float, rows: Rows) -> Sweep:
        self._sequence += 1
        at = Instant(boot=BOOT, mono=self.now, utc=UTC + self.now)
        return Sweep(
            id=EventId(f"{source}/{rate}:{self._sequence}"), at=at, source=source, rate=rate, valid_for=valid_for,
            rows=rows,
        )  # fmt: skip

    def address(self, member: Member) -> PciAddress:
        """Where its GPU is."""
        return PciAddress(f"0000:{BUSES[member.number]}:00.0")

    def _heartbeats(self) -> Rows:
        return {rank(JOB, member.number): self._beat(member) for member in self.members}

    def _beat(self, member: Member) -> Values:
        now = self.now
        row: Values = {
            "rank_job": JOB, "rank_number": member.number, "rank_world": self.world, "rank_restart": member.restart,
            "rank_pid": member.pid, "rank_uid": UID, "rank_host": "node01", "rank_via": "library",
            "rank_phase": member.phase, "rank_phase_seconds": now - member.phase_at,
            "rank_progress_seconds": now - member.moved, "rank_done": int(member.done), "rank_preempt": 0,
            "rank_devices": str(member.number), "rank_gone": int(member.gone or member.doing == "away"),
        }  # fmt: skip
        if member.step is not None:
            row["rank_step"] = member.step
        if member.saved is not None:
            row |= {"rank_saved_step": member.saved, "rank_saved_seconds": now - member.saved_at}
        if member.blocked is not None:
            row["rank_save_blocked_seconds"] = member.blocked
        return row

    def _files(self) -> Rows:
        """What a watcher knows: the file moved, and the number in it."""
        watched = self.members[:1] if self.told == "file of rank 0" else self.members
        return {
            rank(JOB, member.number): {
                "rank_job": JOB, "rank_number": member.number, "rank_via": "file", "rank_step": member.step,
                "rank_progress_seconds": self.now - member.stepped,
            }
            for member in watched
            if member.step is not None
        }  # fmt: skip

    def _gpus(self) -> Rows:
        rows: Rows = {NODE: {"nvml_hung": 0, "gpus_visible": len(self.members), "gpus_lost": 0}}
        for member in self.members:
            mix: dict[str, float] = {}
            for one in member.mixes:
                for doing, seconds in one.items():
                    mix[doing] = mix.get(doing, 0.0) + seconds
            used = 0.0 if member.gone else member.used
            rows[gpu(self.address(member))] = member.board.row(mix, member.mixes[-1], used)
        return rows

    def _processes(self) -> Rows:
        rows: Rows = {}
        for member in self.members:
            holds = bool(member.used) and not member.gone and member.doing != "away"
            rows[gpu(self.address(member))] = {"power_limit_watts": LIMIT_WATTS, "process_count": int(holds)}
            if holds:
                rows[SubjectId(f"process:{self.address(member)}/{member.pid}")] = {
                    "process_name": "python3", "process_kind": "compute", "process_user": "ada",
                    "process_memory_bytes": int(member.used),
                }  # fmt: skip
        return rows

    def _tasks(self) -> Rows:
        rows: Rows = {NODE: {"io_stall_seconds_total": self._stall}}
        for member in self.members:
            if member.gone or member.doing == "away":
                # What was known of it while it lived, as the source remembers it.
                rows[task(member.pid)] = {**self._identity(member), "task_gone": 1}
            else:
                rows[task(member.pid)] = self._task(member)
            if member.former is not None and self.now - member.started < NAMED:
                rows[task(member.former)] = {**self._identity(member), "task_gone": 1}
        return rows

    def _task(self, member: Member) -> Values:
        does = DOINGS[member.doing]
        state = self.chance.choice(does.states)
        return self._identity(member) | {
            "task_name": "python3", "task_state": state, "task_parent": 40_000,
            "task_started_seconds": member.started, "task_cpu_seconds_total": member.cpu,
            "task_switches_total": int(member.switches), "task_read_bytes_total": int(member.read),
            "task_written_bytes_total": int(member.written), "task_waits_in": "" if state == "R" else does.waits_in,
            "task_children": 8, "task_children_cpu_seconds_total": member.children,
            "task_io_stall_seconds_total": self._stall, "task_gone": 0,
        }  # fmt: skip

    def _identity(self, member: Member) -> Values:
        number = str(member.number)
        return {"task_job": JOB, "task_part": "0", "task_uid": UID, "task_devices": number, "task_rank": number}

    def _jobs(self) -> Rows:
        count = len(self.members)
        row: Values = {
            "job_name": "train", "job_user": "ada", "job_state": "RUNNING", "job_alive": 1, "job_gpus_asked": count,
            "job_gpus_given": f"0-{count - 1}" if count > 1 else "0", "job_nodes": self.nodes, "job_restarts": 0,
            "job_requeueable": 1, "job_run_seconds": self.now - BEGIN + 4.0, "job_time_limit_seconds": 86_400.0,
        }  # fmt: skip
        return {job(JOB): row, NODE: {"scheduler_jobs_known": 1}}

    def _dumps(self) -> Rows:
        """What flight recorders tell once all stand: how far each rank is, and in which collective."""
        assert self.fault is not None
        assert self.fault_at is not None
        called = 40 * (self.members[0].step or 0) + 7
        rows: Rows = {}
        for member in self.members:
            at_fault = member.number == self.fault.rank and self.fault.kind != "partition"
            if member.gone or (at_fault and self.fault.kind in ("stopped", "locked", "hang in storage")):
                continue  # nobody is there who would write it down
            mismatched, looping = (at_fault and self.fault.kind == kind for kind in ("mismatch", "loop"))
            rows[rank(JOB, member.number)] = {
                "flight_completed": called - 2 if mismatched else called - 1,
                "flight_enqueued": called - 1 if mismatched else called,
                "flight_waits_in": f"{'allgather' if mismatched else 'allreduce'} of group 0",
                # What was called after a kernel that never ends has not begun.
                "flight_waits_state": "scheduled" if looping else "started",
                "flight_age_seconds": self.now - self.fault_at - 10.0,
            }  # fmt: skip
        return rows
