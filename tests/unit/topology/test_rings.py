"""The order of a ring."""

from itertools import pairwise

import pytest

from gpuguard.errors import UsageError
from gpuguard.topology.rings import EXACT, MOST, ring, score
from tests.support.topo_samples import samples
from tests.support.wirings import graph, h100x8, l40sx4, plain


@pytest.mark.parametrize("number", ["24", "26"])
def test_a_cube_mesh_has_a_ring_of_double_nvlinks_alone(number: str) -> None:
    made = samples()[number]
    order = [made.place(name) for name in ring(made)]
    assert sorted(order) == list(range(8))
    assert [made.bonds[one][other] for one, other in pairwise([*order, order[0]])] == [2] * 8


def test_neighbours_share_a_node_and_the_sockets_are_crossed_twice() -> None:
    made = graph(h100x8())
    order = ring(made, ["GPU0", "GPU4", "GPU1", "GPU5", "GPU2", "GPU6"])
    nodes = [made.devices[made.place(name)].node for name in order]
    assert sum(one != other for one, other in pairwise([*nodes, nodes[0]])) == 2
    assert score(made, order) > score(made, ["GPU0", "GPU4", "GPU1", "GPU5", "GPU2", "GPU6"])


def test_few_are_a_ring_in_any_order() -> None:
    made = graph(l40sx4())
    assert ring(made, []) == ()
    assert ring(made, ["GPU2"]) == ("GPU2",)
    assert ring(made, ["GPU2", "GPU0"]) == ("GPU0", "GPU2")
    assert ring(made) == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert score(made, ["GPU2"]) == (0, 0, 0)


def test_two_bridges_are_both_in_the_ring() -> None:
    made = samples()["33"]
    order = ring(made)
    cells = [made.cell(made.place(one), made.place(other)) for one, other in pairwise([*order, order[0]])]
    assert cells.count("NV12") == 3


def test_a_ring_beyond_the_exact_ones_is_found_where_there_is_one() -> None:
    size = 14
    assert size > EXACT
    bonds = [[0] * size for _ in range(size)]
    hidden = [0, 5, 9, 2, 13, 7, 1, 11, 4, 8, 12, 3, 10, 6]
    for one, other in pairwise([*hidden, 0]):
        bonds[one][other] = bonds[other][one] = 2
    made = plain(bonds)
    order = [made.place(name) for name in ring(made)]
    assert sorted(order) == list(range(size))
    assert [bonds[one][other] for one, other in pairwise([*order, order[0]])] == [2] * size
    full = plain([[6 * (i != j) for j in range(16)] for i in range(16)], nodes=[str(n % 2) for n in range(16)])
    assert score(full, ring(full))[2] == 14


def test_a_ring_of_more_than_anybody_sells_takes_the_best_neighbour_next() -> None:
    size = MOST + 2
    made = plain(
        [[4 * (abs(i - j) in (2, size - 2)) + (i + j == 2 * size - 3) for j in range(size)] for i in range(size)]
    )
    order = [made.place(name) for name in ring(made)]
    assert sorted(order) == list(range(size))
    assert sum(made.bonds[one][other] == 4 for one, other in pairwise([*order, order[0]])) == size - 2


def test_who_is_no_gpu_is_refused() -> None:
    made = graph(l40sx4())
    with pytest.raises(UsageError, match="'NIC0'"):
        ring(made, ["GPU0", "NIC0"])
    with pytest.raises(UsageError, match="named twice"):
        ring(made, ["GPU0", "GPU0"])
