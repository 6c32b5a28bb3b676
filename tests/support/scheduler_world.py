"""A world for the scheduler's core under test: what is told is shuffled and told twice over, what is decided is judged.

Each pass goes through two states at once, with the events of the second in another order: both have to plan the same
bytes. After each pass the state is recounted, and each decision is held against what the world knows.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gpuguard.scheduler.check import check
from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import (
    AnyEvent,
    Cleaned,
    ConditionMet,
    Diagnosed,
    DrainLifted,
    Ended,
    HeartbeatBack,
    NodeJoined,
)
from gpuguard.scheduler.nodes import bad_gpus, usable
from gpuguard.scheduler.plan import Finish, Hold, Plan, Preempt, Release, Requeue, Start
from gpuguard.scheduler.ranks import rank
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.settings import (
    DAY,
    HOUR,
    Care,
    Order,
    Pool,
    Preemption,
    Queue,
    Settings,
)
from gpuguard.scheduler.state import State
from gpuguard.scheduler.wiring import two_sockets

SMALL = Settings(
    queues={"trial": Queue(limit=2 * HOUR, weight=2.0, gpus=6), "training": Queue(limit=7 * DAY, extension=7 * DAY)},
    pools={"training": Pool(wait=40), "interactive": Pool(placement="spread", watts=900.0)},
    order=Order(patience=4000, refresh=60),
    preemption=Preemption(grace=10, least_run=30, cooldown=100, gpus_per_hour=64, hold=20),
    care=Care(heartbeat=20, dead=60, again=30, flap_window=300),
    shares={"ann": 2.0},
    reservations=3,
)
"""Everything of the settings at work within minutes."""

KINDS: tuple[dict[str, object], ...] = (
    {"gpus": 8, "cpus": 32.0, "memory": 64000.0, "placement": two_sockets(8), "gpu_memory": 80000, "watts": 800.0},
    {"gpus": 4, "gpu_type": "A10", "memory_bandwidth": 1000.0, "watts": 400.0},
    {"gpus": 2, "cpus": 3.0, "pool": "training"},
    {"gpus": 1, "gpu_memory": 24000},
    {"gpus": 0, "cpus": 4.0},
)
NODES = 7


def node_of(number: int, at: int = 0, **changed: object) -> NodeJoined:
    """Node `number`: its kind, rack and pod go by the number."""
    kind = {**KINDS[(0, 1, 2, 0, 3, 1, 4)[number]], **changed}
    return NodeJoined(at=at, node=f"n{number}", rack=f"r{number // 2}", pod=f"p{number // 4}", **kind)  # type: ignore[arg-type]


def told(state: State, *events: AnyEvent, now: int) -> Plan:
    """One pass, and the state is what it says after it."""
    state, plan = cycle(state, events, now)
    assert (found := check(state)) == (), found
    return plan


def starts(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The nodes of each job that was started."""
    return {one.job: tuple(share.node for share in one.shares) for one in plan.decisions if isinstance(one, Start)}


def did(plan: Plan, what: type) -> list[str]:
    """The jobs for which something was decided."""
    return [str(getattr(one, "job", "")) for one in plan.decisions if isinstance(one, what)]


