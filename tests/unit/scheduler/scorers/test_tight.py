"""Best fit: least left over, of GPUs and cores alike."""

import numpy as np

from gpuguard.scheduler.scorers import tight
from gpuguard.scheduler.scorers.tight import SHARE
from gpuguard.scheduler.scoring import Want
from tests.support.vacancies import vacancy


def test_free_gpus_and_free_cores_count_alike() -> None:
    free = vacancy([[1000] * 4, [1000] * 2 + [0] * 2, []], cpus=[32000, 64000, 16000], cores=[64000, 64000, 64000])
    term = tight.build(free)
    assert term.score(Want(gpus=1), np.array([0, 1, 2])).tolist() == [SHARE * 3 // 2, SHARE * 3 // 2, SHARE // 4]


def test_cores_that_do_not_constrain_do_not_count() -> None:
    term = tight.build(vacancy([[1000, 1000], [1000, 500]]))
    low, high = sorted(term.score(Want(gpus=1), np.array([0, 1])).tolist())
    assert high - low == SHARE // 4


def test_a_share_goes_to_the_fullest_card() -> None:
    term = tight.build(vacancy([[1000, 400, 300, 300]]))
    assert term.card(Want(milli=300), 0, 0b1111) == 2
    assert term.card(Want(milli=350), 0, 0b1111) == 1
    assert term.card(Want(gpus=1), 0, 0b1111) is None


def test_nothing_is_kept() -> None:
    free = vacancy([[1000], [1000]])
    term = tight.build(free)
    term.observe(Want(gpus=1))
    free.milli[1] = 0
    term.changed(1)
    assert term.score(Want(), np.array([0, 1])).argmin() == 1
