"""The emptiest node, and on it the emptiest card."""

import numpy as np

from gpuguard.scheduler.scorers import spread
from gpuguard.scheduler.scoring import Want, best
from tests.support.vacancies import vacancy


def test_most_free_gpu_goes_first_then_most_free_cores() -> None:
    free = vacancy([[1000, 400], [1000, 500], [500, 1000]], cpus=[99000, 1000, 2000])
    assert best(Want(gpus=1), np.arange(3), [spread.build(free)]) == 2


def test_a_share_goes_to_the_emptiest_card_the_first_of_equals() -> None:
    term = spread.build(vacancy([[300, 1000, 1000]]))
    assert term.card(Want(milli=100), 0, 0b111) == 1
    assert term.card(Want(milli=100), 0, 0b101) == 2
    assert term.card(Want(milli=400), 0, 0b001) is None
    assert term.card(Want(cpus=1), 0, 0b111) is None


def test_nothing_is_kept() -> None:
    free = vacancy([[1000], [1000]])
    term = spread.build(free)
    term.observe(Want(gpus=1))
    free.milli[0] = 0
    term.changed(0)
    assert term.score(Want(), np.array([0, 1])).argmin() == 1
