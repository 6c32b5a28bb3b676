"""What the fragmentation term keeps is what anyone would compute anew, GPU by GPU."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.scheduler.scorers import fragmentation
from gpuguard.scheduler.scorers.fragmentation import Fragmentation
from gpuguard.scheduler.scoring import Vacancy, Want
from gpuguard.scheduler.waste import STRANDED, UNFILLED
from tests.support.vacancies import vacancy

shares = st.tuples(st.sampled_from([100, 250, 470, 810]), st.integers(0, 4), st.integers(0, 4)).map(
    lambda drawn: Want(milli=drawn[0], cpus=drawn[1], memory=drawn[2])
)
wholes = st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 3)).map(
    lambda drawn: Want(gpus=drawn[0], cpus=drawn[1], kinds=drawn[2])
)
wants = shares | wholes | st.integers(1, 4).map(lambda cpus: Want(cpus=cpus))


def _waste(term: Fragmentation, milli: list[int], cpus: int, memory: int, kind: int) -> int:
    """The definition, written as loops."""
    waste = 0
    for want, weight in term._mix.typical:
        need, gpus = want.milli or 1000, want.gpus or 1
        total = sum(milli)
        fits = sum(free // need for free in milli) // gpus
        for free, asked in ((cpus, want.cpus), (memory, want.memory)):
            fits = min(fits, free // asked) if asked else fits
        if want.kinds and not want.kinds >> kind & 1:
            fits = 0
        small = sum(free for free in milli if free < need)
        waste += weight * (STRANDED * (small if fits else total) + UNFILLED * (total - fits * gpus * need))
    return waste


def _growth(term: Fragmentation, free: Vacancy, node: int, want: Want) -> int:
    cpus, memory, kind = (int(part[node]) for part in (free.cpus, free.memory, free.kind))
    cards = free.milli[node].tolist()
    before = _waste(term, cards, cpus, memory, kind)
    tries = []
    if want.milli:
        for card, amount in enumerate(cards):
            if amount >= want.milli:
                tries.append([*cards[:card], amount - want.milli, *cards[card + 1 :]])
    else:
        after, left = list(cards), want.gpus
        for card, amount in enumerate(cards):
            if left and amount == 1000:
                after[card], left = 0, left - 1
        tries.append(after)
    return min(_waste(term, after, cpus - want.cpus, memory - want.memory, kind) for after in tries) - before


def _fits(free: Vacancy, node: int, want: Want) -> bool:
    if free.cpus[node] < want.cpus or free.memory[node] < want.memory:
        return False
    cards = free.milli[node]
    return bool((cards == 1000).sum() >= want.gpus and cards.max(initial=0) >= want.milli)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0, 190, 530, 1000]), min_size=3, max_size=3), min_size=2, max_size=20),
    st.lists(st.tuples(wants, st.integers(0, 19), st.integers(0, 2), st.sampled_from([0, 190, 1000])), max_size=12),
)
def test_kept_scores_are_fresh_scores(rows: list[list[int]], steps: list[tuple[Want, int, int, int]]) -> None:
    size = len(rows)
    free = vacancy(
        rows, cpus=[3 + node % 5 for node in range(size)], memory=[4] * size, kind=[n % 2 for n in range(size)]
    )
    term = fragmentation.build(free)
    for want, place, card, amount in steps:
        term.observe(want)
        nodes = np.array([node for node in range(size) if _fits(free, node, want)], dtype=np.int64)
        assert term.score(want, nodes).tolist() == [_growth(term, free, node, want) for node in nodes.tolist()]
        for node in nodes.tolist() if want.milli else ():
            chosen = term.card(want, node, 7)
            assert chosen is not None
            assert free.milli[node, chosen] >= want.milli
        node = place % size
        free.milli[node, card] = amount
        term.changed(node)
