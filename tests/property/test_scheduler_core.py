"""The sixteen invariants of the scheduler's core, under any stream of events.

Numbers are those of the docstrings: 1 no GPU twice, 2 the parts are all, 3 gangs, 4 the head's start, 5 who ranks
lower delays nobody, 6 preemption, 7 the share of high, 8 only nodes that are up, 9 holds end, 10 same bytes, 11 what a
requeue keeps, 12 failures, 13 dependencies, 14 decay (test_fairshare), 15 everybody runs, 16 the plan is never above
truth. 1, 2, 3 and 16 are in `check`, which follows each pass; the others are in the world's judgement.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gpuguard.scheduler.events import (
    AnyEvent,
    Cancelled,
    Checkpointed,
    Cleaned,
    ConditionMet,
    Diagnosed,
    DrainAsked,
    DrainLifted,
    Ended,
    ExtensionAsked,
    HeartbeatBack,
    HeartbeatLost,
    Hung,
    NodeLeft,
    NodeLost,
    OrphanFound,
    Prepared,
    Progressed,
    Submitted,
)
from gpuguard.scheduler.request import Dependency, Job, Relation, Wish
from tests.support.scheduler_world import NODES, World, node_of

nodes = st.integers(0, NODES - 1)
cards = st.lists(st.integers(0, 7), max_size=2, unique=True).map(tuple)
words = st.sampled_from(["data", "model"])

TIERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("training", {"walltime": 300, "checkpoints": True, "extends": True}),
    ("training", {"walltime": 900}),
    ("training", {"walltime": 60, "level": "high"}),
    ("batch", {"walltime": 500, "checkpoints": True}),
    ("batch", {"walltime": 100, "queue": "trial"}),
    ("batch", {"checkpoints": True, "level": "low"}),
    ("interactive", {"walltime": 9000, "gpu_milli": 300, "gpus": 1}),
    ("interactive", {"gpu_milli": 500, "gpus": 1, "gpu_memory": 10000}),
    ("background", {"gpus": 0, "walltime": 200, "cpus": 2.0}),
    ("background", {"gpus": 0, "prepares": True}),
)


@st.composite
def jobs(draw: st.DrawFn, id: str, known: list[str]) -> Job:
    tier, fields = draw(st.sampled_from(TIERS))
    asked: dict[str, object] = {"gpus": draw(st.sampled_from([1, 2, 2, 4, 8, 8, 10, 16])), **fields}
    asked["user"] = draw(st.sampled_from(["ann", "bob"]))
    more = draw(st.sets(st.sampled_from(["nodes", "elastic", "alone", "wish", "after", "name", "bandwidth", "proof",
                                         "type", "level"]), max_size=2))  # fmt: skip
    if "nodes" in more and asked["gpus"] in {2, 4, 8}:
        asked["nodes"] = 2
    if "elastic" in more and asked["gpus"]:
        asked["least_gpus"] = 1
    if "alone" in more:
        asked["exclusive"] = True
    if "wish" in more:
        asked["wish"] = Wish(
            within=draw(st.sampled_from(["rack", "pod"])),
            required=draw(st.booleans()),
            wait=draw(st.sampled_from([None, 30])),
        )
    if "bandwidth" in more:
        asked["memory_bandwidth"] = 300.0
    if "proof" in more:
        asked["proof"] = True
    if "type" in more and asked["gpus"]:
        asked["gpu_types"] = ("A10",)
    if "level" in more:
        asked["level"] = draw(st.sampled_from(["high", "low"]))
    needs: list[Dependency] = []
    if "after" in more:
        if known:
            relation: Relation = draw(st.sampled_from(["afterok", "afterany"]))
            needs.append(Dependency(relation=relation, name=draw(st.sampled_from(known))))
        else:
            needs.append(Dependency(relation="condition", name=draw(words)))
    if "name" in more:
        asked["name"] = "one"
        if draw(st.booleans()):
            needs.append(Dependency(relation="singleton", name=""))
    return Job(id=id, tier=tier, after=tuple(needs), **asked)  # type: ignore[arg-type]


class Core(RuleBasedStateMachine):
    """1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16 over nodes of five kinds and jobs of all tiers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.pending: list[AnyEvent] = []

    @initialize(data=st.data(), many=st.integers(4, 12))
    def begin(self, data: st.DataObject, many: int) -> None:
        events: list[AnyEvent] = [node_of(number) for number in range(NODES)]
        self.world.go(events, 0, events[::-1])
        self.submit(data, many)
        self.cycle(0, data, False)

    # -- what happens

    def _running(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.world.state.running, "nobody"]))

    def _at(self, data: st.DataObject) -> int:
        return self.world.now - data.draw(st.sampled_from([0, 0, 0, 0, 5, 1000]))

    @rule(data=st.data(), many=st.integers(1, 5))
    def submit(self, data: st.DataObject, many: int) -> None:
        world = self.world
        for _ in range(many):
            id = f"j{len(world.jobs):02}"
            job = data.draw(jobs(id, [name for name in world.jobs if name not in world.outcomes][-3:]))
            world.jobs[id] = job
            for need in job.after:
                if need.relation == "condition":
                    world.words[need.name] = None
            self.pending.append(Submitted(at=world.now, job=job))

    @rule(
        data=st.data(),
        code=st.sampled_from([0, 0, 0, 1]),
        signal=st.sampled_from([0, 0, 9]),
        proof=st.sampled_from([None, True]),
    )
    def end(self, data: st.DataObject, code: int, signal: int, proof: bool | None) -> None:
        job = self._running(data)
        proof = proof if not code and not signal else None
        self.pending.append(Ended(at=self._at(data), job=job, code=code, signal=signal, proof=proof))

    @rule(data=st.data(), seconds=st.sampled_from([50, 1000]))
    def runs(self, data: st.DataObject, seconds: int) -> None:
        job, at = self._running(data), self._at(data)
        what = data.draw(st.sampled_from(["saved", "extend", "hung", "progress", "cancel", "prepared"]))
        if what == "saved":
            self.pending.append(Checkpointed(at=at, job=job))
        elif what == "extend":
            self.pending += [Checkpointed(at=at, job=job), ExtensionAsked(at=at, job=job, seconds=seconds)]
        elif what == "hung":
            self.pending.append(Hung(at=at, job=job))
        elif what == "progress":
            self.pending.append(Progressed(at=at, job=job))
        elif what == "prepared":
            self.pending.append(Prepared(at=at, job=job))
        else:
            self.pending.append(Cancelled(at=at, job=job))

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.pending.append(Cancelled(at=self._at(data), job=data.draw(st.sampled_from(sorted(self.world.jobs)))))

    @rule(word=words, met=st.booleans())
    def condition(self, word: str, met: bool) -> None:
        self.pending.append(ConditionMet(at=self.world.now, name=word, met=met))

    @rule(data=st.data(), number=nodes, gpus=cards)
    def node(self, data: st.DataObject, number: int, gpus: tuple[int, ...]) -> None:
        world, name = self.world, f"n{number}"
        at = self._at(data)
        what = data.draw(st.sampled_from(["drain", "drain", "end", "lift", "silent", "back", "lost", "passed", "failed",
                                          "orphan", "clean", "join", "join", "left", "other"]))  # fmt: skip
        if what in {"drain", "end"}:
            id = f"d{len(world.drains)}"
            world.drains[id] = name
            fields: dict[str, object] = {
                "severity": data.draw(st.sampled_from(["suspect", "confirmed"])),
                "expires": data.draw(st.sampled_from([None, at + 100])),
                "running": "end" if what == "end" else "keep",
            }
            self.pending.append(DrainAsked(at=at, id=id, node=name, gpus=gpus, seen=at, **fields))  # type: ignore[arg-type]
        elif what == "lift" and world.drains:
            id = data.draw(st.sampled_from(sorted(world.drains)))
            self.pending.append(DrainLifted(at=at, id=id, node=world.drains[id], by="ann"))
        elif what == "silent":
            self.pending.append(HeartbeatLost(at=at, node=name))
        elif what == "back":
            self.pending.append(HeartbeatBack(at=at, node=name))
        elif what == "lost":
            self.pending.append(NodeLost(at=at, node=name))
        elif what in {"passed", "failed"}:
            self.pending.append(Diagnosed(at=at, node=name, passed=what == "passed"))
        elif what == "orphan":
            self.pending.append(OrphanFound(at=at, node=name, gpus=gpus))
        elif what == "clean":
            self.pending.append(Cleaned(at=at, node=name, gpus=gpus))
        elif what == "join":
            self.pending.append(node_of(number, at))
        elif what == "left":
            self.pending.append(NodeLeft(at=at, node=name))
        elif what == "other":
            self.pending.append(node_of(number, at, gpus=data.draw(st.sampled_from([4, 8])), placement=None))

    # -- time

    @rule(passed=st.sampled_from([0, 1, 7, 31, 31, 40, 61, 120, 4100]), data=st.data(), back=st.booleans())
    def cycle(self, passed: int, data: st.DataObject, back: bool) -> None:
        world = self.world
        world.now += passed
        again = data.draw(st.lists(st.sampled_from(self.pending), max_size=2)) if self.pending else []
        again = [event for event in again if not isinstance(event, Submitted)]
        events = self.pending + again
        self.pending = list(again[:1])
        clock = world.now - 50 if back and passed == 1 else world.now
        world.go(events, clock, data.draw(st.permutations(events)))

    @precondition(lambda self: self.world.wake is not None)
    @rule()
    def woken(self) -> None:
        assert self.world.wake is not None
        self.world.now = max(self.world.now, self.world.wake)
        events, self.pending = self.pending, []
        self.world.go(events, self.world.now, events[::-1])

    def teardown(self) -> None:
        if not self.world.state.joined:
            return
        events, self.pending = self.pending, []
        self.world.go(events, self.world.now, events[::-1])
        self.world.finish()


Core.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCore = Core.TestCase
