"""What is drawn: who hangs below whom, and in which state each link is, from a tree or from cells alone."""

import msgspec
import pytest

from gpuguard.model.topology import PcieLink, Topology
from gpuguard.topology.captions import columns, cut, end_of, inventory, pcie_state, pcie_words, wrap
from gpuguard.topology.picture import Box, Links, Picture, Side, nvlink_words, picture, state_words
from tests.support.drawn import (
    alone,
    bridged_pairs,
    cells,
    cube_mesh,
    fewer,
    hidden,
    kernel_only,
    link_down,
    lopsided,
    lost,
    mig,
    nested,
    sixteen,
    stray,
    unbridged,
    uniform,
)
from tests.support.wirings import graph, h100x8, l40sx4


def names(topology: Topology, of: Box | Side) -> list[str]:
    return [topology.devices[place].name for place in of.all()]


def states(drawn: Picture) -> dict[int, str]:
    return {uplink.place: uplink.state for uplink in drawn.uplinks}


def test_each_device_hangs_below_the_switch_of_its_path() -> None:
    made = graph(h100x8())
    sides = picture(made).sides
    assert [(side.name, side.socket, side.cpus) for side in sides] == [
        ("NUMA 0", 0, "0-55,112-167"), ("NUMA 1", 1, "56-111,168-223"),
    ]  # fmt: skip
    assert [names(made, box) for box in sides[0].boxes] == [[f"GPU{n}", f"NIC{n}"] for n in range(4)]
    first = sides[0].boxes[0]
    assert (first.kind, first.pci, first.root) == ("switch", "0000:19:00.0", "pci0000:18")
    assert pcie_words(first.link) == ("x16", "Gen5")


def test_a_switch_below_a_switch_is_a_box_in_a_box() -> None:
    made = graph(nested())
    drawn = picture(made)
    (side,) = drawn.sides
    (top,) = side.boxes
    assert [(box.kind, names(made, box)) for box in top.boxes] == [
        ("switch", ["GPU0", "NIC0"]), ("switch", ["GPU1", "NIC1"]),
    ]  # fmt: skip
    assert "no GPU and no network card at NUMA 0, 2 and 3" in drawn.remarks


def test_ports_of_one_card_hang_at_their_root_complex_without_a_bridge() -> None:
    made = graph(l40sx4())
    assert [(box.kind, names(made, box)) for box in picture(made).sides[1].boxes] == [
        ("root", ["GPU2"]), ("root", ["GPU3"]), ("root", ["NIC0", "NIC1"]),
    ]  # fmt: skip


def test_a_bridge_that_parts_two_devices_is_drawn_though_nobody_says_that_it_is_a_switch() -> None:
    rows = {name: row for name, row in h100x8().items() if not name.startswith("bridge:")}
    made = graph(rows)
    assert [box.kind for box in picture(made).sides[0].boxes] == ["bridge"] * 4


def test_cells_make_boxes_where_there_is_no_tree() -> None:
    made = cube_mesh()
    sides = picture(made).sides
    assert [side.name for side in sides] == ["CPUs 0-15,32-47", "CPUs 16-31,48-63"]
    (host,) = sides[0].boxes
    assert host.kind == "PHB"
    assert [(box.kind, names(made, box)) for box in host.boxes] == [
        ("PIX", ["GPU0", "GPU1", "mlx5_0"]), ("PIX", ["GPU2", "GPU3", "mlx5_1"]),
    ]  # fmt: skip
    made = lopsided()
    assert [(len(side.all()), len(side.boxes)) for side in picture(made).sides] == [(6, 2), (2, 1)]


def test_a_card_that_no_cell_places_is_in_no_numa_node() -> None:
    made = bridged_pairs()
    assert names(made, picture(made).sides[0]) == ["GPU0", "GPU1", "GPU2", "mlx5_0"]
    made = stray()
    assert [side.name for side in picture(made).sides] == ["NUMA 0", "NUMA 1", None]
    assert sorted(names(made, picture(made).sides[2])) == ["NIC0", "NIC1", "NIC2"]


