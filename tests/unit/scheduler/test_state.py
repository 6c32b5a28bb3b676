"""What is kept is what follows; and whatever is changed behind the core's back is found."""

from collections.abc import Callable

import pytest

from gpuguard.scheduler.check import check
from gpuguard.scheduler.cluster import NOTHING, Place
from gpuguard.scheduler.events import Ended, NodeJoined, Submitted
from gpuguard.scheduler.request import Dependency, Job
from gpuguard.scheduler.settings import Preemption, Settings
from gpuguard.scheduler.state import State
from tests.support.scheduler_world import told


def busy() -> State:
    """Jobs that run, share, wait, are queued, and make room."""
    state = State(Settings(preemption=Preemption(least_run=0)))
    word = (Dependency(relation="condition", name="w"),)
    jobs = [
        Job(id="run", gpus=4, walltime=1000), Job(id="low", gpus=4, walltime=900, tier="batch", checkpoints=True),
        Job(id="part", tier="interactive", gpu_milli=300, walltime=60), Job(id="wait", after=word, walltime=60),
        Job(id="two", gpus=2, gpu_types=("T",), walltime=700),
    ]  # fmt: skip
    nodes = [
        NodeJoined(at=0, node="a", gpus=8, cpus=64.0, watts=800.0, pool="training"),
        NodeJoined(at=0, node="c", gpus=2, gpu_type="T", pool="training"),
        NodeJoined(at=0, node="b", gpus=1, gpu_memory=9, pool="interactive"),
    ]
    told(state, *nodes, *(Submitted(at=0, job=job) for job in jobs), now=0)
    told(state, Submitted(at=5, job=Job(id="top", gpus=4, walltime=500)), now=5)
    told(state, Submitted(at=6, job=Job(id="next", gpus=2, gpu_types=("T",), walltime=500)), now=6)
    assert list(state.holes) == ["top"]
    assert "next" in state.queue
    assert "wait" in state.waiting
    return state


def test_a_busy_state_is_what_it_says() -> None:
    assert check(busy()) == ()


def _count(state: State) -> None:
    state.cluster.count[0] += 1


def _spare(state: State) -> None:
    state.cluster.spare[0, 0] -= 1


def _row(state: State) -> None:
    state.cluster.ends[0, 1] += 1


def _penalty(state: State) -> None:
    state.cluster.penalty[0, 2] += 1


def _twice(state: State) -> None:
    state.running["low"].places = state.running["run"].places


def _lost(state: State) -> None:
    del state.running["part"]


def _two(state: State) -> None:
    state.queue.entries["wait"] = state.waiting["wait"]


def _record(state: State) -> None:
    del state.records["run"]


def _high(state: State) -> None:
    state.high += 1000


def _yields(state: State) -> None:
    state.yielding[3] = 7


def _queue(state: State) -> None:
    state.by_queue["training"] -= 1000


def _watts(state: State) -> None:
    state.watts["training"] += 1


def _end(state: State) -> None:
    state.running["run"].end += 5


def _hold(state: State) -> None:
    state.cluster.held[0] ^= 0b10000


def _booking(state: State) -> None:
    state.bookings.start[:] = 3


def _early(state: State) -> None:
    key, job, booking = state.reserved[0]
    state.reserved[0] = (key, job, booking._replace(start=7, end=507))


def _line(state: State) -> None:
    state.queue.entries["next"].key = (9, 0.0, 0, "next")


def _usable(state: State) -> None:
    state.cluster.usable[0] = False


def _partial(state: State) -> None:
    place = state.running["low"].places[0]
    state.running["low"].places = (Place(place.node, place.mask & -place.mask, 1000, NOTHING),)


SABOTAGE: list[Callable[[State], None]] = [
    _count, _spare, _row, _penalty, _twice, _lost, _two, _record, _high, _yields, _queue, _watts, _end, _hold,
    _booking, _early, _line, _usable, _partial,
]  # fmt: skip


@pytest.mark.parametrize("harm", SABOTAGE, ids=lambda harm: harm.__name__)
def test_each_difference_is_found(harm: Callable[[State], None]) -> None:
    state = busy()
    harm(state)
    assert check(state) != ()


def test_what_was_charged_is_given_back() -> None:
    state = busy()
    jobs = [Ended(at=10, job=job, proof=True) for job in ("run", "low", "part")]
    told(state, *jobs, now=10)
    told(state, *(Ended(at=20, job=job) for job in list(state.running)), now=20)
    told(state, *(Ended(at=30, job=job) for job in list(state.running)), now=30)
    assert not state.running
    assert state.allocated == 0
    assert not any(state.by_queue.values())
    assert not any(state.yielding.values())
    assert all(abs(watts) < 1e-6 for watts in state.watts.values())


def test_a_node_that_comes_back_with_less_owes_nobody_more() -> None:
    """The kernel of the next boot keeps more memory for itself, and a job still holds what was there."""
    state = State()
    told(state, NodeJoined(at=0, node="a", gpus=8, memory=1000.0), now=0)
    told(state, Submitted(at=0, job=Job(id="all", gpus=4, memory=1000, walltime=600)), now=0)
    told(state, NodeJoined(at=5, node="a", gpus=8, memory=990.0), now=5)
    assert check(state) == ()
    told(state, Submitted(at=6, job=Job(id="more", gpus=1, memory=1, walltime=60)), now=6)
    assert "more" not in state.running
    told(state, Ended(at=7, job="all"), now=7)
    assert "more" in state.running
    assert check(state) == ()
