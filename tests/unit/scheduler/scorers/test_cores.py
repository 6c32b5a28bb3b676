"""Work for CPUs goes where no GPU waits for the cores."""

import numpy as np

from gpuguard.scheduler.scorers import cores
from gpuguard.scheduler.scoring import Want
from tests.support.vacancies import vacancy

NODES = np.arange(3)


def test_work_for_cpus_counts_the_free_gpu_beside_it() -> None:
    free = vacancy([[1000, 500], [0, 0], []])
    term = cores.build(free)
    assert term.score(Want(cpus=1000), NODES).tolist() == [1500, 0, 0]
    free.milli[1, 0] = 1000
    term.changed(1)
    assert term.score(Want(cpus=1000), NODES).tolist() == [1500, 1000, 0]


def test_other_work_does_not_care() -> None:
    term = cores.build(vacancy([[1000, 500], [0, 0], []]))
    term.observe(Want(gpus=1))
    assert term.score(Want(gpus=1), NODES).tolist() == [0, 0, 0]
    assert term.score(Want(milli=1), NODES).tolist() == [0, 0, 0]
    assert term.card(Want(milli=1), 0, 1) is None
