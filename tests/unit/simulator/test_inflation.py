"""More jobs than there is room for, one after the other: counted by hand."""

from itertools import count

import msgspec

from gpuguard.scheduler.events import NodeJoined
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import Settings
from gpuguard.simulator.inflation import Inflation
from gpuguard.simulator.policies import policies

NODES = [NodeJoined(at=0, node=name, gpus=8) for name in ("a", "b")]


def ran(jobs: list[Job], nodes: list[NodeJoined] = NODES, settings: Settings | None = None) -> Inflation:
    run = Inflation(nodes, jobs, settings or policies()["gpuguard"])
    steps = list(run.run())
    assert steps[-1] == (len(jobs), len(jobs))
    return run


def test_what_does_not_fit_at_once_is_passed_over_and_what_comes_later_is_not() -> None:
    run = ran([Job(id="x", gpus=8), Job(id="y", gpus=6), Job(id="wide", gpus=8), Job(id="z", gpus=2)])
    assert (run.placed, run.passed_over, run.used) == (3, 1, 16_000)
    assert run.unallocated_share == 0.0


def test_what_is_left_over_is_told() -> None:
    run = ran([Job(id=str(at), gpus=5) for at in range(4)])
    assert (run.placed, run.passed_over, run.asked) == (2, 2, 20_000)
    assert run.unallocated_share == 6 / 16


def test_a_share_of_a_gpu_counts_as_such() -> None:
    run = ran([Job(id=str(at), gpus=1, gpu_milli=300, tier="batch") for at in range(4)], NODES[:1])
    assert (run.placed, run.used) == (4, 1_200)


def test_a_job_that_no_such_cluster_could_hold_is_refused_and_holds_nobody_up() -> None:
    run = ran([Job(id="x", gpus=100), Job(id="y", gpus=8)])
    assert [decision.job for decision in run.refused] == ["x"]
    assert (run.placed, run.passed_over) == (1, 0)


def test_work_for_cpus_takes_part() -> None:
    nodes = [NodeJoined(at=0, node="c", gpus=0, cpus=4.0)]
    run = ran([Job(id=str(at), gpus=0, cpus=3.0, tier="batch") for at in range(2)], nodes)
    assert (run.placed, run.passed_over, run.unallocated_share) == (1, 1, None)


def test_nobody_leaves_for_another() -> None:
    """Also where the policy would preempt: nothing ends."""
    low = [Job(id=str(at), gpus=8, checkpoints=True, level="low", tier="batch") for at in range(2)]
    run = ran([*low, Job(id="high", gpus=8, level="high")])
    assert (run.placed, run.passed_over) == (2, 1)


def test_a_session_of_an_hour_does_not_end_either() -> None:
    run = ran([Job(id="s", gpus=8, tier="interactive"), Job(id="t", gpus=8)], NODES[:1])
    assert (run.placed, run.passed_over) == (1, 1)


def test_strict_order_is_held_up_by_nobody() -> None:
    run = ran([Job(id="x", gpus=5), Job(id="y", gpus=8), Job(id="z", gpus=3)], NODES[:1], policies()["fifo-pack"])
    assert (run.placed, run.passed_over) == (2, 1)


def test_those_who_were_passed_over_cost_nothing_later() -> None:
    jobs = [Job(id="full", gpus=8), *(Job(id=str(at), gpus=1 + at % 8) for at in range(200))]
    run = ran(jobs, NODES[:1])
    state = run._state
    assert (len(state.queue), len(state.running), len(state.records), state.reserved) == (1, 1, 2, [])


def test_each_pass_is_timed() -> None:
    ticks = count()
    run = Inflation(NODES, [Job(id="x")], Settings(), stopwatch=lambda: float(next(ticks)))
    list(run.run())
    assert run.cycles == [1000.0, 1000.0]


def test_the_trace_s_own_walltime_and_parents_have_no_part_in_it() -> None:
    job = Job(id="x", walltime=1, after=(Dependency(relation="afterok", name="nobody"),))
    assert ran([job, msgspec.structs.replace(job, id="y")]).placed == 2
