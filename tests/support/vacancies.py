"""Small clusters for scorers: free room written as lists."""

import numpy as np

from gpuguard.scheduler.scoring import Vacancy


def vacancy(
    milli: list[list[int]],
    cpus: list[int] | None = None,
    memory: list[int] | None = None,
    kind: list[int] | None = None,
    cores: list[int] | None = None,
    last: list[int] | None = None,
) -> Vacancy:
    """Nodes with these free thousandths; without amounts, nothing but GPUs constrains."""
    size = len(milli)
    most = max(len(row) for row in milli)
    plenty = [1 << 60] * size
    return Vacancy(
        milli=np.array([row + [0] * (most - len(row)) for row in milli], dtype=np.int32),
        cpus=np.array(cpus or plenty, dtype=np.int64),
        memory=np.array(memory or plenty, dtype=np.int64),
        kind=np.array(kind or [0] * size, dtype=np.int64),
        size=np.array([len(row) for row in milli], dtype=np.int64),
        cores=np.array(cores or cpus or plenty, dtype=np.int64),
        last=np.array(last or [0] * size, dtype=np.int64),
    )
