"""The graph from what was measured: each half alone, both together, and what is missing said in words."""

import pytest

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.model.topology import Device
from gpuguard.topology.build import between, build
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8, l40sx4


def only(rows: Rows, *columns: str) -> Rows:
    """The rows with these columns alone."""
    return {name: {key: value for key, value in row.items() if key in columns} for name, row in rows.items()}


def without(rows: Rows, *columns: str) -> Rows:
    """The rows without columns that begin with one of these."""
    return {
        name: {key: value for key, value in row.items() if not key.startswith(columns)} for name, row in rows.items()
    }


def gpu(n: int) -> SubjectId:
    return SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")


def test_eight_gpus_and_their_cards_stand_in_the_order_of_the_matrix() -> None:
    made = graph(h100x8())
    assert [device.name for device in made.devices] == [f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(8)]
    assert [device.alias for device in made.nics] == [f"mlx5_{n}" for n in range(8)]
    assert made.notes == ()
    assert [node.cpus for node in made.numa] == ["0-55,112-167", "56-111,168-223"]
    assert made.numa[0].distances == ((0, 10), (1, 21))
    assert {bridge.kind for bridge in made.bridges} == {"root_port", "upstream", "downstream"}
    assert (made.host, made.machine) == ("node17", "hgx-h100-8")