def test_no_numa_node_is_made_up() -> None:
    (side,) = picture(graph(hidden())).sides
    assert (side.name, side.socket, side.cpus, side.boxes) == (None, None, None, ())


def test_each_way_of_nvlinks_has_its_state() -> None:
    drawn = picture(graph(link_down()))
    assert states(drawn) == {
        0: "up", 1: "up", 2: "some", 3: "up", 4: "up", 5: "up", 6: "down", 7: "unknown",
    }  # fmt: skip
    assert [uplink.links.word for uplink in drawn.uplinks][-3:] == ["NV18", "0 of 18", "NV18?"]
    assert "GPU2: 17 of 18 NVLinks up, down: link 6" in drawn.remarks
    assert "GPU6: 0 of 18 NVLinks up, down: links 0-17" in drawn.remarks
    assert "GPU5: PCIe x8 of x16" in drawn.remarks
    assert drawn.remarks[-1] == "GPU3: PCIe Gen1 of 5, as is usual at rest"
    assert sum("ACS" in remark for remark in drawn.remarks) == 1
    assert [(switch.links.up, switch.links.total) for switch in drawn.switches if switch.links] == [
        (30, 40), (23, 32), (30, 40), (24, 32),
    ]  # fmt: skip


def test_nothing_is_remarked_of_a_machine_that_is_whole() -> None:
    drawn = picture(graph(h100x8()))
    assert drawn.remarks == ()
    assert nvlink_words(graph(h100x8()), drawn) == ["all 8 GPUs: NV18 through 4 NVSwitches, 478 GB/s each way"]
    made = graph(sixteen())
    assert nvlink_words(made, picture(made)) == ["all 16 GPUs: NV6 through 12 NVSwitches, 150 GB/s each way"]


def test_links_between_two_gpus_are_counted_at_both_ends() -> None:
    drawn = picture(graph(nested()))
    (bond,) = drawn.bonds
    assert (bond.links.state, bond.links.word, bond.links.down) == ("some", "3 of 4", (2,))
    assert states(drawn) == {0: "down", 1: "down"}


def test_cells_that_no_mesh_could_make_go_through_switches() -> None:
    made = uniform(4, "NV18")
    drawn = picture(made)
    assert (drawn.fabric, drawn.bonds, set(states(drawn).values())) == ("NVSwitches", (), {"up"})
    drawn = picture(uniform(4, "NV4"))
    assert (drawn.fabric, drawn.uplinks, len(drawn.bonds)) == (None, (), 6)
    assert nvlink_words(uniform(4, "NV4"), drawn) == ["all 4 GPUs: NV4 between any two"]


def test_a_gpu_with_fewer_links_than_its_peers_stands_out_in_cells_too() -> None:
    made = fewer()
    drawn = picture(made)
    assert states(drawn) == {**dict.fromkeys(range(7), "up"), 2: "some", 7: "unknown"}
    assert drawn.remarks == ("GPU2: NV17, where the others have NV18",)
    assert "not known: GPU7" in nvlink_words(made, drawn)


def test_a_lost_gpu_is_silent_and_one_in_mig_mode_is_not() -> None:
    drawn = picture(graph(lost()))
    assert drawn.silent == {4}
    assert states(drawn)[4] == "unknown"
    drawn = picture(graph(mig()))
    assert drawn.silent == frozenset()
    assert drawn.mig == {0, 1}
    assert set(states(drawn)) == set(range(2, 8))
    assert "off in MIG mode: GPU0 and GPU1" in nvlink_words(graph(mig()), drawn)


def test_without_the_driver_nothing_is_said_of_nvlinks() -> None:
    made = graph(kernel_only())
    drawn = picture(made)
    assert set(states(drawn).values()) == {"unknown"}
    assert (drawn.silent, nvlink_words(made, drawn)) == (frozenset(), ["not known: all 8 GPUs"])


def test_links_that_could_have_a_bridge_and_have_none_are_no_fault() -> None:
    drawn = picture(graph(unbridged()))
    assert set(states(drawn).values()) == {"open"}
    assert drawn.remarks == (
        "GPU0, GPU1, GPU2 and GPU3: 0 of 4 NVLinks up, down: links 0-3, and no other end shows, as without a bridge",
    )


