"""What must hold of every wiring: the best is the best whatever the names, and what is lost never helps."""

import random
from itertools import combinations, permutations, product

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguard.model.topology import LEVELS, Device, Level, Nic, Topology
from gpuguard.topology.distance import FARTHEST, NOT_KNOWN, distance, rank_of
from gpuguard.topology.near import nics_of, spread
from gpuguard.topology.rings import ring, score
from gpuguard.topology.subsets import Subsets
from tests.support.wirings import Rows, graph, h100x8, l40sx4, plain

EXAMPLES = 100
Pairs = dict[tuple[int, int], object]


@st.composite
def wirings(draw: st.DrawFn, least: int = 1, most: int = 8) -> Topology:
    """GPUs as a matrix may tell of them, also such as no machine has."""
    size = draw(st.integers(least, most))
    few = st.sampled_from([0, 0, 0, 1, 2, 4, None]) if draw(st.booleans()) else st.integers(0, 18)
    level: st.SearchStrategy[Level | None] = st.sampled_from([*LEVELS, None])
    node = st.sampled_from([None, "0", "1", "2", "0-1"])
    bonds: list[list[int | None]] = [[0] * size for _ in range(size)]
    levels: list[list[Level | None]] = [[None] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        bonds[i][j] = bonds[j][i] = draw(few)
        levels[i][j] = levels[j][i] = draw(level)
    return plain(bonds, levels, draw(st.lists(node, min_size=size, max_size=size)))


def judged(made: Topology, chosen: tuple[int, ...]) -> tuple[int, int, int, int]:
    """What a choice is worth, written down a second time; less is better."""
    pairs = list(combinations(chosen, 2))
    far = [rank_of(made, i, j) for i, j in pairs]
    nodes = {made.devices[place].nodes or f"unknown {place}" for place in chosen}
    return -sum(made.bonds[i][j] or 0 for i, j in pairs), max(far, default=0), len(nodes), sum(far)


def places(made: Topology, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(made.place(name) for name in names)


@settings(max_examples=EXAMPLES, deadline=None)
@given(wirings(), st.data())
def test_no_subset_is_better_than_the_chosen_one(made: Topology, data: st.DataObject) -> None:
    free = data.draw(st.lists(st.sampled_from([gpu.name for gpu in made.gpus]), unique=True, min_size=1))
    for k, names in Subsets(made).table(free).items():
        chosen, able = places(made, names), sorted(places(made, tuple(free)))
        assert len(chosen) == k
        assert set(chosen) <= set(able)

        def worth(choice: tuple[int, ...], able: list[int] = able) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return judged(made, choice), judged(made, tuple(place for place in able if place not in choice))

        assert worth(chosen) == min(worth(choice) for choice in combinations(able, k))


@settings(max_examples=EXAMPLES, deadline=None)
@given(wirings(), st.randoms(use_true_random=False))
def test_other_names_change_no_verdict(made: Topology, dice: random.Random) -> None:
    order = list(range(len(made.devices)))
    dice.shuffle(order)
    renamed = plain(
        [[made.bonds[i][j] for j in order] for i in order],
        [[made.levels[i][j] for j in order] for i in order],
        [made.devices[i].nodes for i in order],
    )
    before, after = Subsets(made).table(), Subsets(renamed).table()
    for k in before:
        assert judged(made, places(made, before[k])) == judged(renamed, places(renamed, after[k]))


@settings(max_examples=EXAMPLES, deadline=None)
@given(wirings(least=2), st.data())
def test_a_lost_link_never_makes_the_chosen_better(made: Topology, data: st.DataObject) -> None:
    bonds = [list(row) for row in made.bonds]
    for i, j in combinations(range(len(bonds)), 2):
        if bonds[i][j] and data.draw(st.booleans()):
            bonds[i][j] = bonds[j][i] = data.draw(st.integers(0, bonds[i][j] or 0))
    worse = msgspec.structs.replace(made, bonds=tuple(tuple(row) for row in bonds))
    before, after = Subsets(made), Subsets(worse)
    for k, names in after.table().items():
        assert after.cost(names) >= before.cost(before.best(k))


@st.composite
def machines(draw: st.DrawFn) -> Rows:
    """What is measured of a machine: on switches, with bridges between any two, or with neither; some told no speed."""
    rows = h100x8() if draw(st.booleans()) else l40sx4()
    gpus = sorted(name for name in rows if name.startswith("gpu:"))
    straight = draw(st.booleans())
    for name in gpus:
        if straight:
            others = [other for other in gpus if other != name]
            peers = draw(st.lists(st.sampled_from([*others, None]), max_size=6))
            rows[name] |= {"nvlink_peers": tuple(peers), "nvlink_up": (1,) * len(peers)}
        if draw(st.booleans()):
            rows[name].pop("nvlink_speed_bytes_per_second", None)
        rows[name]["gpu_compute_capability"] = draw(st.sampled_from(["8.0", "8.6", "9.0"]))
    if straight:
        for name in gpus:
            rows[name].pop("nvlinks_to_switches", None)
    for name in [name for name in rows if name.startswith("bridge:")]:
        if draw(st.integers(0, 5)) == 0:
            rows[name]["bridge_p2p_redirect"] = 1
    return rows


def broken(rows: Rows, data: st.DataObject) -> Rows:
    """The same machine with NVLinks down, and PCIe links narrower and slower."""
    lost: Rows = {name: dict(row) for name, row in rows.items()}
    for row in lost.values():
        ups = row.get("nvlink_up")
        if isinstance(ups, tuple) and ups:
            keep = data.draw(st.integers(0, (1 << len(ups)) - 1))
            row["nvlink_up"] = tuple(up if keep >> n & 1 else 0 for n, up in enumerate(ups))
        for column, value in list(row.items()):
            if "link_width" in column or "link_generation" in column:
                assert isinstance(value, int)
                row[column] = data.draw(st.integers(1, value)) if data.draw(st.booleans()) else value
    return lost


def nearness(cell: str | None) -> tuple[int, int]:
    """More is nearer."""
    if cell is not None and cell.startswith("NV"):
        return 1, int(cell[2:])
    return 0, -1 - (LEVELS.index(cell) if cell in LEVELS else len(LEVELS))


@settings(max_examples=EXAMPLES, deadline=None)
@given(machines(), st.data())
def test_a_lost_link_never_improves_a_distance(rows: Rows, data: st.DataObject) -> None:
    before, after = graph(rows), graph(broken(rows, data))
    for i, j in combinations(range(len(before.devices)), 2):
        was, now = distance(before, i, j), distance(after, i, j)
        assert nearness(now.cell) <= nearness(was.cell)
        if was.bytes_per_second is not None and now.bytes_per_second is not None:
            assert now.bytes_per_second <= was.bytes_per_second
        assert distance(after, j, i).bytes_per_second == now.bytes_per_second
        assert distance(after, j, i).hops == now.hops


@settings(max_examples=EXAMPLES, deadline=None)
@given(wirings(most=7))
def test_no_ring_is_better_than_the_chosen_one(made: Topology) -> None:
    order = ring(made)
    names = [gpu.name for gpu in made.gpus]
    assert sorted(order) == sorted(names)
    first, *rest = names
    assert score(made, order) == max(score(made, [first, *others]) for others in permutations(rest))


@settings(max_examples=20, deadline=None)
@given(wirings(least=10, most=12))
def test_a_ring_of_many_is_one_and_no_worse_than_that_by_numbers(made: Topology) -> None:
    names = [gpu.name for gpu in made.gpus]
    order = ring(made)
    assert sorted(order) == sorted(names)
    assert score(made, order) >= score(made, names)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.data())
def test_every_gpu_gets_a_nearest_card_and_as_few_share_as_can_be(gpus: int, nics: int, data: st.DataObject) -> None:
    size = gpus + nics
    levels: list[list[Level | None]] = [[None] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        levels[i][j] = levels[j][i] = data.draw(st.sampled_from([*LEVELS, None])) if i < gpus <= j else None
    devices = [Device(name=f"GPU{n}", kind="gpu") for n in range(gpus)]
    devices += [Device(name=f"NIC{n}", kind="nic", nic=Nic(rdma=f"mlx5_{n}")) for n in range(nics)]
    made = Topology(
        devices=tuple(devices), levels=tuple(tuple(row) for row in levels), bonds=((0,) * size,) * size
    )  # fmt: skip
    ranks = {
        (gpu, f"NIC{n}"): rank_of(made, made.place(gpu), gpus + n)
        for gpu in (f"GPU{g}" for g in range(gpus))
        for n in range(nics)
    }
    near: list[list[str]] = []
    given_out = spread(made)
    for gpu, card in given_out.items():
        known = {nic: rank for (asking, nic), rank in ranks.items() if asking == gpu and rank != NOT_KNOWN}
        assert sorted(nics_of(made, gpu)) == [f"NIC{n}" for n in range(nics)]
        assert (card is None) == (not known)
        if card is not None:
            assert known[card] == min(known.values()) <= FARTHEST
            near.append([nic for nic, rank in known.items() if rank == known[card]])

    def shared(cards: tuple[str, ...]) -> int:
        return max((cards.count(card) for card in cards), default=0)

    taken = tuple(card for card in given_out.values() if card is not None)
    assert shared(taken) == min(shared(choice) for choice in product(*near))
