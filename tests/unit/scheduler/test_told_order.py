"""What is told in one pass has one meaning, whatever order it was told in."""

from itertools import permutations

from gpuguard.scheduler.cycle import cycle
from gpuguard.scheduler.events import AnyEvent, Checkpointed, NodeJoined, NodeLost, Submitted
from gpuguard.scheduler.plan import Requeue, Start
from gpuguard.scheduler.request import Job
from gpuguard.scheduler.state import State


def test_what_was_saved_counts_though_the_node_is_lost_in_the_same_pass() -> None:
    told: list[AnyEvent] = [Checkpointed(at=90, job="a"), NodeLost(at=100, node="n")]
    for events in permutations(told):
        state, _ = cycle(State(), [NodeJoined(at=0, node="n", gpus=8)], 0)
        job = Job(id="a", gpus=8, walltime=3600, checkpoints=True)
        state, plan = cycle(state, [Submitted(at=0, job=job)], 0)
        assert isinstance(plan.decisions[0], Start)
        state, plan = cycle(state, events, 100)
        (again,) = [decision for decision in plan.decisions if isinstance(decision, Requeue)]
        assert again.resume
        assert state.records["a"].lost_failure == 8 * 10 * 1000
