"""Faults by hand on a small cluster, and their process by counting."""

from collections import Counter

import pytest

from gpuguard.scheduler.settings import DAY
from gpuguard.simulator.engine import Engine, Model, World
from gpuguard.simulator.models.faults import Fault, Faults, Kind, Settings
from gpuguard.simulator.policies import policies
from gpuguard.simulator.trace import TraceJob
from tests.support.worlds import nodes, ran, record, traced

QUIET = Settings(rate=0.0, common=0.0, crash=1e9)


class Struck(Faults):
    """One fault, at 1,000 and until 9,000, on the node of the job."""

    def __init__(self, kind: Kind, settings: Settings = QUIET, gpu: int = 0, until: int = 9000) -> None:
        super().__init__(settings, 1)
        self._planned = (kind, gpu, until)

    def begin(self, world: World, start: int, end: int) -> None:
        world.call(1000, lambda now: self._break(world, now))

    def _break(self, world: World, now: int) -> None:
        kind, gpu, until = self._planned
        fault = Fault(id="f", node="r0n0", kind=kind, gpu=gpu, at=now, until=until)
        (self._die if kind == "node" else self._spoil)(world, fault, now)


def run(model: Model, *jobs: TraceJob, saves: int = 600) -> Engine:
    engine = Engine(nodes(2), jobs, policies()["gpuguard"], models=[model], saves=saves)
    for _ in engine.run():
        pass
    return engine


def test_a_node_dies() -> None:
    """Silent at 1,060, proven dead at 1,180: what was saved by 600 goes on on the other node. It is back at 9,000."""
    engine = run(Struck("node"), traced("job", 8, 3000, checkpoints=True), traced("late", 16, 100, at=5000))
    first, second = record(engine, "job").segments
    assert (first.end, first.how, first.kept) == (1180, "lost", 600.0)
    assert first.slow == (("failure", 180.0),)
    assert (second.start, second.end) == (1180, 1180 + 2400)
    # Joined at 9,000, and looked into for 300 s.
    assert record(engine, "late").first_start == 9300
    # To be looked into from a minute of silence on.
    assert [(outage.start, outage.end, outage.mask) for outage in engine.course.outages] == [(1120, 9300, 0xFF)]


def test_a_bad_gpu_is_drained_alone_and_its_job_saves() -> None:
    engine = run(Struck("gpu"), traced("job", 8, 3000, checkpoints=True), traced("small", 7, 100, at=2000))
    first, second = record(engine, "job").segments
    # Drained at 1,060, told to leave, gone 10 s later with all of its work.
    assert (first.end, first.how, first.kept, second.end) == (1070, "lost", 1070.0, 1070 + 1930)
    small = record(engine, "small")
    assert (small.first_start, small.segments[0].shares[0].mask) == (2000, 0xFE)
    assert [(outage.start, outage.end, outage.mask) for outage in engine.course.outages] == [(1060, engine.now, 1)]


def test_jobs_on_a_bad_gpu_crash_until_it_is_drained() -> None:
    model = Struck("gpu", Settings(rate=0.0, common=0.0, crash=20.0, detect=600))
    engine = run(model, traced("job", 8, 3000, checkpoints=True, requeues=1000), saves=1)
    job = record(engine, "job")
    assert job.outcome == "completed"
    ends = [segment.how for segment in job.segments]
    # It starts on the same node again and again, as nobody knows, and then on the other or around the GPU.
    assert ends.count("failed") == len(model.crashes) > 5
    assert all(1000 < at <= 1610 for _, _, at in model.crashes)
    assert len({at for _, _, at in model.crashes}) == len(model.crashes)


def test_a_bad_link_ends_jobs_over_nodes_alone() -> None:
    settings = Settings(rate=0.0, common=0.0, crash=10.0)
    wide = run(Struck("link", settings), traced("job", 16, 3000, checkpoints=True), saves=1)
    assert record(wide, "job").segments[0].how == "failed"
    narrow = run(Struck("link", settings), traced("job", 8, 3000))
    assert [segment.how for segment in record(narrow, "job").segments] == ["ended"]


@pytest.mark.parametrize("until", [1020, 1500])
def test_a_node_that_is_back_soon_has_lost_its_jobs_all_the_same(until: int) -> None:
    engine = run(Struck("node", until=until), traced("job", 16, 3000, checkpoints=True))
    job = record(engine, "job")
    assert job.outcome == "completed"
    assert [segment.how for segment in job.segments] == ["lost", "ended"]
    assert job.segments[0].kept == 600.0


def test_the_same_faults_whatever_the_scheduler_does() -> None:
    jobs = [traced(f"j{at}", 4, 5 * DAY, at=at * DAY, checkpoints=True) for at in range(12)]
    seen = []
    for policy in ("gpuguard", "easy-spread"):
        model = Faults(Settings(rate=400.0), 7)
        ran(jobs, [model], nodes(2), policies()[policy])
        seen.append([fault for fault in model.happened if fault.at < 12 * DAY])
    assert seen[0] == seen[1] != []


def test_how_often_and_of_what_kind() -> None:
    """200 nodes for 200 days: 40,000 node-days at 4 in 1,000 are 160, fewer as nothing came before the first."""
    model = Faults(Settings(common=0.0), 3)
    ran([traced("long", 0, 200 * DAY, tier="batch")], [model], nodes(200))
    happened = [fault for fault in model.happened if fault.at < 200 * DAY]
    assert 125 <= len(happened) <= 190
    kinds = Counter(fault.kind for fault in happened)
    assert kinds["gpu"] > 3 * kinds["node"] > 0 < kinds["link"]
    by_node = Counter(fault.node for fault in happened)
    assert max(by_node.values()) >= 4  # what chance alone gives one node in a thousand


def test_a_common_day_hits_many_by_one_kind() -> None:
    model = Faults(Settings(rate=0.0, common=35.0), 3)
    ran([traced("long", 0, 100 * DAY, tier="batch")], [model], nodes(100))
    days: dict[Kind, list[int]] = {}
    first = min(fault.at for fault in model.happened)
    same = [fault for fault in model.happened if fault.at < first + DAY]
    for fault in same:
        days.setdefault(fault.kind, []).append(fault.at)
    assert len(same) >= 2
    assert len({fault.node for fault in same}) == len(same)
