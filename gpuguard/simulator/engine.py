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

from gpuguard.errors import InvariantBroken
from gpuguard.scheduler.check import check
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import (
    AnyEvent,
    Checkpointed,
    Cleaned,
    Diagnosed,
    Ended,
    NodeJoined,
    NodeLeft,
    NodeLost,
    Submitted,
)
from gpuguard.scheduler.measures import slots_of
from gpuguard.scheduler.nodes import bad_gpus, usable
from gpuguard.scheduler.plan import (
    AnyDecision,
    Diagnose,
    Drain,
    Finish,
    Kill,
    Plan,
    Preempt,
    Reclaim,
    Refuse,
    Requeue,
    Share,
    Start,
    Undrain,
)
from gpuguard.scheduler.record import Record
from gpuguard.scheduler.request import WHOLE, Job
from gpuguard.scheduler.settings import MINUTE, Settings
from gpuguard.scheduler.state import State
from gpuguard.simulator.course import Course, End, JobRecord, Loss, Outage, Sample
from gpuguard.simulator.trace import TraceJob

LEAVES = 10
"""Seconds from SIGTERM to the end of a job that saves and leaves."""

LOOKS = 10 * MINUTE
"""How long a diagnosis of a node takes, where no model says otherwise."""

TERMINATED = 143


class Life:
    """A job in the world: how much of its work is left, and what it does now.

    Shape   work: of which nothing has been kept yet. kept: what the run that ends has saved. since: the instant up to
            which `marks` tell what was worked. paces: by what, and how much, it is slowed down now. slow: seconds of
            this run that were lost to each. part: of the GPUs it asked for. ends: when it ends as things stand, None:
            never by itself. forced: an end that is not that of its work. obeys: it saves and leaves when it is told to
    Units   seconds; work at full speed on all GPUs
    """

    __slots__ = (
        "began", "ends", "forced", "generation", "job", "kept", "marks", "obeys", "paces", "part", "record", "shares",
        "slow", "work",
    )  # fmt: skip

    def __init__(self, job: Job, work: float, record: JobRecord) -> None:
        self.job = job
        self.work = work
        self.kept = 0.0
        self.record = record
        self.generation = 0
        self.began = 0
        self.ends: int | None = None
        self.forced: tuple[int, int, int, bool] | None = None
        self.obeys = True
        self.paces: dict[Loss, float] = {}
        self.slow: dict[Loss, float] = {}
        self.part = 1.0
        self.marks: list[tuple[int, float, float]] = []
        self.shares: tuple[Share, ...] = ()

    @property
    def speed(self) -> float:
        return math.prod(self.paces.values(), start=self.part)

    def done(self, at: int) -> float:
        """The work of this run up to an instant."""
        for since, done, speed in reversed(self.marks):
            if at >= since:
                return done + (at - since) * speed
        return 0.0

    def settle(self, at: int) -> None:
        """What was lost to slowness up to now is written down, each cause taking its part of what others left."""
        since, _, _ = self.marks[-1]
        left = float(at - since)
        for word, pace in self.paces.items():
            self.slow[word] = self.slow.get(word, 0.0) + left * (1.0 - pace)
            left *= pace
        self.marks.append((at, self.done(at), self.speed))


class World(Protocol):
    """What a model may see and do: the state as the core left it, and a way to have something happen later."""

    state: State
    lives: dict[str, Life]
    now: int

    def later(self, at: int, event: AnyEvent) -> None:
        """The core is told this at that instant."""

    def call(self, at: int, action: Callable[[int], None]) -> None:
        """This is done at that instant, before the core is told what happened then."""

    def submit(self, at: int, traced: TraceJob) -> None:
        """One more job."""

    def end(self, job: str, at: int, code: int, signal: int = 0, *, proof: bool = True) -> None:
        """The job's run ends then and not when its work is done; unless it ends before.

        Shape   proof: where the code is 0, it also shows that it completed
        """

    def pace(self, job: str, word: Loss, pace: float) -> None:
        """From now on and until its run ends the job is so fast for this cause; 0: it does nothing, nor does it end."""


