"""A run: virtual time over the real core, and a world that does what the core decides.

The world is what the shell is on real nodes: it starts what is to be started, lets jobs end when their work is done or
they are told to, and tells the core. Everything beyond that (far placement, faults, people) is a `Model` that is asked
at the same points. Nothing here asks the time or draws a chance: a stopwatch and dice are handed in.

Units   seconds on the run's clock; work is in seconds at full speed
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.cluster import Ints
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Checkpointed, Cleaned, Diagnosed, Ended, NodeJoined, Submitted
from gpuguard.scheduler.plan import (
    AnyDecision,
    Diagnose,
    Finish,
    Kill,
    Plan,
    Preempt,
    Reclaim,
    Refuse,
    Requeue,
    Share,
    Start,
)
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import MINUTE, Settings
from gpuguard.scheduler.state import State
from gpuguard.simulator.course import SLOTS, Course, End, JobRecord, Sample
from gpuguard.simulator.trace import TraceJob

LEAVES = 10
"""Seconds from SIGTERM to the end of a job that saves and leaves."""

LOOKS = 10 * MINUTE
"""How long a diagnosis of a node takes, where no model says otherwise."""

TERMINATED = 143


class Life:
    """A job in the world: how much of its work is left, and what it does now."""

    __slots__ = ("began", "generation", "job", "kept", "record", "shares", "speed", "work")

    def __init__(self, job: Job, work: float, record: JobRecord) -> None:
        self.job = job
        self.work = work
        self.kept = 0.0
        self.record = record
        self.generation = 0
        self.began = 0
        self.speed = 1.0
        self.shares: tuple[Share, ...] = ()


class World(Protocol):
    """What a model may see and do: the state as the core left it, and a way to have something happen later."""

    state: State
    lives: dict[str, Life]

    def later(self, at: int, event: AnyEvent) -> None: ...

    def submit(self, at: int, traced: TraceJob) -> None: ...

    def end(self, job: str, at: int, code: int, signal: int = 0) -> None: ...


class Model(Protocol):
    """A part of the world that can be switched on. Every method is optional in what it does, none in its presence."""

    def begin(self, world: World, start: int, end: int) -> None:
        """Before the first event; whatever is known to happen is told to the world now."""

    def speed(self, world: World, life: Life, decision: Start) -> float:
        """How fast the job runs on these places; 1 is full speed."""

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """After the world has done what was decided."""

    def told(self, world: World, event: AnyEvent, now: int) -> None:
        """Before the core is told."""


class Stopped(Exception):
    """Whoever watches does not want to go on."""


class Engine:
    """One run over one list of jobs."""

    def __init__(
        self,
        nodes: Sequence[NodeJoined],
        jobs: Sequence[TraceJob],
        settings: Settings,
        *,
        policy: str = "",
        start: int | None = None,
        end: int | None = None,
        models: Sequence[Model] = (),
        stopwatch: Callable[[], float] | None = None,
        saves: int | None = None,
        sampled: bool = True,
    ) -> None:
        submits = [traced.submit_s for traced in jobs]
        self._start = min(submits, default=0) if start is None else start
        self._end = max(submits, default=0) if end is None else end
        self.state = State(settings)
        self.lives: dict[str, Life] = {}
        self.course = Course(
            policy=policy, nodes=tuple((node.node, node.gpus) for node in nodes), start=self._start, end=self._end
        )
        self.cycles: list[float] = []
        self.records: list[Record] = []
        self.refused: list[Refuse] = []
        self.decided = 0
        self._nodes = nodes
        self._models = models
        self._stopwatch = stopwatch
        self._saves = saves
        self._sampled = sampled
        self._heap: list[tuple[int, int, AnyEvent, int]] = []
        self._count = 0
        self._wake: int | None = None
        for traced in jobs:
            self.submit(traced.submit_s, traced)
        self.total = len(jobs)
        self.over = 0

    # -- what models may do -------------------------------------------------------------------------------------------

    def later(self, at: int, event: AnyEvent) -> None:
        """The core is told this at that instant."""
        self._push(at, event, -1)

    def submit(self, at: int, traced: TraceJob) -> None:
        """The job is submitted then, and runs as long as its trace says."""
        job = traced.job
        record = JobRecord(id=job.id, gpus=job.gpus, submit=at, milli=job.gpu_milli, tier=job.tier, segments=[])
        self.course.jobs.append(record)
        self.lives[job.id] = Life(job, float(traced.duration_s or 0), record)
        self._push(at, Submitted(at=at, job=job), -1)

    def end(self, job: str, at: int, code: int, signal: int = 0) -> None:
        """The job's run ends then and not when its work is done; unless it ends before."""
        life = self.lives[job]
        life.generation += 1
        self._push(at, Ended(at=at, job=job, code=code, signal=signal, proof=code == 0 and not signal), life.generation)

    def _push(self, at: int, event: AnyEvent, generation: int) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, event, generation))

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[tuple[int, int]]:
        """Goes on until the last job has ended; tells now and then how many of how many are over."""
        for model in self._models:
            model.begin(self, self._start, self._end)
        self._pass(self._start, list(self._nodes))
        step = max(1, self.total // 200)
        said = 0
        while self.over < len(self.lives):
            now = self._next()
            if now is None:
                raise InvariantBroken(
                    f"{len(self.lives) - self.over} jobs wait and nothing will ever happen: report it with the trace"
                )
            self._pass(now, self._due(now))
            if self.over - said >= step:
                said = self.over
                yield self.over, len(self.lives)
        yield self.over, len(self.lives)

    def _next(self) -> int | None:
        first = self._heap[0][0] if self._heap else None
        if self._wake is None or (first is not None and first <= self._wake):
            return first
        return self._wake

    def _due(self, now: int) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, event, generation = heappop(self._heap)
            if isinstance(event, Ended):
                life = self.lives[event.job]
                if generation != life.generation or not life.shares:
                    continue
                if event.code or event.signal:
                    events.extend(self._save(life, now))
            events.append(event)
            for model in self._models:
                model.told(self, event, now)
        return events

    def _save(self, life: Life, now: int) -> Iterator[AnyEvent]:
        """What a job that ends before its time has saved: all of it where it was told to leave, else what it had."""
        if not life.job.checkpoints:
            return
        run = self.state.running.get(life.job.id)
        done = (now - life.began) * life.speed
        if run is None:
            return
        if run.why == "preempt" or self._saves is None:
            life.kept += done
        else:
            life.kept += done - done % max(1.0, self._saves * life.speed)
        at = life.began + math.floor((life.kept if life.kept < done else done) / life.speed)
        yield Checkpointed(at=min(now, at), job=life.job.id)

    def _pass(self, now: int, events: Iterable[AnyEvent]) -> None:
        watch = self._stopwatch
        began = watch() if watch is not None else 0.0
        self.state, plan = cycle(self.state, events, now)
        if watch is not None:
            self.cycles.append((watch() - began) * 1000.0)
        self._wake = plan.wake
        self._enact(plan, now)
        for record in self.state.ended:
            self.records.append(record)
            self.lives[record.job].record.outcome = record.outcome
            self.over += 1
        self.state.ended.clear()
        if self._sampled:
            self._sample(now)

    def _enact(self, plan: Plan, now: int) -> None:
        for decision in plan.decisions:
            self.decided += 1
            match decision:
                case Start():
                    self._begin(decision, now)
                case Preempt() | Kill():
                    if decision.job in self.lives and self.lives[decision.job].shares:
                        self.end(decision.job, now + min(LEAVES, decision.grace), TERMINATED)
                case Requeue():
                    life = self.lives[decision.job]
                    how: End = "preempted" if decision.rule == "preempted" else "failed"
                    self._stop(life, now, "lost" if decision.rule in {"lost", "node_left", "drain"} else how)
                    life.work = max(0.0, life.work - life.kept) if decision.resume else life.work
                    life.kept = 0.0
                case Finish():
                    self._stop(self.lives[decision.job], now, _ENDS.get(decision.outcome, "ended"))
                case Refuse():
                    self.refused.append(decision)
                    self.lives[decision.job].record.outcome = "refused"
                    self.over += 1
                case Diagnose():
                    self.later(now + LOOKS, Diagnosed(at=now + LOOKS, node=decision.node, passed=True))
                case Reclaim():
                    self.later(now + MINUTE, Cleaned(at=now + MINUTE, node=decision.node, gpus=decision.gpus))
                case _:
                    pass
            for model in self._models:
                model.decided(self, decision, now)

    def _begin(self, decision: Start, now: int) -> None:
        life = self.lives[decision.job]
        life.began, life.shares = now, decision.shares
        life.speed = 1.0
        for model in self._models:
            life.speed *= model.speed(self, life, decision)
        given = sum(share.mask.bit_count() for share in decision.shares)
        if 0 < given < life.job.gpus:
            life.speed *= given / life.job.gpus
        life.generation += 1
        at = now + max(0, math.ceil(life.work / life.speed - 1e-9))
        self._push(at, Ended(at=at, job=decision.job, proof=True), life.generation)

    def _stop(self, life: Life, now: int, how: End) -> None:
        if life.shares:
            life.record.ran(life.began, now, life.shares, how)
        life.shares = ()
        life.generation += 1

    def _sample(self, now: int) -> None:
        state = self.state
        count = state.cluster.count[state.cluster.usable]
        self.course.samples.append(
            Sample(
                now, len(state.queue), len(state.running), state.allocated / WHOLE, int(count.sum()),
                slots(count, state.cluster.most),
            )
        )  # fmt: skip


_ENDS: dict[str, End] = {
    "completed": "ended", "failed": "failed", "suspicious": "failed", "timeout": "killed", "cancelled": "killed",
    "node_lost": "lost",
}  # fmt: skip


def slots(free: Ints, most: int) -> tuple[int, ...]:
    """How many jobs of each size of SLOTS would start on nodes with so many free GPUs, with no wish for nearness."""
    if not most:
        return (0,) * len(SLOTS)
    whole = int(np.count_nonzero(free >= most))
    return tuple(int((free // size).sum()) if size < most else whole // -(-size // most) for size in SLOTS)