def test_links_to_a_processor_are_no_fabric() -> None:
    rows = l40sx4()
    first = min(name for name in rows if name.startswith("gpu:"))
    rows[first] |= {"nvlink_peers": ("npu:0004:00:00.0",) * 3 + (None,) * 3, "nvlink_up": (1, 1, 1, 1, None, 1)}
    made = graph(rows)
    drawn = picture(made)
    assert drawn.fabric is None
    assert nvlink_words(made, drawn) == ["GPU0: NV3 to the processor"]
    assert [(uplink.end, uplink.links.up) for uplink in drawn.uplinks if uplink.place == 0] == [
        ("npu", 3), ("unknown", 2),
    ]  # fmt: skip
    assert "GPU0: 2 of 3 NVLinks up, not known: 1, where they end is not known" in drawn.remarks


def test_nvlinks_are_named_by_their_pairs_or_said_to_be_absent() -> None:
    made = bridged_pairs()
    assert nvlink_words(made, picture(made)) == ["NV12: GPU0-GPU3, GPU1-GPU2, GPU4-GPU5"]
    made = graph(l40sx4())
    assert nvlink_words(made, picture(made)) == ["none between these GPUs"]
    made = graph(alone())
    assert nvlink_words(made, picture(made)) == []


@pytest.mark.parametrize(
    ("link", "state", "words"),
    [
        (PcieLink(), "unknown", ()),
        (PcieLink(lanes=16, generation=5), "unknown", ("x16", "Gen5")),
        (PcieLink(lanes=16, generation=5, most_lanes=16, most_generation=5), "full", ("x16", "Gen5")),
        (PcieLink(lanes=16, most_lanes=16), "full", ("x16",)),
        (PcieLink(lanes=8, generation=1, most_lanes=16, most_generation=5), "narrow", ("x8 of x16", "Gen1 of 5")),
        (PcieLink(lanes=16, generation=1, most_lanes=16, most_generation=5), "slow", ("x16", "Gen1 of 5")),
    ],
)
def test_a_pcie_link_is_judged_by_its_width_first(link: PcieLink, state: str, words: tuple[str, ...]) -> None:
    assert (pcie_state(link), pcie_words(link)) == (state, words)
    assert (pcie_state(None), pcie_words(None)) == ("unknown", ())


def test_products_are_counted() -> None:
    assert inventory(graph(lost())) == "7 x NVIDIA H100 80GB HBM3, 1 GPU of unknown product, 8 network cards"
    assert inventory(graph(alone())) == "1 x NVIDIA L40S"
    assert inventory(Topology(devices=(), levels=(), bonds=())) == "no GPU"


def test_text_fits_its_place() -> None:
    assert cut("mlx5_bond_0", 6, columns) == "mlx5_…"
    assert end_of("mlx5_bond_0", 7, columns) == "…bond_0"
    assert cut("mlx5", 4, columns) == end_of("mlx5", 4, columns) == "mlx5"
    assert columns("网卡") == 4
    assert wrap("one two three", 7, columns) == ["one two", "three"]
    assert wrap("abcdefgh ij", 3, columns) == ["abc", "def", "gh", "ij"]
    assert wrap("", 3, columns) == []


def test_links_that_are_down_are_told_by_their_numbers() -> None:
    down = Links(up=12, total=18, down=(0, 1, 2, 5, 7, 8))
    assert state_words(down) == "12 of 18 NVLinks up, down: links 0-2, 5, 7-8"
    assert state_words(Links(up=18, total=18)) == "18 of 18 NVLinks up"


def test_a_graph_of_cells_that_are_all_missing_is_drawn_as_not_known() -> None:
    made = cells("GPU0 X - -\nGPU1 - X -\nNIC0 - - X")
    drawn = picture(made)
    assert [side.name for side in drawn.sides] == [None]
    assert set(states(drawn).values()) == {"unknown"}
    assert msgspec.structs.asdict(made)["notes"] == ()