class World:
    """One core with a twin that hears everything in another order."""

    def __init__(self, settings: Settings = SMALL) -> None:
        self.settings = settings
        self.state, self.twin = State(settings), State(settings)
        self.now = 0
        self.told: list[AnyEvent] = []
        self.drains: dict[str, str] = {}
        self.words: dict[str, None] = {}
        self.jobs: dict[str, Job] = {}
        self.outcomes: dict[str, str] = {}
        self.held: dict[str, None] = {}
        self.since: dict[str, int] = {}
        self.restart: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.high: dict[str, tuple[int, bool]] = {}
        self.wake: int | None = None

    def go(self, events: Sequence[AnyEvent], now: int, shuffled: Iterable[AnyEvent]) -> Plan:
        """One pass over both, judged."""
        ran = {job: run.started for job, run in self.state.running.items()}
        sent = {job: run.signalled for job, run in self.state.running.items()}
        why = {job: run.why for job, run in self.state.running.items()}
        used = {one: self.state.share.ledger.used(one, self.state.now) for one in self.state.share.ledger.holders}
        self.state, plan = cycle(self.state, events, now)
        self.twin, other = cycle(self.twin, shuffled, now)
        assert msgspec.json.encode(plan) == msgspec.json.encode(other), "10: the order of telling changed the plan"
        assert plan.at == self.state.now >= now
        assert plan.wake is None or plan.wake > plan.at, f"wakes at {plan.wake}, which is not after {plan.at}"
        assert (found := check(self.state)) == (), found
        self._ended(events, plan, ran, sent, why)
        self._decided(plan)
        for holder, before in used.items():
            if not before:
                continue
            passed = plan.at - self.since.get("", 0)
            least = before * 0.5 ** (passed / self.settings.order.half_life)
            assert self.state.share.ledger.used(holder, plan.at) >= least * 0.999, "11: a charge was taken back"
        self.since[""] = plan.at
        self.wake = plan.wake
        self.state.ended.clear()
        self.twin.ended.clear()
        return plan

    def _ended(
        self,
        events: Sequence[AnyEvent],
        plan: Plan,
        ran: dict[str, int],
        sent: dict[str, int | None],
        why: dict[str, str],
    ) -> None:
        """12: whoever ends with a code or a signal that we did not send is never counted as completed or preempted."""
        words = {one.job: one for one in plan.decisions if isinstance(one, Finish | Requeue)}
        for event in events:
            if not isinstance(event, Ended) or event.job not in ran or event.job not in words:
                continue
            word = words[event.job]
            bad = bool(event.code or event.signal)
            others = [one for one in events if isinstance(one, Ended) and one.job == event.job and one is not event]
            if others:
                continue
            told_before = sent[event.job]
            ours = told_before is not None and event.at >= told_before
            if bad and not ours:
                assert word.rule != "preempted", "12: a failure passed as preempted"
            if bad:
                assert not isinstance(word, Finish) or word.outcome != "completed", "12: a failure passed as completed"
            if ours and why[event.job] == "preempt" and bad:
                # Ended and cancelled in one pass: it goes back to the queue and leaves it at once.
                assert word.rule in {"preempted", "lost", "node_left", "cancel", "cancelled"}, f"12: {word}"

    def _decided(self, plan: Plan) -> None:
        state = self.state
        for one in plan.decisions:
            match one:
                case Start():
                    self._started(one)
                case Finish():
                    self.outcomes[one.job] = one.outcome
                    self.high.pop(one.job, None)
                    self.held.pop(one.job, None)
                case Requeue():
                    self.high.pop(one.job, None)
                    entry = state.queue.entries.get(one.job) or state.waiting.get(one.job)
                    if entry is not None:
                        assert entry.job == self.jobs[one.job], "11: another job"
                        assert entry.submitted == self.sent[one.job], "11: a requeued job lost its age"
                case Preempt():
                    self._preempted(one)
                case Hold():
                    self.held[one.job] = None
                case Release():
                    assert one.job in self.held, "9: a hold ended that never began"
                    del self.held[one.job]
                case _:
                    pass
        assert list(self.held) == [job for job in self.held if job in state.holes], "9: a hold ended without a word"
        assert len(self.held) == len(state.holes)

    def _started(self, one: Start) -> None:
        state, job = self.state, self.jobs[one.job]
        for share in one.shares:
            life = state.lives[share.node]
            assert usable(life), f"8: {job.id} was started on {share.node}, which is {life.state}"
            assert share.mask & bad_gpus(life) == 0, f"8: {job.id} was started on a bad GPU of {share.node}"
        for need in job.after:
            if need.relation == "afterok":
                assert self.outcomes[need.name] == "completed", "13: a child started before its parent passed"
            elif need.relation == "afterany":
                assert need.name in self.outcomes, "13: a child started before its parent ended"
            elif need.relation == "singleton":
                others = [self.jobs[other] for other in self.high if self.jobs[other].name == job.name]
                others = [other for other in others if other.user == job.user and other.id != job.id]
                assert not others, f"13: singleton {job.id} was started beside {others[0].id}"
        self.held.pop(one.job, None)
        run = state.running.get(one.job)
        if run is None:
            return
        self.high[one.job] = (run.gpus, run.level == "high")
        self.sent[one.job] = run.entry.submitted
        if run.level == "high" and run.gpus:
            held = sum(gpus for gpus, _ in self.high.values())
            top = sum(gpus for gpus, high in self.high.values() if high)
            assert top <= self.settings.high_share * held + 1e-9, f"7: high jobs hold {top} of {held}"
        rule = self.settings.tiers[job.tier]
        if rule.session is not None:
            assert run.end <= run.started + rule.session

    def _preempted(self, one: Preempt) -> None:
        """6: downward, resumable, after the least run."""
        victim, mine = self.state.running[one.job], self.jobs[one.preemptor]
        ranks = [rank(mine, self.settings, level) for level in (mine.level, "normal")]
        assert victim.rank > min(ranks), "6: preempted upward"
        assert victim.job.may_be_preempted, "6: preempted one that does not resume"
        assert self.state.now - victim.started >= self.settings.preemption.least_run, "6: preempted too early"

    # -- to the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """15: nobody comes any more and all nodes get well: whoever fits the nodes there are has run."""
        self.now = max(self.now, self.state.now) + 1
        heal: list[AnyEvent] = [
            DrainLifted(at=self.now, id=id, node=node, by="ann") for id, node in self.drains.items()
        ]
        for name, joined in self.state.joined.items():
            for bar in self.state.lives[name].bars:
                heal.append(DrainLifted(at=self.now, id=bar.id, node=name, by="ann"))
            heal.append(HeartbeatBack(at=self.now + 1, node=name))
            heal.append(Diagnosed(at=self.now + 1, node=name, passed=True))
            heal.append(Cleaned(at=self.now + 1, node=name, gpus=tuple(range(joined.gpus))))
        heal += [ConditionMet(at=self.now, name=word) for word in self.words]
        self.now += 1
        self.go(heal, self.now, heal[::-1])
        for _ in range(400):
            if self.over():
                return
            ends = [run.end for run in self.state.running.values()]
            self.now = max(self.now + 1, min([*(end for end in ends if end < 1 << 50), self.now + 600]))
            if self.wake is not None and self.wake < self.now:
                self.now = self.wake
            # Nobody runs for long now: a walltime that nobody said is the limit of its queue, which is days.
            late = [job for job, run in self.state.running.items() if min(run.end, run.started + 600) <= self.now]
            late += [job for job, run in self.state.running.items() if run.signalled is not None and job not in late]
            events: list[AnyEvent] = [Ended(at=self.now, job=job, proof=True) for job in late]
            self.go(events, self.now, events[::-1])
        state = self.state
        left = [(state.queue.entries[job].job, state.rules) for job in state.queue.entries]
        held = [(job, state.dependencies.blocked(job)) for job in state.waiting]
        lives = [(life.node, life.state, life.bad) for life in state.lives.values()]
        raise AssertionError(f"15: queued {left}, waiting {held}, running {list(state.running)} at {lives}")

    def over(self) -> bool:
        """All are done but those that no nodes hold any more, and who waits for them."""
        state = self.state
        if state.running:
            return False
        capacity = state.admission.capacity
        stuck = {job for job, entry in state.queue.entries.items() if capacity.fitting(entry.job) is None}
        while True:
            more = {
                job
                for job, entry in state.waiting.items()
                if any(parent in stuck for parent in state.dependencies.parents(job))
                or any(entry.job.name and self.jobs[other].name == entry.job.name for other in stuck if other != job)
            }
            if more <= stuck:
                break
            stuck |= more
        return stuck >= {*state.queue.entries, *state.waiting}
