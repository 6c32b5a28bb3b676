"""How far two devices are: word, hops, bandwidth; and what a wrong pair costs."""

import msgspec
import pytest

from gpuguard.errors import UsageError
from gpuguard.model.ids import SubjectId
from gpuguard.model.topology import Level, PcieLink, Topology
from gpuguard.topology.distance import (
    FARTHEST,
    NOT_KNOWN,
    RANKS,
    SAME_SOCKET,
    best_pair,
    cost,
    distance,
    level_of,
    link_speed,
    rank_of,
    weights,
)
from tests.support.topo_samples import samples
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8, l40sx4, node, plain

GEN4_X16 = 16 * 16e9 / 8 * 128 / 130
GEN5_X16 = 2 * GEN4_X16


def between(made: Topology, one: str, other: str) -> tuple[str | None, int | None, str | None, float | None]:
    found = distance(made, made.place(one), made.place(other))
    return found.cell, found.hops, found.kind, found.bytes_per_second


def bridged(count: int, **more: object) -> Rows:
    """Cards with this many NVLinks between the first two."""
    rows = l40sx4()
    names = sorted(name for name in rows if name.startswith("gpu:"))
    for name, peer in ((names[0], names[1]), (names[1], names[0])):
        rows[name] |= {"nvlink_peers": (peer,) * count, "nvlink_up": (1,) * count, **more}
    return rows


def test_a_device_is_no_way_from_itself() -> None:
    made = graph(h100x8())
    assert distance(made, 3, 3).cell == "X"
    assert (distance(made, 3, 3).hops, distance(made, 3, 3).bytes_per_second) == (0, None)


def test_gpus_on_switches_are_two_hops_apart_at_the_speed_that_the_driver_says() -> None:
    made = graph(h100x8())
    assert between(made, "GPU0", "GPU7") == ("NV18", 2, "nvlink", 18 * 26.562e9)
    assert "18 NVLinks through NVSwitches, at most 478 GB/s each way" in distance(made, 0, 7).words


def test_over_pcie_what_is_passed_is_counted() -> None:
    made = graph(h100x8())
    assert between(made, "GPU0", "NIC0") == ("PIX", 3, "pcie", pytest.approx(GEN5_X16))
    # Three bridges and a root complex on each side.
    assert between(made, "GPU0", "NIC1") == ("NODE", 9, "pcie", pytest.approx(GEN5_X16))
    # Two sockets of Sapphire Rapids are slower than sixteen lanes of the fifth generation.
    assert between(made, "GPU0", "NIC4") == ("SYS", 9, "socket", 22e9)


def test_a_card_with_two_ports_is_one_hop_from_itself() -> None:
    made = graph(l40sx4())
    assert between(made, "NIC0", "NIC1")[:3] == ("PIX", 1, "pcie")


def test_acs_sends_neighbours_up_to_the_root() -> None:
    rows = h100x8()
    for row in rows.values():
        if "bridge_p2p_redirect" in row:
            row["bridge_p2p_redirect"] = 1
    port = next(name for name in rows if rows[name].get("bridge_kind") == "root_port")
    rows[port]["bridge_link_width"] = 4
    made = graph(rows)
    # Two ports below, the switch's own and the root port twice, and the root complex.
    assert between(made, "GPU0", "NIC0")[1] == 2 + 4 + 1 + 1
    assert between(made, "GPU0", "NIC0")[3] == pytest.approx(GEN5_X16 / 4)


def test_the_narrowest_link_on_the_way_counts() -> None:
    rows = h100x8()
    rows[SubjectId(f"gpu:0000:{H100_BUSES[1]}:00.0")]["pcie_link_width"] = 8
    made = graph(rows)
    assert between(made, "GPU1", "NIC1")[3] == pytest.approx(GEN5_X16 / 2)
    assert between(made, "GPU0", "NIC0")[3] == pytest.approx(GEN5_X16)


def test_an_idle_link_is_as_fast_as_it_can_be() -> None:
    rows = l40sx4()
    for row in rows.values():
        if "pcie_link_generation" in row:
            row["pcie_link_generation"] = 1
    made = graph(rows)
    assert between(made, "GPU0", "GPU1")[3] == pytest.approx(GEN4_X16)


