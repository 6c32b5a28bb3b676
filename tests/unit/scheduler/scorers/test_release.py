"""Those who leave together leave a whole node."""

import numpy as np

from gpuguard.scheduler.scorers.release import MOST, build
from gpuguard.scheduler.scoring import Want
from tests.support.vacancies import vacancy

TWO = vacancy([[1000, 0], [1000, 0], [1000, 1000]], last=[100, 500, 0])
ALL = np.array([0, 1, 2])


def test_the_node_whose_last_end_moves_least_is_best() -> None:
    assert build(TWO).score(Want(gpus=1), ALL, until=300).tolist() == [200, 0, 300]


def test_nobody_knows_when_a_job_without_a_walltime_ends() -> None:
    assert build(TWO).score(Want(gpus=1), ALL).tolist() == [0, 0, 0]


def test_work_for_cpus_keeps_no_gpu_from_being_whole() -> None:
    assert build(TWO).score(Want(cpus=1000), ALL, until=300).tolist() == [0, 0, 0]


def test_beyond_all_measure_later_is_no_worse() -> None:
    assert build(TWO).score(Want(gpus=1), ALL, until=1 << 60).tolist() == [MOST] * 3


def test_it_has_no_opinion_on_cards() -> None:
    assert build(TWO).card(Want(milli=500), 2, 3) is None
