"""Each difference by itself, told once; what is unknown or explained is none."""

import re
from collections.abc import Callable
from typing import get_args, get_type_hints

import msgspec
import pytest

from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.readings import Value, Values
from gpuguard.model.topology import Difference, Topology
from gpuguard.runtime.assembly import RulesFolder
from gpuguard.topology.drift import ORDER, compare, judge
from gpuguard.topology.learning import learn
from gpuguard.topology.profiles import Expected, Matrix, expect, parse, parse_learned
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8, l40sx4

PROFILES = parse(RulesFolder("topology_drift").texts("topology"))
DGX = PROFILES["dgx-h100"]


def gpu(n: int) -> SubjectId:
    return SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")


def nic(n: int) -> SubjectId:
    return SubjectId(f"nic:mlx5_{n}")


def learned(rows: Rows) -> Expected:
    return parse_learned(learn(graph(rows), "2025-06-01"))


LEARNED = learned(h100x8())


def changed(name: str, **columns: object) -> Rows:
    rows = h100x8()
    rows[SubjectId(name)] |= columns  # type: ignore[arg-type]  # as Values hold
    return rows


def without(name: str) -> Rows:
    rows = h100x8()
    del rows[SubjectId(name)]
    return rows


def told(rows: Rows, expected: Expected = LEARNED, busy: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    return [(one.kind, one.subject, one.words) for one in compare(graph(rows), expected, busy)]


def test_every_kind_has_its_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(get_args(get_type_hints(Difference)["kind"]))


@pytest.mark.parametrize("rows", [h100x8(), l40sx4()], ids=["h100x8", "l40sx4"])
def test_a_machine_does_not_differ_from_itself_nor_from_its_kind(rows: Rows) -> None:
    verdict = judge(graph(rows), learned(rows))
    assert verdict.differences == ()
    assert {kind for kind, _ in verdict.unknown} == {"pcie_speed"}  # of links at rest nobody can tell
    kind = expect(rows, PROFILES)
    assert kind is not None
    assert compare(graph(rows), kind) == ()


def test_a_dgx_is_one() -> None:
    assert judge(graph(h100x8()), DGX).differences == ()


# --- one fact changed, one difference -------------------------------------------------------------------------------

ONE = {
    "gpu gone": (without(gpu(3)), ("gpu_missing", gpu(3), "GPU3 (0000:61:00.0) is gone")),
    "link down": (
        changed(gpu(2), nvlink_up=(1,) * 6 + (0,) + (1,) * 11),
        ("nvlinks", gpu(2), "GPU2 has 17 of 18 NVLinks up; down: link 6"),
    ),
    "narrow": (changed(gpu(5), pcie_link_width=8), ("pcie_width", gpu(5), "GPU5 runs on 8 PCIe lanes, 16 expected")),
    "narrow slot": (
        changed(gpu(5), pcie_link_width=8, pcie_link_width_limit=8),
        ("pcie_width", gpu(5), "GPU5 and its slot can do 8 PCIe lanes together, 16 expected"),
    ),
    "slow slot": (
        changed(gpu(5), pcie_link_generation=4, pcie_link_generation_limit=4),
        ("pcie_speed", gpu(5), "GPU5 and its slot can do PCIe generation 4 together, 5 expected"),
    ),
    "narrow card": (
        changed(nic(1), nic_link_width=4), ("pcie_width", nic(1), "mlx5_1 runs on 4 PCIe lanes, 16 expected"),
    ),
    "card gone": (without(nic(4)), ("nic_missing", nic(4), "mlx5_4 (0000:9e:00.0) is gone")),
    "numa": (changed(gpu(0), gpu_numa_node=1), ("numa", gpu(0), "GPU0 is on NUMA node 1, 0 expected")),
    "numa of a card": (changed(nic(0), nic_numa_node=1), ("numa", nic(0), "mlx5_0 is on NUMA node 1, 0 expected")),
    "another gpu": (
        changed(gpu(6), gpu_uuid="GPU-new"),
        ("gpu_moved", gpu(6),
         "GPU6 at 0000:d1:00.0 is another GPU than before: GPU-new, not GPU-00000000-0000-4000-8000-000000000006"),
    ),
    "another card": (
        changed(nic(6), nic_guid="5c25:7303:0001:ffff"),
        ("unexpected", nic(6), "mlx5_6 is another card than before: GUID 5c25:7303:0001:ffff, not 5c25:7303:0001:0006"),
    ),
    "silent": (
        changed(gpu(4), gpu_index=None, gpu_up=0),
        ("gpu_missing", gpu(4), "GPU4 at 0000:9d:00.0 is on the bus, but the driver does not answer for it"),
    ),
    "acs": (
        changed("bridge:0000:1a:00.0", bridge_p2p_redirect=1),
        ("acs", "node", "ACS is on at 0000:1a:00.0: what GPU0 and mlx5_0 write to each other goes up to the root "
         "first; GPUDirect needs it off"),
    ),
    "p2p": (
        changed(gpu(1), p2p_read=tuple(p for bus in H100_BUSES if bus != "43" for p in (f"0000:{bus}:00.0", 3))),
        ("p2p", gpu(1), "GPU1 cannot reach the memory of GPU0 and 6 more: TNS, OK expected"),
    ),
    "numa nodes": (
        changed("node", numa_cpus=("0", "0-27", "1", "28-55", "2", "56-83", "3", "84-111")),
        ("numa", "node", "the machine has 4 NUMA nodes, 2 expected: a setting of the firmware (NPS, SNC)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ONE)
def test_one_fact_changed_is_one_difference(what: str) -> None:
    rows, difference = ONE[what]
    if what == "p2p":  # the driver tells it of both
        for n in (0, *range(2, 8)):
            parts = list(rows[gpu(n)]["p2p_read"])  # type: ignore[arg-type]  # it is a tuple
            parts[parts.index("0000:43:00.0") + 1] = 3
            rows[gpu(n)]["p2p_read"] = tuple(parts)
    assert told(rows) == [difference]


def test_two_gpus_that_changed_places_are_one_difference() -> None:
    rows = h100x8()
    one, other = rows[gpu(1)]["gpu_uuid"], rows[gpu(6)]["gpu_uuid"]
    rows[gpu(1)]["gpu_uuid"], rows[gpu(6)]["gpu_uuid"] = other, one
    (difference,) = told(rows)
    assert difference[:2] == ("gpu_swapped", gpu(1))
    assert difference[2] == f"GPU1 and GPU6 changed places: {one} is at 0000:d1:00.0, expected at 0000:43:00.0"


def test_three_gpus_in_a_ring_moved() -> None:
    rows = h100x8()
    uuids = [rows[gpu(n)]["gpu_uuid"] for n in (0, 1, 2)]
    for n, uuid in zip((1, 2, 0), uuids, strict=True):
        rows[gpu(n)]["gpu_uuid"] = uuid
    assert [kind for kind, _, _ in told(rows)] == ["gpu_moved"] * 3


def test_a_gpu_in_another_slot_moved_and_is_not_missing() -> None:
    rows = h100x8()
    rows[SubjectId("gpu:0000:f0:00.0")] = rows.pop(gpu(7))
    differences = compare(graph(rows), LEARNED)
    assert [(one.kind, one.expected, one.found) for one in differences] == [
        ("gpu_moved", "0000:df:00.0", "0000:f0:00.0")
    ]


def test_a_card_at_the_place_of_another_moved_and_its_gpu_is_another() -> None:
    """The same card (its GUID) answers at the place of mlx5_7, which is gone."""
    rows = h100x8()
    there = rows.pop(nic(7))
    for column in ("nic_pci", "nic_pci_path", "nic_numa_node"):
        rows[nic(1)][column] = there[column]
    assert told(rows) == [
        ("nic_missing", nic(7), "mlx5_7 (0000:e0:00.0) is gone"),
        ("nic_moved", nic(1),
         "mlx5_1 is at 0000:e0:00.0, expected at 0000:44:00.0: nearest to GPU7 now, to GPU1 before"),
    ]  # fmt: skip


def test_a_card_that_hangs_elsewhere_moved_also_where_its_address_is_the_same() -> None:
    path = ("pci0000:80", "0000:80:01.0")
    (difference,) = told(changed(nic(3), nic_pci_path=path))
    assert difference[:2] == ("nic_moved", nic(3))


def test_a_card_with_another_name_at_its_place_is_news() -> None:
    rows = h100x8()
    rows[SubjectId("nic:mlx5_bond0")] = rows.pop(nic(2)) | {"nic_rdma": "mlx5_bond0"}
    assert told(rows) == [
        ("unexpected", "nic:mlx5_bond0", "the card at 0000:53:00.0 is called mlx5_bond0, mlx5_2 expected")
    ]


def test_a_guid_of_zeros_is_none() -> None:
    rows = h100x8()
    for n in range(8):
        rows[nic(n)]["nic_guid"] = "0000:0000:0000:0000"
    assert told(rows, learned(rows)) == []
    assert told(rows) == []


def test_what_nobody_listed_is_news() -> None:
    rows = h100x8()
    rows[SubjectId("gpu:0000:f0:00.0")] = {"gpu_pci_path": ("pci0000:f0",), "gpu_index": 8}
    rows[SubjectId("nic:mlx5_9")] = {"nic_pci": "0000:f1:00.0", "nic_rdma": "mlx5_9"}
    rows[SubjectId("nic:eno1")] = {"nic_pci": "0000:02:00.0", "nic_netdevs": "eno1"}  # no card for computing
    assert [(kind, subject) for kind, subject, _ in told(rows)] == [
        ("unexpected", "gpu:0000:f0:00.0"), ("unexpected", "nic:mlx5_9"),
    ]  # fmt: skip


def test_the_order_of_the_indices_is_no_difference() -> None:
    rows = h100x8()
    for n in range(8):
        rows[gpu(n)]["gpu_index"] = 7 - n
    assert told(rows) == []


def test_farther_than_before_is_told_once_for_the_device_that_is_farther() -> None:
    """The kernel's tree says the same; the driver calls GPU0 and its neighbours SYS, as one host bridge failed over."""
    rows = h100x8()
    expected = msgspec.structs.replace(
        LEARNED,
        matrix=Matrix(devices=LEARNED.matrix.devices, cells=cells(lambda cell: "NODE" if "NV" in cell else cell)),
    )
    for n in range(8):
        rows[gpu(n)] = {k: v for k, v in rows[gpu(n)].items() if not k.startswith("nvlink")}
        told_of = list(rows[gpu(n)]["common_ancestors"])  # type: ignore[arg-type]  # it is a tuple
        for m in range(1, 4) if n == 0 else [0] if n < 4 else []:
            told_of[told_of.index(f"0000:{H100_BUSES[m]}:00.0") + 1] = 50
        rows[gpu(n)]["common_ancestors"] = tuple(told_of)
    # GPUs of two sockets were NODE in that file, which they are not here either: that is told of four of them.
    lines = [words for kind, _, words in told(rows, expected) if kind == "distance"]
    assert lines[0] == "SYS between GPU0 and GPU1 and 6 more, NODE expected"


def cells(change: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(" ".join(change(cell) for cell in row.split()) for row in LEARNED.matrix.cells)


# --- by kind --------------------------------------------------------------------------------------------------------


def test_a_missing_gpu_of_a_dgx_is_named_by_where_it_should_be() -> None:
    assert told(without(gpu(3)), DGX) == [("gpu_missing", gpu(3), "the GPU at 0000:61:00.0 is gone: 7 of 8 are there")]
    assert told(without(gpu(3)), PROFILES["hgx-h100-8"]) == [("gpu_missing", "node", "1 GPU missing: 7 of 8 are there")]


def test_an_address_that_nobody_lists_is_no_gpu_too_few() -> None:
    rows = h100x8()
    rows[SubjectId("gpu:0000:f0:00.0")] = rows.pop(gpu(7))
    assert told(rows, DGX) == []


def test_a_missing_card_of_a_dgx_and_the_gpu_without_one_are_one_difference() -> None:
    assert told(without(nic(4)), DGX) == [
        ("nic_missing", "node", "1 network card missing: 7 of 8 that can do RDMA are there; GPU4 has none near")
    ]


def test_a_card_that_is_far_from_its_gpu_is_told_of_the_gpu() -> None:
    rows = h100x8()
    rows[nic(4)] |= {"nic_pci_path": ("pci0000:80", "0000:80:01.0"), "nic_pci": "0000:81:00.0"}
    assert told(rows, DGX) == [("distance", gpu(4), "GPU4 has no network card at PXB or nearer")]


def test_a_card_without_its_rdma_module_is_a_card() -> None:
    assert told(changed(nic(4), nic_rdma=None), DGX) == []


def test_a_gpu_for_a_display_is_none_of_those_that_are_expected() -> None:
    rows = h100x8()
    rows[SubjectId("gpu:0000:03:00.0")] = {
        "gpu_pci_path": ("pci0000:00", "0000:00:05.0"), "gpu_numa_node": 0, "gpu_index": 8, "gpu_pci_id": "10de:1fb1",
        "pcie_link_width": 4, "nvlink_up": (0, 0), "nvlink_peers": (None, None),
    }  # fmt: skip
    assert told(rows, DGX) == []
    del rows[gpu(2)]
    assert [kind for kind, _, _ in told(rows, DGX)] == ["gpu_missing"]


def test_gpus_on_the_other_socket_and_a_firmware_that_cuts_sockets() -> None:
    rows = h100x8()
    rows[gpu(3)]["gpu_numa_node"] = 1
    assert told(rows, DGX) == [("numa", "node", "the GPUs of the sockets are 5 and 3; 4 and 4 expected")]
    rows = h100x8()
    rows[SubjectId("node")] |= {
        "numa_cpus": ("0", "0-27", "1", "28-55", "2", "56-83", "3", "84-111"),
        "numa_sockets": ("0", 0, "1", 0, "2", 1, "3", 1),
    }
    for n in range(8):
        rows[gpu(n)]["gpu_numa_node"] = n // 2
    assert told(rows, DGX) == []


def test_links_that_nothing_leads_through_are_told_as_distance() -> None:
    """All links are up, and yet two GPUs of a mesh have two between them instead of four."""
    rows: Rows = {SubjectId("node"): {"machine_profile": "hgx-a100-4"}}
    buses = ("01", "41", "81", "c1")
    for n, bus in enumerate(buses):
        others = [other for other in buses if other != bus]
        peers = [f"gpu:0000:{other}:00.0" for other in others for _ in range(4)]
        if n < 2:
            mine, third = (f"gpu:0000:{buses[1 - n]}:00.0", f"gpu:0000:{buses[2]}:00.0")
            peers = [third if peer == mine and place % 4 < 2 else peer for place, peer in enumerate(peers)]
        rows[SubjectId(f"gpu:0000:{bus}:00.0")] = {"gpu_index": n, "nvlink_peers": tuple(peers), "nvlink_up": (1,) * 12}
    kind = expect(rows, PROFILES)
    assert kind is not None
    assert told(rows, kind) == [("distance", "gpu:0000:01:00.0", "NV2 between GPU0 and GPU1, NV4 expected")]


def test_one_link_of_a_mesh_is_down_at_both_of_its_ends() -> None:
    rows: Rows = {SubjectId("node"): {"machine_profile": "hgx-a100-4"}}
    buses = ("01", "41", "81", "c1")
    for n, bus in enumerate(buses):
        peers = tuple(f"gpu:0000:{other}:00.0" for other in buses if other != bus for _ in range(4))
        up = (0, *(1,) * 11) if n < 2 else (1,) * 12
        rows[SubjectId(f"gpu:0000:{bus}:00.0")] = {"gpu_index": n, "nvlink_peers": peers, "nvlink_up": up}
    kind = expect(rows, PROFILES)
    assert kind is not None
    assert [(kind, subject[-7:-5]) for kind, subject, _ in told(rows, kind)] == [("nvlinks", "01"), ("nvlinks", "41")]


# --- speed, load, and what is not known -----------------------------------------------------------------------------


def test_speed_now_is_judged_under_load_alone() -> None:
    rows = changed(gpu(5), pcie_link_generation=1)
    assert told(rows) == []
    assert ("pcie_speed", gpu(5)) in judge(graph(rows), LEARNED).unknown
    assert told(rows, busy=(gpu(5),)) == [
        ("pcie_speed", gpu(5), "GPU5 runs at PCIe generation 1 under load, 5 expected")
    ]
    assert ("pcie_speed", gpu(5)) not in judge(graph(h100x8()), LEARNED, (gpu(5),)).unknown


def test_mig_turns_links_off_and_that_is_no_difference() -> None:
    rows = changed(gpu(0), mig_mode=1, nvlink_up=(0,) * 18)
    rows[gpu(0)]["p2p_read"] = tuple(p for bus in H100_BUSES[1:] for p in (f"0000:{bus}:00.0", 5))
    assert told(rows) == []
    assert told(rows, DGX) == []


def test_links_of_which_nobody_knows_are_no_difference() -> None:
    rows = changed(gpu(0), nvlink_up=(*(1,) * 16, None, None))
    verdict = judge(graph(rows), LEARNED)
    assert verdict.differences == ()
    assert ("nvlinks", gpu(0)) in verdict.unknown
    rows[gpu(0)]["nvlink_up"] = (*(1,) * 15, 0, None, None)
    assert told(rows) == [("nvlinks", gpu(0), "GPU0 has 15 of 18 NVLinks up; down: link 15")]


def test_the_kernel_alone_and_the_driver_alone_differ_in_nothing() -> None:
    rows = h100x8()
    kernel = ("gpu_pci_path", "gpu_numa", "nic_", "bridge_", "numa_", "machine_profile")
    tree = {name: {k: v for k, v in row.items() if k.startswith(kernel)} for name, row in rows.items()}
    driver = {
        name: {k: v for k, v in row.items() if not k.startswith((*kernel, "gpu_local", "cpu_"))}
        for name, row in rows.items()
        if name.startswith("gpu:")
    }
    for part in (tree, driver):
        assert told(part) == []
        assert told(part, DGX) == []


def test_where_no_gpu_is_known_nobody_could_look() -> None:
    for expected in (LEARNED, DGX, PROFILES["ec2-p5"]):
        verdict = judge(graph({}), expected)
        assert verdict.differences == ()
        assert any(kind == "gpu_missing" for kind, _ in verdict.unknown)


def test_a_virtual_machine_that_hides_its_tree_is_no_difference() -> None:
    rows: Rows = {
        SubjectId(f"gpu:0000:00:0{n}.0"): {
            "gpu_pci_path": ("pci0000:00",), "gpu_numa_node": None, "gpu_index": n, "gpu_up": 1,
            "nvlink_peers": ("nvswitch",) * 18, "nvlink_up": (1,) * 18, "pcie_link_width": 1,
        }
        for n in range(8)
    }  # fmt: skip
    for name in ("ec2-p5", "google-a3-ultra", "azure-nd-h100-v5"):
        expected = msgspec.structs.replace(PROFILES[name], nics=None)
        assert told(rows, expected) == []


def test_links_without_peers_yet_are_unknown_where_the_driver_answers() -> None:
    """GPUs are listed with their index before the first look at their links."""
    rows = h100x8()
    for n in range(8):
        rows[gpu(n)] = {key: value for key, value in rows[gpu(n)].items() if not key.startswith("nvlink")}
    assert told(rows, DGX) == []
    assert told(rows) == []


def test_a_matrix_without_nvlinks_shows_that_there_are_none() -> None:
    made = graph(h100x8())
    bare = [
        msgspec.structs.replace(
            device, pci=None, path=(), gpu=device.gpu and msgspec.structs.replace(device.gpu, links=())
        )
        for device in made.devices
    ]
    none = tuple(tuple(0 for _ in row) for row in made.bonds)
    shown = Topology(devices=tuple(bare), levels=made.levels, bonds=none)
    differences = compare(shown, PROFILES["hgx-h100-8"])
    assert [(one.kind, one.device, one.found) for one in differences] == [("nvlinks", f"GPU{n}", "0") for n in range(8)]
    whole = msgspec.structs.replace(shown, bonds=made.bonds)
    assert compare(whole, PROFILES["hgx-h100-8"]) == ()
    fewer = tuple(
        tuple(17 if bond and 2 in (i, j) else bond for j, bond in enumerate(row)) for i, row in enumerate(made.bonds)
    )
    (difference,) = compare(msgspec.structs.replace(shown, bonds=fewer), PROFILES["hgx-h100-8"])
    assert difference.words == "NV17 between GPU2 and GPU0 and 6 more, NV18 expected"
    cards = [msgspec.structs.replace(device, nic=None) for device in bare]
    assert compare(msgspec.structs.replace(whole, devices=tuple(cards)), DGX) == ()


@pytest.mark.parametrize("expected", [LEARNED, DGX], ids=["learned", "kind"])
def test_no_column_that_becomes_unknown_or_absent_is_a_difference(expected: Expected) -> None:
    """But for what says that a device is there, or answers."""
    whole = h100x8()
    said: dict[str, list[str]] = {}
    for name in (gpu(2), nic(2), SubjectId("bridge:0000:51:00.0"), SubjectId("node")):
        for column in whole[name]:
            for blank in (None, "absent"):
                rows = h100x8()
                row: Values = dict(rows[name])
                if blank is None:
                    row[column] = None
                else:
                    del row[column]
                rows[name] = row
                if words := [words for _, _, words in told(rows, expected)]:
                    said[f"{name} {column}"] = words
    assert {re.sub(r".* ", "", key) for key in said} <= {"gpu_index"}
    assert all("does not answer" in words[0] for words in said.values())


def test_a_gpu_that_is_passed_to_a_guest_has_nothing_to_answer() -> None:
    rows = h100x8()
    for n in (6, 7):
        rows[gpu(n)] = {
            "gpu_pci_path": rows[gpu(n)]["gpu_pci_path"], "gpu_numa_node": 1, "gpu_driver": "vfio-pci"
        }  # fmt: skip
    for expected in (LEARNED, DGX):
        assert told(rows, expected) == []
    rows[gpu(7)]["gpu_driver"] = "nvidia"
    assert [kind for kind, _, _ in told(rows)] == ["gpu_missing"]


def test_numa_nodes_of_memory_alone_come_and_go() -> None:
    """A GPU's own memory is one, from when its driver is there; GB200 has them."""
    rows = h100x8()
    for n in range(2, 10):
        rows[NODE]["numa_cpus"] = (*parts(rows[NODE]["numa_cpus"]), str(n), "")
    assert told(rows) == []
    assert compare(graph(h100x8()), learned(rows)) == ()
    rows[NODE]["numa_cpus"] = (*parts(rows[NODE]["numa_cpus"]), "10", "0-3")
    assert [(kind, words) for kind, _, words in told(rows)] == [
        ("numa", "the machine has 3 NUMA nodes, 2 expected: a setting of the firmware (NPS, SNC)")
    ]
    rows[NODE]["numa_cpus"] = (*parts(rows[NODE]["numa_cpus"]), "11", None)
    assert told(rows) == []  # of one of them nobody knows


def parts(value: Value) -> tuple[int | float | str | None, ...]:
    assert isinstance(value, tuple)
    return value


def test_gpus_that_all_got_other_addresses_have_moved_and_none_is_gone() -> None:
    """As when a card was added and the firmware counts the buses anew: each sits where the next one was."""
    rows = h100x8()
    boards = [rows.pop(gpu(n)) for n in range(8)]
    for bus, board in zip((*H100_BUSES[1:], "e5"), boards, strict=True):
        rows[SubjectId(f"gpu:0000:{bus}:00.0")] = board
    kinds = [kind for kind, _, _ in told(rows)]
    assert kinds.count("gpu_moved") == 8
    assert set(kinds) == {"gpu_moved", "unexpected"}
