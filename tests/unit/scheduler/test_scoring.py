"""Terms are asked in order, each among the equals of the one before."""

from typing import ClassVar

import numpy as np

from gpuguard.scheduler.scoring import Ints, Want, best, tightest_card


class Fixed:
    """A term that says what it was told to say."""

    name: ClassVar[str] = "fixed"

    def __init__(self, *scores: int) -> None:
        self._scores: Ints = np.array(scores, dtype=np.int64)
        self.asked: list[list[int]] = []

    def observe(self, want: Want) -> None: ...

    def changed(self, node: int) -> None: ...

    def score(self, want: Want, nodes: Ints, until: int = 0) -> Ints:
        self.asked.append(nodes.tolist())
        scores: Ints = self._scores[nodes]
        return scores

    def card(self, want: Want, node: int, allowed: int) -> int | None:
        return None


NODES: Ints = np.arange(4)


def test_the_next_term_is_asked_only_among_equals() -> None:
    first, second = Fixed(5, 1, 1, 1), Fixed(0, 9, 3, 4)
    assert best(Want(gpus=1), NODES, [first, second]) == 2
    assert second.asked == [[1, 2, 3]]


def test_among_equals_of_all_terms_it_is_the_first_node() -> None:
    assert best(Want(gpus=1), NODES, [Fixed(2, 1, 1, 2), Fixed(0, 0, 0, 0)]) == 1


def test_one_node_left_is_not_judged_again() -> None:
    second = Fixed(0, 0, 0, 0)
    assert best(Want(gpus=1), NODES, [Fixed(2, 1, 3, 2), second]) == 1
    assert second.asked == []


def test_without_terms_it_is_the_first_node() -> None:
    assert best(Want(), np.array([3, 1]), []) == 3


def test_the_tightest_card_is_the_fullest_that_has_enough_and_may_be_used() -> None:
    free = [1000, 400, 600, 400]
    assert tightest_card(free, 300, 0b1111) == 1
    assert tightest_card(free, 300, 0b1101) == 3
    assert tightest_card(free, 500, 0b1111) == 2
    assert tightest_card(free, 700, 0b0110) is None
