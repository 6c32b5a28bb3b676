"""Waste, by hand: 4 x what is stranded + 1 x what stays unfilled, in thousandths of a GPU."""

import numpy as np
import pytest

from gpuguard.scheduler.mix import SCALE, Typical
from gpuguard.scheduler.scoring import Want
from gpuguard.scheduler.waste import Rooms, Waste


def _waste(wants: list[Want], milli: list[int], cpus: int = 1 << 60, memory: int = 1 << 60, kind: int = 0) -> float:
    typical = tuple(Typical(want, SCALE // len(wants)) for want in wants)
    rooms = Rooms(np.array([milli]), np.array([cpus]), np.array([memory]), np.array([kind]))
    return int(Waste(typical, 2).of(rooms)[0]) / SCALE


@pytest.mark.parametrize(
    ("want", "milli", "expected"),
    [
        # 500 is too small for 600; after one such ask 1500 - 600 stay.
        (Want(milli=600), [1000, 500], 4 * 500 + 900),
        # Both GPUs hold two each and nothing stays.
        (Want(milli=500), [1000, 1000], 0),
        # No GPU is too small, but 100 of each stays.
        (Want(milli=300), [1000, 1000], 200),
        # One whole GPU is too few for two: all is lost both ways.
        (Want(gpus=2), [1000, 500], 5 * 1500),
        # Two of three are taken; the third is not too small, but stays.
        (Want(gpus=2), [1000, 1000, 1000], 1000),
        (Want(gpus=1), [1000, 190, 0], 4 * 190 + 190),
        (Want(gpus=8), [0] * 8, 0),
    ],
)
def test_by_gpus(want: Want, milli: list[int], expected: int) -> None:
    assert _waste([want], milli) == expected


def test_cores_that_run_out_first_strand_gpus() -> None:
    want = Want(gpus=1, cpus=8000)
    assert _waste([want], [1000, 1000], cpus=7999) == 5 * 2000
    assert _waste([want], [1000, 1000], cpus=8000) == 1000
    assert _waste([want], [1000, 1000], cpus=16000) == 0


def test_memory_that_runs_out_first_strands_gpus() -> None:
    want = Want(milli=500, memory=100)
    assert _waste([want], [1000], memory=99) == 5 * 1000
    assert _waste([want], [1000], memory=100) == 500


def test_the_wrong_type_is_lost() -> None:
    assert _waste([Want(gpus=1, kinds=0b10)], [1000], kind=0) == 5 * 1000
    assert _waste([Want(gpus=1, kinds=0b10)], [1000], kind=1) == 0


def test_classes_count_by_their_weight() -> None:
    assert _waste([Want(gpus=1), Want(gpus=2)], [1000, 0]) == (0 + 5 * 1000) / 2


def test_without_usual_asks_nothing_is_wasted() -> None:
    assert _waste([Want(gpus=1)], []) == 0
    rooms = Rooms(np.array([[1000]]), np.array([0]), np.array([0]), np.array([0]))
    assert Waste((), 1).of(rooms).tolist() == [0]
