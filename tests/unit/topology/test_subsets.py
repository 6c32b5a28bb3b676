"""The best k GPUs: on real machines, by each criterion, and what is refused."""

from itertools import combinations

import pytest

from gpuguard.errors import UsageError
from gpuguard.model.topology import LEVELS, Level
from gpuguard.topology.subsets import EXACT, KEPT, Masks, Subsets, mask_of, places_in
from tests.support.topo_samples import NUMBERS, samples
from tests.support.wirings import graph, h100x8, l40sx4, plain


@pytest.mark.parametrize("number", NUMBERS)
def test_the_best_pair_of_every_sample(number: str) -> None:
    """The most NVLinks where there are any; else the nearest; across sockets only when nothing nearer exists."""
    made = samples()[number]
    one, other = (made.place(name) for name in Subsets(made).best(2))
    pairs = list(combinations(range(len(made.gpus)), 2))
    most = max(made.bonds[i][j] or 0 for i, j in pairs)
    assert (made.bonds[one][other] or 0) == most
    known = {pair: made.levels[pair[0]][pair[1]] for pair in pairs}
    nearest = min(LEVELS.index(level) for level in known.values() if level) if any(known.values()) else None
    if not most and nearest is not None:
        level = known[one, other]
        assert level is not None
        assert LEVELS.index(level) == nearest
    nodes = {made.devices[place].nodes for place in (one, other)}
    if most:
        alike = {
            frozenset(made.devices[place].nodes for place in pair)
            for pair in pairs
            if made.bonds[pair[0]][pair[1]] == most
        }
        assert len(nodes) == min(len(group) for group in alike)


@pytest.mark.parametrize(
    ("number", "k", "names"),
    [
        ("02", 2, "GPU0 GPU1"),
        ("05", 4, "GPU4 GPU5 GPU6 GPU7"),  # of one switch each two on node 0, which the driver calls SYS apart
        ("06", 4, "GPU0 GPU1 GPU2 GPU3"),
        ("07", 2, "GPU0 GPU1"),
        ("07", 4, "GPU0 GPU1 GPU2 GPU3"),
        ("14", 2, "GPU6 GPU7"),  # leaves the larger node whole
        ("14", 4, "GPU1 GPU2 GPU3 GPU4"),
        ("14", 6, "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5"),
        ("19", 2, "GPU4 GPU5"),  # all SYS; leaves four of node 0, and two whose rows are cut off
        ("24", 4, "GPU0 GPU1 GPU2 GPU3"),
        ("30", 1, "GPU2"),  # leaves the two that a bridge joins
        ("33", 2, "GPU1 GPU2"),  # as many NVLinks as GPU0 and GPU3, and one socket
        ("35", 2, "GPU0 GPU1"),
        ("37", 4, "GPU0 GPU1 GPU2 GPU3"),
    ],
)
def test_the_best_of_real_machines(number: str, k: int, names: str) -> None:
    assert " ".join(Subsets(samples()[number]).best(k)) == names


def test_of_what_is_free_the_best_is_chosen() -> None:
    subsets = Subsets(graph(h100x8()))
    assert subsets.best(2, ["GPU3", "GPU4", "GPU7"]) == ("GPU4", "GPU7")
    assert subsets.best(2, ["GPU7", "GPU3", "GPU2", "GPU6", "GPU5"]) == ("GPU2", "GPU3")  # leaves a node whole
    assert subsets.best(1, ["GPU3", "GPU6", "GPU7"]) == ("GPU3",)
    assert subsets.table(["GPU1", "GPU5"]) == {1: ("GPU1",), 2: ("GPU1", "GPU5")}
    assert subsets.best_mask(2, 0b10011000) == 0b10010000
    assert subsets.mask_of(["GPU0", "GPU7"]) == 0b10000001


def grid(size: int, cells: dict[tuple[int, int], int], rest: int = 0) -> list[list[int]]:
    made = [[rest if i != j else 0 for j in range(size)] for i in range(size)]
    for (i, j), value in cells.items():
        made[i][j] = made[j][i] = value
    return made


def test_each_criterion_decides_only_what_those_before_leave() -> None:
    nothing = grid(4, {})
    far = grid(4, {(2, 3): 0, (0, 1): 3}, rest=6)
    assert Masks(grid(4, {(0, 3): 1}), far, ["0"] * 4).best_mask(2, 0b1111) == 0b1001
    assert Masks(nothing, far, ["0", "0", "1", "2"]).best_mask(2, 0b1111) == 0b1100
    assert Masks(nothing, nothing, ["0", "1", "2", "1"]).best_mask(2, 0b1111) == 0b1010
    assert Masks(nothing, nothing, [None, None, "2", "2"]).best_mask(2, 0b1111) == 0b1100
    # Three GPUs whose farthest are the same: the sum decides.
    summed = grid(4, {(0, 1): 0, (2, 3): 2}, rest=3)
    assert Masks(nothing, summed, ["0"] * 4).best_mask(3, 0b1111) in (0b0111, 0b1011)
    # The remainder: taking the last leaves the pair together.
    assert Masks(grid(3, {(0, 1): 1}), grid(3, {}), ["0"] * 3).best_mask(1, 0b111) == 0b100
    assert Masks(nothing, nothing, ["0"] * 4).best_mask(2, 0b1110) == 0b0110


