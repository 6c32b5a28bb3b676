"""The growth of waste by hand, and that what is kept is what would be computed anew."""

import numpy as np
import pytest

from gpuguard.scheduler.mix import SCALE
from gpuguard.scheduler.scorers import fragmentation
from gpuguard.scheduler.scorers.fragmentation import FEW, Fragmentation
from gpuguard.scheduler.scoring import Ints, Vacancy, Want
from gpuguard.scheduler.waste import Rooms
from tests.support.vacancies import vacancy

ALL = (1 << 16) - 1


def _told(free: Vacancy, *wants: Want) -> Fragmentation:
    term = fragmentation.build(free)
    for want in wants:
        term.observe(want)
    return term


def _growth(term: Fragmentation, want: Want, *nodes: int) -> list[float]:
    scores: list[float] = (term.score(want, np.array(nodes)) / SCALE).tolist()
    return scores


def test_a_share_goes_where_it_closes_a_gap() -> None:
    # Usual: 600 of a GPU. Before: 4 x 500 + 900 = 2900. On the part: only a whole GPU is left, 400 of it unfilled.
    # On the whole one: twice 500, of which no usual ask can take any: 5000.
    term = _told(vacancy([[1000, 500], [1000, 0]]), Want(milli=600))
    want = Want(milli=500)
    # The second node has only the whole GPU: 400 before, 5 x 500 after.
    assert _growth(term, want, 0, 1) == [400 - 2900, 2500 - 400]
    assert term.card(want, 0, ALL) == 1


def test_a_card_that_may_not_be_used_is_not_taken() -> None:
    term = _told(vacancy([[1000, 500]]), Want(milli=600))
    assert term.card(Want(milli=500), 0, 0b01) == 0
    assert term.card(Want(milli=600), 0, 0b10) is None
    assert term.card(Want(gpus=1), 0, ALL) is None


def test_among_equal_cards_it_is_the_fullest_then_the_first() -> None:
    term = _told(vacancy([[1000, 300, 200, 200]]))
    assert term.card(Want(milli=100), 0, ALL) == 2


def test_one_gpu_goes_to_the_broken_node_when_eights_are_usual() -> None:
    # A whole node of eight loses 8 usable GPUs; a node of 7 has lost them already and wins one back.
    term = _told(vacancy([[1000] * 8, [1000] * 7 + [0]]), Want(gpus=8))
    assert _growth(term, Want(gpus=1), 0, 1) == [5 * 7000, -5 * 1000]


def test_an_even_rest_stays_even_when_pairs_are_usual() -> None:
    term = _told(vacancy([[1000] * 4, [1000] * 3]), Want(gpus=2))
    # 4 -> 3: one GPU is unfilled. 3 -> 2: it no longer is.
    assert _growth(term, Want(gpus=1), 0, 1) == [1000, -1000]


def test_work_for_cpus_keeps_away_from_cores_that_gpus_need() -> None:
    free = vacancy([[1000, 1000], [1000, 1000], []], cpus=[16000, 32000, 8000])
    term = _told(free, Want(gpus=1, cpus=8000))
    # 16 cores for two GPUs: with 8 gone, one GPU stays unfilled; 32 are more than enough; no GPU, no loss.
    assert _growth(term, Want(cpus=8000), 0, 1, 2) == [1000, 0, 0]


def test_a_type_that_is_asked_for_is_kept_free() -> None:
    free = vacancy([[1000], [1000]], kind=[0, 1])
    term = _told(free, Want(gpus=1, kinds=0b01))
    # Type 0 is of use to the usual asks, type 1 is lost to them anyway.
    assert _growth(term, Want(gpus=1), 0, 1) == [0, -5 * 1000]


def test_without_history_all_nodes_are_equal() -> None:
    term = _told(vacancy([[1000, 500], [1000, 1000]]))
    assert _growth(term, Want(gpus=1), 0, 1) == [0, 0]


def test_only_changed_nodes_are_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    free = vacancy([[1000, 1000] for _ in range(4)], cpus=[9000, 8000, 7000, 6000])
    term = _told(free, Want(gpus=1, cpus=1000))
    judged: list[list[int]] = []
    growth = Fragmentation._growth

    def watched(self: Fragmentation, want: Want, rooms: Rooms) -> Ints:
        judged.append(rooms.cpus.tolist())
        return growth(self, want, rooms)

    monkeypatch.setattr(Fragmentation, "_growth", watched)
    every: Ints = np.arange(4)
    term.score(Want(gpus=1), every)
    term.score(Want(gpus=1), every)
    free.milli[2, 0] = 0
    free.cpus[2] = 5000
    term.changed(2)
    term.score(Want(gpus=1), every)
    assert judged == [[9000, 8000, 7000, 6000], [5000]]


def test_equal_rooms_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    free = vacancy([[1000, 1000, 500] for _ in range(4 * FEW)])
    free.milli[1] = free.milli[1][::-1]
    term = _told(free, Want(gpus=2))
    sizes: list[int] = []
    growth = Fragmentation._growth

    def watched(self: Fragmentation, want: Want, rooms: Rooms) -> Ints:
        sizes.append(len(rooms.cpus))
        return growth(self, want, rooms)

    monkeypatch.setattr(Fragmentation, "_growth", watched)
    scores = term.score(Want(gpus=1), np.arange(4 * FEW))
    assert sizes == [1]
    assert len(set(scores.tolist())) == 1


def test_the_journal_is_bounded() -> None:
    free = vacancy([[1000]])
    term = _told(free, Want(gpus=1))
    assert _growth(term, Want(gpus=1), 0) == [0]
    free.milli[0, 0] = 500
    for _ in range(5000):
        term.changed(0)
    assert len(term._journal) < 2000
    assert _growth(term, Want(milli=500), 0) == [-5 * 500]