def test_cells_are_those_of_nvidia_smi() -> None:
    made = graph(h100x8())
    row = [made.cell(0, other) for other in range(16)]
    assert row[:8] == ["X", *["NV18"] * 7]
    assert row[8:] == ["PIX", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert all(made.cell(i, j) == made.cell(j, i) for i in range(16) for j in range(16))


def test_a_switch_connected_gpu_with_a_link_down_reads_so_for_all_its_peers() -> None:
    rows = h100x8()
    rows[gpu(2)]["nvlink_up"] = (1,) * 6 + (0,) + (1,) * 11
    made = graph(rows)
    assert [made.cell(2, other) for other in range(8)] == ["NV17", "NV17", "X", *["NV17"] * 5]
    assert made.cell(0, 1) == "NV18"


def test_links_between_two_gpus_are_counted_one_by_one() -> None:
    rows = l40sx4()
    names = sorted(name for name in rows if name.startswith("gpu:"))
    first, second = (name.partition(":")[2] for name in names[:2])
    rows[names[0]] |= {"nvlink_peers": (f"gpu:{second}", f"gpu:{second}", None, None), "nvlink_up": (1, 1, 0, 0)}
    rows[names[1]] |= {"nvlink_peers": (None, f"gpu:{first}", f"gpu:{first}", None), "nvlink_up": (0, 1, 1, 0)}
    made = graph(rows)
    assert made.cell(0, 1) == "NV2"
    assert [made.cell(2, other) for other in (0, 1, 3)] == ["SYS", "SYS", "NODE"]


def test_links_that_are_up_and_end_nobody_knows_where_are_not_none() -> None:
    rows = without(h100x8(), "nvlink_peers", "nvlinks_to_switches")
    assert graph(rows).bonds[0][1] is None
    for row in rows.values():
        if "gpu_index" in row:
            row["nvlinks_to_switches"] = 18
    assert graph(rows).cell(0, 1) == "NV18"
    rows[gpu(0)]["nvlink_up"] = (0,) * 2 + (1,) * 16
    assert graph(rows).cell(0, 1) == "NV16"


def test_links_that_are_all_down_are_known_to_be_none() -> None:
    rows = h100x8()
    rows[gpu(0)] |= {"nvlink_peers": (None,) * 18, "nvlink_up": (0,) * 18}
    assert graph(rows).cell(0, 1) == "NODE"


def test_cards_without_nvlink_have_none_and_that_is_known() -> None:
    made = graph(l40sx4())
    assert made.bonds[0][1] == 0
    assert made.notes == ()


def test_the_kernel_alone_tells_levels_and_that_nvlinks_are_not_known() -> None:
    rows = only(h100x8(), "gpu_pci_path", "gpu_numa_node", "nic_pci_path", "nic_numa_node", "nic_rdma", "numa_cpus")
    made = build(rows)
    assert made.bonds[0][1] is None
    assert [made.cell(0, other) for other in (1, 4, 8, 9, 15)] == ["NODE", "SYS", "PIX", "NODE", "SYS"]
    assert made.notes == ("the driver's library does not tell of any GPU: NVLinks are not known there",)


def test_the_driver_alone_tells_levels_between_gpus_and_that_the_tree_is_hidden() -> None:
    rows = {name: row for name, row in without(h100x8(), "gpu_pci_path", "gpu_numa", "gpu_local").items()
            if name.startswith("gpu:")}  # fmt: skip
    rows[gpu(0)] |= {"nvml_cpus": "0-55", "nvml_numa_nodes": "0"}
    made = build(rows)
    assert made.levels[0][1] == "NODE"
    assert made.cell(0, 1) == "NV18"
    assert (made.devices[0].cpus, made.devices[0].node) == ("0-55", 0)
    assert made.devices[1].node is None
    assert any("PCIe tree is hidden" in note for note in made.notes)


def test_the_kernels_processors_come_before_those_that_a_cpuset_left() -> None:
    rows = h100x8()
    rows[gpu(0)] |= {"nvml_cpus": "3", "nvml_numa_nodes": "0"}
    assert graph(rows).devices[0].cpus == "0-55,112-167"


def test_where_the_two_disagree_the_driver_is_shown_and_it_is_said() -> None:
    rows = h100x8()
    rows[gpu(0)]["common_ancestors"] = ("0000:43:00.0", 50)
    rows[gpu(1)]["common_ancestors"] = ("0000:1b:00.0", 50)
    made = graph(rows)
    assert made.levels[0][1] == "SYS"
    assert made.notes == ("the driver calls GPU0 and GPU1 SYS, the kernel's tree NODE; the driver's word is shown",)


def test_a_gpu_that_does_not_answer_has_unknown_links_and_its_place_in_the_tree() -> None:
    rows = h100x8()
    rows[gpu(3)] = {key: value for key, value in rows[gpu(3)].items() if key.startswith(("gpu_pci_path", "gpu_numa"))}
    rows[gpu(3)]["gpu_up"] = 0
    made = graph(rows)
    assert made.devices[3].pci == "0000:61:00.0"
    assert made.bonds[0][3] is None
    assert made.cell(0, 3) == "NODE"
    assert made.notes == ("the driver's library does not tell of GPU3: NVLinks are not known there",)


def test_mig_turns_links_off_and_shows_the_instances() -> None:
    rows = h100x8()
    rows[gpu(0)]["mig_mode"] = 1
    rows[SubjectId("mig:0000:1b:00.0/2")] = {"mig_gpu_instance": 2, "mig_profile": "3g.40gb"}
    made = graph(rows)
    assert made.cell(0, 1) == "NODE"
    assert made.devices[0].gpu is not None
    assert made.devices[0].gpu.instances == ("3g.40gb",)
    assert made.notes == ("GPU0 in MIG mode: NVLinks are off there",)


def test_a_virtual_machine_without_numa_says_so_and_never_node_0() -> None:
    rows: Rows = {
        SubjectId(f"gpu:0000:00:0{n}.0"): {"gpu_pci_path": ("pci0000:00",), "gpu_numa_node": None, "gpu_index": n - 4,
                                           "gpu_up": 1}
        for n in (4, 5)
    }  # fmt: skip
    made = build(rows)
    assert made.cell(0, 1) == "PHB"
    assert made.devices[0].nodes is None
    assert len(made.notes) == 2


def test_nothing_at_all_is_a_graph_without_devices() -> None:
    made = build({})
    assert made.devices == ()
    assert made.notes == ("no GPU is known: neither the kernel nor the driver tells of one",)


PORT = ("pci0000:10", "0000:10:01.0")


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        ((*PORT, "up", "down0"), (*PORT, "up", "down1"), "PIX"),
        ((*PORT, "up", "down0"), (*PORT, "up", "down0"), "PIX"),  # two functions of one card
        ((*PORT, "up", "down0", "up2", "down2"), (*PORT, "up", "down1"), "PXB"),
        ((*PORT, "up"), ("pci0000:10", "0000:10:03.0"), "PHB"),
        (PORT, ("pci0000:20", "0000:20:01.0"), "NODE"),
        ((), PORT, None),
    ],
)
def test_levels_follow_from_the_tree(one: tuple[str, ...], other: tuple[str, ...], level: str | None) -> None:
    made = [Device(name=str(n), kind="gpu", path=path, nodes="0") for n, path in enumerate((one, other))]
    assert between(*made) == level


@pytest.mark.parametrize(("nodes", "count", "level"), [
    (("0", "1"), 2, "SYS"), ((None, "0"), 2, None), ((None, None), 1, "NODE"),
])  # fmt: skip
def test_without_a_numa_node_two_roots_are_as_far_as_anybody_knows(
    nodes: tuple[str | None, str | None], count: int, level: str | None
) -> None:
    roots = (PORT, ("pci0000:20", "0000:20:01.0"))
    made = [Device(name="", kind="gpu", path=path, nodes=node) for path, node in zip(roots, nodes, strict=True)]
    assert between(*made, count) == level


@pytest.mark.parametrize("broken", [
    {"nvlink_peers": "NV18"}, {"nvlink_up": (None, 1)}, {"common_ancestors": ("0000:43:00.0",)}, {"gpu_index": None},
    {"gpu_pci_path": None}, {"nvlink_peers": None}, {"p2p_read": ("0000:43:00.0", 99)}, {"gpu_numa_node": None},
])  # fmt: skip
def test_an_odd_value_spoils_no_more_than_itself(broken: Values) -> None:
    rows = h100x8()
    rows[gpu(0)] |= broken
    made = graph(rows)
    assert len(made.devices) == 16
    assert made.cell(1, 2) == "NV18"