@pytest.mark.parametrize(
    ("lacks", "known"),
    [
        (("pcie_link_width",), True),
        (("pcie_link_width", "pcie_link_width_limit"), False),
        (("pcie_link_generation",), True),
        (("pcie_link_generation_limit",), True),
        (("pcie_link_generation", "pcie_link_generation_limit"), False),
    ],
)
def test_a_speed_that_nobody_tells_is_none(lacks: tuple[str, ...], known: bool) -> None:
    rows = l40sx4()
    for row in rows.values():
        for column in lacks:
            row.pop(column, None)
    assert (between(graph(rows), "GPU0", "GPU1")[3] is not None) is known


def test_a_generation_from_the_future_is_not_guessed() -> None:
    made = graph(l40sx4())
    link = PcieLink(lanes=16, most_generation=9)
    devices = tuple(msgspec.structs.replace(device, link=link) for device in made.devices)
    assert between(msgspec.structs.replace(made, devices=devices), "GPU0", "GPU1")[3] is None


def test_links_straight_to_the_other_are_one_hop() -> None:
    made = graph(bridged(4, gpu_compute_capability="8.6"))
    assert between(made, "GPU0", "GPU1") == ("NV4", 1, "nvlink", 4 * 14.0625e9)
    assert "joined by 4 NVLinks, at most 56.2 GB/s" in distance(made, 0, 1).words


def test_the_better_way_is_the_estimate_so_that_a_lost_link_never_helps() -> None:
    """One NVLink is slower than sixteen lanes of the fourth generation: without it the pair would be as fast."""
    made = graph(bridged(1, gpu_compute_capability="8.6"))
    assert between(made, "GPU0", "GPU1") == ("NV1", 5, "pcie", pytest.approx(GEN4_X16))
    assert "joined by 1 NVLink, and PCIe carries more" in distance(made, 0, 1).words


@pytest.mark.parametrize(
    ("columns", "speed"),
    [
        ({"gpu_compute_capability": "6.0"}, 20e9),
        ({"gpu_compute_capability": "7.0"}, 25e9),
        ({"gpu_compute_capability": "9.0", "nvlink_version": 7}, 25e9),
        ({"gpu_compute_capability": "10.0"}, 50e9),
        ({"gpu_compute_capability": "10.0", "nvlink_speed_bytes_per_second": 53.125e9}, 53.125e9),
        ({"gpu_compute_capability": None, "nvlink_version": 4}, 25e9),
        ({"gpu_compute_capability": None, "nvlink_version": 7}, None),
        ({"gpu_compute_capability": "99.0"}, None),
    ],
)
def test_the_speed_of_a_link_is_the_drivers_else_that_of_the_chip(columns: dict[str, object], speed: float) -> None:
    made = graph(bridged(2, **columns))
    assert link_speed(made.devices[0]) == speed
    assert distance(made, 0, 1).cell == "NV2"


def test_two_kinds_of_links_are_as_fast_as_the_slower() -> None:
    rows = bridged(4, gpu_compute_capability="8.0")
    rows[min(name for name in rows if name.startswith("gpu:"))]["gpu_compute_capability"] = "8.6"
    made = graph(rows)
    assert distance(made, 0, 1).bytes_per_second == distance(made, 1, 0).bytes_per_second == 4 * 14.0625e9


def test_unknown_nvlinks_leave_the_speed_unknown() -> None:
    rows = l40sx4()
    for row in rows.values():
        for column in ("gpu_index", "gpu_up"):
            row.pop(column, None)
    made = graph(rows)
    assert between(made, "GPU0", "GPU1") == ("NODE", 5, "pcie", None)
    assert distance(made, 0, 1).words.endswith("(NODE); whether NVLinks join them is not known")


def test_a_tree_that_is_hidden_has_no_hops() -> None:
    rows = l40sx4()
    for row in rows.values():
        if "gpu_pci_path" in row:
            row["gpu_pci_path"] = ("pci0000:00",)
    assert between(graph(rows), "GPU0", "GPU3") == ("PHB", None, "pcie", pytest.approx(GEN4_X16))


@pytest.mark.parametrize(
    ("processors", "speed"),
    [
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0x4F}, 6e9),
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0x55}, 10e9),
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0x6A}, 10e9),
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0x8F}, 22e9),
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0xAD}, GEN4_X16),
        ({"cpu_vendor": "GenuineIntel", "cpu_model": 0xCF}, GEN4_X16),
        ({"cpu_vendor": "AuthenticAMD", "cpu_family": 25}, 16e9),
        ({"cpu_vendor": "IBM", "cpu_architecture": "ppc64le"}, GEN4_X16),
        ({"cpu_vendor": "ARM", "cpu_architecture": "aarch64"}, None),  # nobody tells what lies between its sockets
        ({"cpu_vendor": None}, None),
    ],
)
def test_between_sockets_it_is_the_processors_that_count(processors: dict[str, object], speed: float | None) -> None:
    rows = l40sx4()
    rows[SubjectId("node")] = {**rows[SubjectId("node")], **processors}
    assert between(graph(rows), "GPU0", "GPU3") == ("SYS", 5, "socket", pytest.approx(speed) if speed else None)