class Model(Protocol):
    """A part of the world that can be switched on, in a file of its own that inherits what it does not do otherwise.

    `name` is its file's; `loses` is the word for what a job loses by its `speed` (`goodput` has the list).
    """

    name: str
    loses: Loss = "sharing"

    def site(self, settings: Settings) -> Settings:
        """The settings under which this world is run."""
        return settings

    def submits(self, traced: TraceJob) -> TraceJob:
        """The job as it is in this world; asked once, before anything happens."""
        return traced

    def begin(self, world: World, start: int, end: int) -> None:
        """Before the first event, with all jobs of the trace submitted; whatever is known to happen is told now."""
        return

    def speed(self, world: World, life: Life, decision: Start) -> float:
        """How fast the job runs on these places; 1 is full speed."""
        return 1.0

    def saved(self, world: World, life: Life, at: int, asked: bool) -> int | None:
        """The instant up to which the run that ends `at` has saved its work; `asked`: it was told to save and leave.

        None: the model has no word in it. The first that has counts
        """
        return None

    def takes(self, world: World, decision: AnyDecision, now: int) -> bool:
        """Whether the model does what was decided; else the world does."""
        return False

    def decided(self, world: World, decision: AnyDecision, now: int) -> None:
        """After the world has done what was decided."""
        return

    def told(self, world: World, event: AnyEvent, now: int) -> None:
        """Before the core is told."""
        return


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
        checked: int = 0,
    ) -> None:
        submits = [traced.submit_s for traced in jobs]
        self._start = min(submits, default=0) if start is None else start
        self._end = max(submits, default=0) if end is None else end
        for model in models:
            settings = model.site(settings)
        self.state = State(settings)
        self.now = self._start
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
        # After every so many passes the state is recounted from scratch; 0: never.
        self._checked = checked
        self._passes = 0
        self._heap: list[tuple[int, int, AnyEvent | Callable[[int], None], int]] = []
        self._out: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._wake: int | None = None
        for traced in jobs:
            known = traced
            for model in models:
                known = model.submits(known)
            self.submit(known.submit_s, known)
        self.total = len(jobs)
        self.over = 0

    # -- what models may do -------------------------------------------------------------------------------------------

    def later(self, at: int, event: AnyEvent) -> None:
        """The core is told this at that instant."""
        self._push(at, event, -1)

    def call(self, at: int, action: Callable[[int], None]) -> None:
        """This is done at that instant, before the core is told what happened then."""
        self._push(at, action, -1)

    def submit(self, at: int, traced: TraceJob) -> None:
        """The job is submitted then, and runs as long as its trace says."""
        job = traced.job
        record = JobRecord(id=job.id, gpus=job.gpus, submit=at, milli=job.gpu_milli, tier=job.tier, segments=[])
        self.course.jobs.append(record)
        self.lives[job.id] = Life(job, float(traced.duration_s or 0), record)
        self._push(at, Submitted(at=at, job=job), -1)

    def end(self, job: str, at: int, code: int, signal: int = 0, *, proof: bool = True) -> None:
        """The job's run ends then and not when its work is done; unless it ends before.

        Shape   proof: where the code is 0, it also shows that it completed
        """
        life = self.lives[job]
        if life.shares and (life.ends is None or at < life.ends):
            life.forced = (at, code, signal, proof)
            self._plan(life)

    def pace(self, job: str, word: Loss, pace: float) -> None:
        """From now on and until its run ends the job is so fast for this cause; 0: it does nothing, nor does it end."""
        life = self.lives[job]
        if life.shares and life.paces.get(word, 1.0) != pace:
            life.settle(self.now)
            life.paces[word] = pace
            life.marks[-1] = (self.now, life.marks[-1][1], life.speed)
            self._plan(life)

    def _plan(self, life: Life) -> None:
        """When the run ends as things stand: with its work, or before."""
        since, done, speed = life.marks[-1]
        life.generation += 1
        life.ends = since + max(0, math.ceil((life.work - done) / speed - 1e-9)) if speed > 0 else None
        code, signal, proof = 0, 0, True
        if life.forced is not None and (life.ends is None or life.forced[0] < life.ends):
            life.ends, code, signal, proof = life.forced
        if life.ends is not None:
            proof = proof and code == 0 and not signal
            self._push(
                life.ends, Ended(at=life.ends, job=life.job.id, code=code, signal=signal, proof=proof), life.generation
            )

    def _push(self, at: int, event: AnyEvent | Callable[[int], None], generation: int) -> None:
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
            self.now = now
            self._pass(now, self._due(now))
            if self.over - said >= step:
                said = self.over
                yield self.over, len(self.lives)
        for node in list(self._out):
            self._outage(node, self.now, 0)
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
            if callable(event):
                event(now)
                continue
            if isinstance(event, Ended):
                life = self.lives[event.job]
                if generation != life.generation or not life.shares:
                    continue
                if event.code or event.signal or not event.proof:
                    events.extend(self._save(life, now))
            elif isinstance(event, NodeLost | NodeLeft) or (isinstance(event, Diagnosed) and not event.passed):
                for job in self.state.running:
                    if any(share.node == event.node for share in self.lives[job].shares):
                        events.extend(self._save(self.lives[job], now))
            events.append(event)
            for model in self._models:
                model.told(self, event, now)
        return events

    def _save(self, life: Life, now: int) -> Iterator[AnyEvent]:
        """What a job that ends before its time has saved: all of it where it was told to leave, else what it had."""
        run = self.state.running.get(life.job.id)
        life.kept = 0.0
        if not life.job.checkpoints or run is None:
            return
        # What stands still saves nothing more.
        until = now if life.speed > 0 else life.marks[-1][0]
        at = self._saved(life, until, run.why in {"preempt", "drain"} and life.obeys and life.speed > 0)
        life.kept = life.done(at)
        yield Checkpointed(at=at, job=life.job.id)

    def _saved(self, life: Life, now: int, asked: bool) -> int:
        for model in self._models:
            saved = model.saved(self, life, now, asked)
            if saved is not None:
                return saved
        if asked or self._saves is None:
            return now
        return now - (now - life.began) % max(1, self._saves)

    def _pass(self, now: int, events: Iterable[AnyEvent]) -> None:
        watch = self._stopwatch
        began = watch() if watch is not None else 0.0
        self.state, plan = cycle(self.state, events, now)
        if watch is not None:
            self.cycles.append((watch() - began) * 1000.0)
        self._wake = plan.wake
        self._passes += 1
        if self._checked and self._passes % self._checked == 0 and (found := check(self.state)):
            raise InvariantBroken(f"{'; '.join(found)} (pass {self._passes}, at {now}): report it with the trace")
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
            if not any(model.takes(self, decision, now) for model in self._models):
                self._do(decision, now)
            for model in self._models:
                model.decided(self, decision, now)

    def _do(self, decision: AnyDecision, now: int) -> None:
        match decision:
            case Start():
                self._begin(decision, now)
            case Preempt() | Kill():
                if decision.job in self.lives:
                    self.end(decision.job, now + min(LEAVES, decision.grace), TERMINATED)
            case Requeue():
                life = self.lives[decision.job]
                how: End = "preempted" if decision.rule == "preempted" else "failed"
                self._stop(life, now, "lost" if decision.rule in {"lost", "node_left", "drain"} else how)
                life.work = max(0.0, life.work - life.kept) if decision.resume else life.work
                life.kept = 0.0
            case Finish():
                record = self.lives[decision.job].record
                self._stop(self.lives[decision.job], now, _ENDS.get(decision.outcome, "ended"))
                if record.segments:
                    record.end = now  # also where it was lost, and may not start again
            case Refuse():
                self.refused.append(decision)
                self.lives[decision.job].record.outcome = "refused"
                self.over += 1
            case Diagnose():
                self.later(now + LOOKS, Diagnosed(at=now + LOOKS, node=decision.node, passed=True))
            case Drain() | Undrain():
                node = self.state.lives[decision.node]
                every = (1 << node.gpus) - 1
                self._outage(decision.node, now, bad_gpus(node) if usable(node) else every)
            case Reclaim():
                self.later(now + MINUTE, Cleaned(at=now + MINUTE, node=decision.node, gpus=decision.gpus))
            case _:
                pass

    def _begin(self, decision: Start, now: int) -> None:
        life = self.lives[decision.job]
        life.began, life.shares = now, decision.shares
        life.forced, life.obeys, life.slow = None, True, {}
        life.paces = {}
        for model in self._models:
            pace = model.speed(self, life, decision)
            if pace != 1.0:
                life.paces[model.loses] = life.paces.get(model.loses, 1.0) * pace
        given = sum(share.mask.bit_count() for share in decision.shares)
        life.part = given / life.job.gpus if 0 < given < life.job.gpus else 1.0
        life.marks = [(now, 0.0, life.speed)]
        self._plan(life)

    def _stop(self, life: Life, now: int, how: End) -> None:
        if life.shares:
            life.settle(now)
            slow = tuple((word, lost) for word, lost in life.slow.items() if lost)
            kept = None if how in {"ended", "killed"} else life.kept / life.part
            life.record.ran(life.began, now, life.shares, how, kept, slow)
        life.shares = ()
        life.generation += 1

    def _outage(self, node: str, now: int, mask: int) -> None:
        """These GPUs of the node cannot be given from now on."""
        began, before = self._out.get(node, (now, 0))
        if mask == before:
            return
        self._out.pop(node, None)
        if before and now > began:
            self.course.outages.append(Outage(began, now, node, before))
        if mask:
            self._out[node] = (now, mask)

    def _sample(self, now: int) -> None:
        state = self.state
        count = state.cluster.count[state.cluster.usable]
        self.course.samples.append(
            Sample(
                now, len(state.queue), len(state.running), state.allocated / WHOLE, int(count.sum()),
                slots_of(count, state.cluster.most),
            )
        )  # fmt: skip


_ENDS: dict[str, End] = {
    "completed": "ended", "failed": "failed", "suspicious": "failed", "timeout": "killed", "cancelled": "killed",
    "node_lost": "lost",
}  # fmt: skip
