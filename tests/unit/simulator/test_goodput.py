"""Where GPU time went, counted by hand."""

import pytest

from gpuguard.simulator.course import Course, JobRecord, Outage
from gpuguard.simulator.goodput import WAYS, goodput
from tests.support.courses import share


def course() -> Course:
    """4 + 4 GPUs for 100 s: 800 GPU-seconds.

    train holds 4 for 60 s at 0.75 of its speed (far), is preempted with 30 of its 45 s kept, and runs 20 s more.
    notebook holds 2 for 50 s and uses a tenth. lost holds 2 for 40 s on a node that is dead for the last 10, and
    keeps none of 30. The dead node's 4 GPUs are out from 40 on, and lost holds 2 of them for 10 s of that.
    """
    found = Course(policy="a", nodes=(("n1", 4), ("n2", 4)), start=0, end=100)
    train = JobRecord(id="train", gpus=4, submit=0)
    train.ran(0, 60, share("n1", 0xF), "preempted", 30.0, (("far", 15.0),))
    train.ran(80, 100, share("n1", 0xF))
    notebook = JobRecord(id="notebook", gpus=2, submit=0, use=0.1)
    notebook.ran(0, 50, share("n2", 0b11))
    lost = JobRecord(id="lost", gpus=2, submit=0)
    lost.ran(10, 50, share("n2", 0b1100), "lost", 0.0, (("failure", 10.0),))
    found.jobs.extend((train, notebook, lost))
    found.outages.append(Outage(40, 100, "n2", 0xF))
    return found


def test_the_split_by_hand() -> None:
    found = goodput(course())
    assert found.capacity == 800
    # train 4 x 30 + 4 x 20, notebook 2 x 50 x 0.1
    assert found.used == pytest.approx(210)
    assert found.lost == pytest.approx({
        "failure": 2 * 30 + 2 * 10, "preemption": 4 * 15, "idling": 2 * 50 * 0.9, "far": 4 * 15, "sharing": 0,
        "saving": 0, "data": 0,
    })  # fmt: skip
    # Out: 4 x 60, less 2 x 10 of lost and 2 x 10 of the notebook that were still held.
    assert found.out == pytest.approx(200)
    assert found.free == pytest.approx(800 - 210 - 80 - 60 - 90 - 60 - 200)
    assert found.allocated_share == pytest.approx((4 * 80 + 2 * 50 + 2 * 40) / 800)


def test_effective_power_by_hand() -> None:
    found = goodput(course())
    # Running: 4 x 80 + 2 x 50 x 0.1 + 2 x 30 = 390 of 800; worked: 60 less of far; kept: 60 + 60 less.
    assert (found.time, found.parallel, found.useful) == pytest.approx((390 / 800, 330 / 390, 210 / 330))
    assert found.effective == pytest.approx(8 * 210 / 800)
    assert found.used_share == found.time


def test_a_window_cuts_segments_evenly() -> None:
    found = goodput(course(), 0, 30)
    assert found.lost["far"] == pytest.approx(4 * 7.5)
    assert found.lost["preemption"] == pytest.approx(4 * 7.5)
    assert found.used == pytest.approx(4 * 15 + 2 * 30 * 0.1)


def test_two_jobs_on_a_card_do_70_percent_of_one() -> None:
    found = Course(policy="manual", nodes=(("n", 1),), start=0, end=100)
    for id in "ab":
        job = JobRecord(id=id, gpus=1, submit=0)
        job.ran(0, 100, share("n", 1, 500), "ended", None, (("sharing", 30.0),))
        found.jobs.append(job)
    split = goodput(found)
    assert (split.used_share, split.parallel, split.effective) == pytest.approx((1.0, 0.7, 0.7))
    assert split.lost["sharing"] == pytest.approx(30)


def test_nothing_ran() -> None:
    split = goodput(Course(policy="a", nodes=(), start=0, end=0))
    assert (split.capacity, split.used, split.free, split.effective) == (0, 0, 0, 0)
    assert tuple(split.lost) == WAYS
    assert split.figures()["used"] == 0