def test_numa_nodes_of_one_socket_are_nearer_than_two_sockets() -> None:
    rows = l40sx4()
    rows[SubjectId("node")] = node(("0-31", "32-63"), numa_sockets=("0", 0, "1", 0))
    made = graph(rows)
    assert (rank_of(made, 0, 1), rank_of(made, 0, 3)) == (RANKS["NODE"], SAME_SOCKET)
    assert between(made, "GPU0", "GPU3") == ("SYS", 5, "pcie", pytest.approx(GEN4_X16))
    assert rank_of(graph(l40sx4()), 0, 3) == FARTHEST


@pytest.mark.parametrize(
    ("number", "pair", "level"),
    [
        ("02", (0, 1), "PXB"),  # both are PXB from one card
        ("02", (0, 2), "SYS"),  # on other nodes
        ("03", (0, 1), "NODE"),
        ("24", (2, 3), "PIX"),
        ("24", (0, 2), "PHB"),  # one is PIX, the other PHB from a card
        ("17", (0, 1), "SYS"),  # as the driver calls those of one node here: see sample 19, the same without NVLink
        ("09", (0, 2), "SYS"),
        ("30", (0, 1), "NODE"),
        ("26", (0, 1), None),
        ("16", (0, 1), "PHB"),
    ],
)
def test_what_nvlink_hides_in_a_matrix_is_told_by_cards_and_nodes(
    number: str, pair: tuple[int, int], level: Level | None
) -> None:
    assert level_of(samples()[number], *pair) == level


def test_all_that_is_not_told_is_not_known() -> None:
    made = plain([[0, None], [None, 0]])
    found = distance(made, 0, 1)
    assert (found.cell, found.kind, found.hops, found.bytes_per_second) == (None, None, None, None)
    assert rank_of(made, 0, 1) == NOT_KNOWN
    assert found.words == (
        "GPU0 and GPU1 are joined over PCIe, and how far is not known; whether NVLinks join them is not known"
    )


def test_weights_are_links_or_speeds_where_links_are_not_alike() -> None:
    assert weights(graph(bridged(4)))[0][:3] == (0, 4, 0)
    rows = bridged(4, gpu_compute_capability="8.6")
    for name in sorted(name for name in rows if name.startswith("gpu:"))[2:]:
        rows[name]["gpu_compute_capability"] = "8.0"
    assert weights(graph(rows))[0][:3] == (0, 56250, 0)


def test_a_pair_across_the_sockets_costs_and_the_words_say_what() -> None:
    rows = l40sx4()
    rows[SubjectId("node")] = {**rows[SubjectId("node")], "cpu_vendor": "AuthenticAMD", "cpu_family": 25}
    made = graph(rows)
    found = cost(made, 0, 3)
    assert (found.pair, found.best) == (("GPU0", "GPU3"), ("GPU0", "GPU1"))
    assert found.ratio == pytest.approx(16e9 / GEN4_X16)
    assert found.words == (
        "GPU0 and GPU3 reach each other only over the link between processors (SYS), at most 16 GB/s each way, 51 % of "
        "what the best pair has; GPU0 and GPU1 are on one NUMA node, at different PCIe host bridges (NODE), at most "
        "31.5 GB/s each way"
    )


def test_a_pair_as_good_as_the_best_costs_nothing() -> None:
    made = graph(h100x8())
    assert cost(made, 0, 7).ratio == 1.0
    assert cost(made, 0, 7).words.endswith("no pair of this node is better joined")
    assert cost(samples()["24"], 0, 7).ratio is None
    assert cost(samples()["24"], 0, 7).words.endswith("(SYS); GPU2 and GPU3 are joined by 2 NVLinks")


def test_a_pair_is_two_gpus() -> None:
    made = graph(h100x8())
    for pair in ((0, 0), (0, 8)):
        with pytest.raises(UsageError, match="not two GPUs"):
            cost(made, *pair)
    with pytest.raises(UsageError, match="not two GPUs here"):
        best_pair(plain([[0]]))