def test_nvlinks_that_nobody_knows_are_never_better_than_known_ones() -> None:
    made = plain([[0, None, None], [None, 0, 1], [None, 1, 0]])
    assert Subsets(made).best(2) == ("GPU1", "GPU2")
    made = plain([[0, None, 0], [None, 0, 0], [0, 0, 0]])
    assert Subsets(made).best(2) == ("GPU0", "GPU1")
    assert "whether NVLinks join them is not known" in Subsets(made).why(2)


def test_a_distance_that_nobody_knows_is_worse_than_a_node_and_better_than_another_socket() -> None:
    row: list[Level | None] = [None, None, "NODE", "SYS"]
    levels = [row, [None, None, "SYS", "SYS"], ["NODE", "SYS", None, "SYS"], ["SYS", "SYS", "SYS", None]]
    none = [[0] * 4 for _ in range(4)]
    subsets = Subsets(plain(none, levels))
    assert subsets.best(2) == ("GPU0", "GPU2")
    assert subsets.best(2, ["GPU0", "GPU1", "GPU3"]) == ("GPU0", "GPU1")


def test_why_names_what_decided() -> None:
    subsets = Subsets(graph(h100x8()))
    assert subsets.why(1) == "GPU0: the lowest of 8 equal choices"
    assert (
        subsets.why(2)
        == "GPU0 and GPU1: no two farther apart than NODE, then the lowest of 12 equal ones, of 28 choices"
    )
    assert subsets.why(8) == "GPU0 to GPU7: all that are free"
    assert Subsets(samples()["30"]).why(1) == "GPU2: the best remainder (GPU0 and GPU1), of 3 choices"
    assert Subsets(samples()["30"]).why(2) == "GPU0 and GPU1: the most NVLink between them (4 links), of 3 choices"
    assert Subsets(samples()["02"]).why(3) == (
        "GPU0 to GPU2: on 2 NUMA nodes, then the lowest of 24 equal ones, of 56 choices"
    )
    assert "nearest over PCIe on the whole" in Subsets(samples()["14"]).why(4)
    assert Subsets(samples()["27"]).why(2).endswith("; how far they are over PCIe is not known")


def test_what_cannot_be_chosen_is_refused() -> None:
    subsets = Subsets(graph(l40sx4()))
    for k in (0, -1, 5):
        with pytest.raises(UsageError, match=f"{k} of 4 free GPUs cannot be chosen"):
            subsets.best(k)
    with pytest.raises(UsageError, match="2 of 1 free"):
        subsets.best(2, ["GPU0"])
    with pytest.raises(UsageError, match="no 'NIC0'"):
        subsets.best(1, ["NIC0"])
    with pytest.raises(UsageError, match="1 of 0 free"):
        Subsets(plain([])).best(1)
    assert Subsets(plain([])).table() == {}
    assert subsets.best_mask(1, 1 << 9 | 1) == 1  # bits beyond are nobody's


def test_sixteen_are_tried_all_and_more_are_grown_and_say_so() -> None:
    size = EXACT + 2
    bonds = grid(size, {(3, 17): 4, (3, 9): 2, (17, 9): 2, (0, 1): 3})
    subsets = Subsets(plain(bonds))
    assert not subsets.exact
    assert subsets.best(2) == ("GPU3", "GPU17")
    assert subsets.best(3) == ("GPU3", "GPU9", "GPU17")
    table = subsets.table()
    assert all(len(set(names)) == k for k, names in table.items())
    assert table[size] == tuple(f"GPU{n}" for n in range(size))
    assert subsets.best(1) == ("GPU2",)
    assert "too many to try all" in subsets.why(3)
    assert Subsets(plain(grid(EXACT, {(3, 15): 4}))).best(2) == ("GPU3", "GPU15")
    assert Subsets(plain(grid(EXACT, {}))).exact


def test_what_is_remembered_has_an_end() -> None:
    masks = Masks(grid(13, {}), grid(13, {}), ["0"] * 13)
    asked = [free for free in range(1, 1 << 13) if free.bit_count() <= 5]
    for free in asked:
        masks.table_mask(free)
    assert len(asked) < KEPT
    for free in range(1, KEPT + 2):
        masks.table_mask(free)
    assert masks.best_mask(2, 0b110) == 0b110


def test_masks_and_places_are_each_others_inverse() -> None:
    assert places_in(0b10110) == [1, 2, 4]
    assert mask_of([4, 1, 2]) == 0b10110
    assert places_in(0) == []
