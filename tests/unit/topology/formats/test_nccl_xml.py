"""NCCL's file: what its narrow reader takes, the tree as NCCL builds it, and nothing that NCCL knows better."""

from xml.etree import ElementTree

import msgspec
import pytest

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.topology import Device, Gpu, NvLink, Topology
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.nccl_xml import render
from tests.support.layouts import interleaved, lost_and_split, nps4
from tests.support.nccl_reader import Node, read
from tests.support.wirings import Rows, graph, h100x8, l40sx4

GPU0 = SubjectId("gpu:0000:1b:00.0")


def made(topology: Topology) -> Node:
    text = render(topology, Wish())
    ElementTree.fromstring(text)
    return read(text)


def changed(row: SubjectId, **columns: object) -> Topology:
    rows = h100x8()
    rows[row] = {**rows[row], **columns}  # type: ignore[dict-item]
    return graph(rows)


@pytest.mark.parametrize("rows", [h100x8(), l40sx4(), nps4(), interleaved(), lost_and_split()])
def test_a_reader_as_narrow_as_nccls_takes_it(rows: Rows) -> None:
    system = made(graph(rows))
    assert len(system.all("gpu")) == len(graph(rows).gpus)


def test_the_tree_is_as_nccl_builds_it() -> None:
    first, second = made(graph(h100x8())).inside
    assert first.attributes == {
        "numaid": "0", "affinity": "00000000,000000ff,ffffffff,ffff0000,00000000,00ffffff,ffffffff",
        "arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "143",
    }  # fmt: skip
    assert second.attributes["numaid"] == "1"
    switch = first.inside[0]
    # Of root port, upstream and downstream port the upstream one stands for the switch.
    assert switch.attributes["busid"] == "0000:19:00.0"
    assert switch.attributes["class"] == "0x060400"
    gpu, nic = switch.inside
    assert gpu.attributes == {
        "busid": "0000:1b:00.0", "class": "0x030200", "vendor": "0x10de", "device": "0x2330",
        "link_speed": "32.0 GT/s PCIe", "link_width": "16",
    }  # fmt: skip
    assert gpu.inside[0].attributes == {"dev": "0", "sm": "90"}
    assert nic.inside[0].inside[0].attributes == {"name": "mlx5_0", "dev": "0", "speed": "400000"}


def test_two_levels_of_switches_are_two() -> None:
    path = ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "0000:18:00.0", "0000:19:04.0")
    cpu = made(changed(GPU0, gpu_pci_path=path)).inside[0]
    (outer,) = [child for child in cpu.inside if child.attributes["busid"] == "0000:16:00.0"]
    (inner,) = outer.inside
    assert (inner.attributes["busid"], inner.inside[0].attributes["busid"]) == ("0000:18:00.0", "0000:1b:00.0")


def test_a_device_at_a_root_port_hangs_on_the_processors() -> None:
    system = made(graph(l40sx4()))
    assert [[pci.attributes["busid"] for pci in cpu.inside] for cpu in system.inside] == [
        ["0000:17:00.0", "0000:3d:00.0"], ["0000:81:00.0", "0000:81:00.1", "0000:98:00.0", "0000:c1:00.0"],
    ]  # fmt: skip
    assert system.all("nvlink") == []


def test_links_are_what_both_ends_can_do_and_not_what_they_idle_at() -> None:
    idle = changed(GPU0, pcie_link_generation=1, pcie_link_width=8)
    (gpu,) = [pci for pci in made(idle).all("pci") if pci.attributes["busid"] == "0000:1b:00.0"]
    assert (gpu.attributes["link_speed"], gpu.attributes["link_width"]) == ("32.0 GT/s PCIe", "16")
    blind = changed(GPU0, pcie_link_generation_limit=None, pcie_link_width_limit=None)
    (gpu,) = [pci for pci in made(blind).all("pci") if pci.attributes["busid"] == "0000:1b:00.0"]
    assert not {"link_speed", "link_width"} & gpu.attributes.keys()


def nvlinks(topology: Topology) -> list[tuple[str, ...]]:
    return [tuple(link.attributes.values()) for link in made(topology).all("gpu")[0].inside]


def test_nvlinks_are_counted_by_target() -> None:
    assert nvlinks(graph(h100x8())) == [
        (f"0000:0{n}:00.0", count, "0x068000") for n, count in ((5, "5"), (6, "4"), (7, "5"), (8, "4"))
    ]
    assert nvlinks(changed(GPU0, nvlink_peers=("nvswitch",) * 18)) == [("fffffff:ffff:ff", "18", "0x068000")]
    mixed = (*("gpu:0000:43:00.0",) * 4, *("npu:0004:04:00.0",) * 2)
    assert nvlinks(changed(GPU0, nvlink_peers=mixed, nvlink_up=(1, 1, 0, 1, 1, 1))) == [
        ("0000:43:00.0", "3", "0x030200"), ("0004:04:00.0", "2", "0x068001"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "columns",
    [
        {"nvlink_peers": ("nvswitch",) * 17 + (None,)}, {"nvlink_up": (1,) * 17 + (None,)}, {"nvlink_up": (1,) * 20},
        {"nvlink_peers": ("nvswitch:",) * 18},
    ],
)  # fmt: skip
def test_a_part_of_the_nvlinks_is_none(columns: dict[str, object]) -> None:
    """With one link in the file NCCL would not ask for the others."""
    topology = changed(GPU0, **columns)
    assert nvlinks(topology) == []
    assert "<!-- NVLinks of GPU0 are not all known and left out" in render(topology, Wish())


@pytest.mark.parametrize(("told", "family"), [(6, "6"), (23, "143"), (25, "175"), (26, "191")])
def test_a_family_is_numbered_as_nccl_does(told: int, family: str) -> None:
    topology = changed(SubjectId("node"), cpu_family=told, cpu_vendor="AuthenticAMD")
    assert made(topology).inside[0].attributes["familyid"] == family


def test_arm_has_no_vendor_and_an_unknown_architecture_is_left_to_nccl() -> None:
    arm = made(changed(SubjectId("node"), cpu_architecture="aarch64")).inside[0].attributes
    assert arm["arch"] == "arm64"
    assert "vendor" not in arm
    assert "arch" not in made(changed(SubjectId("node"), cpu_architecture="riscv64")).inside[0].attributes


def test_a_mask_that_nccl_could_not_read_is_left_out() -> None:
    cpus = ("0-447", "448-895")
    topology = changed(SubjectId("node"), numa_cpus=("0", cpus[0], "1", cpus[1]))
    assert len(made(topology).inside[0].attributes["affinity"]) == 251
    topology = changed(SubjectId("node"), numa_cpus=("0", cpus[0], "1", "448-927"))
    assert "affinity" not in made(topology).inside[0].attributes


def test_processors_in_a_form_that_is_not_known_are_left_to_nccl() -> None:
    assert "affinity" not in made(changed(SubjectId("node"), numa_cpus=("0", "0-55", "1", "many"))).inside[0].attributes


def test_a_hidden_tree_hangs_on_a_node_that_nobody_knows() -> None:
    rows: Rows = {}
    for name, row in h100x8().items():
        if name.startswith(("gpu:", "nic:")):
            gone = ("gpu_pci_path", "gpu_numa_node", "gpu_local_cpus", "nic_pci_path", "nic_numa_node")
            rows[name] = {key: value for key, value in row.items() if key not in gone}
    text = render(graph(rows), Wish())
    (cpu,) = read(text).inside
    assert cpu.attributes == {"numaid": "-1"}
    assert len(cpu.inside) == 16
    assert "PCI switches above GPU0, GPU1" in text


def test_cards_without_rdma_are_not_nccl_s() -> None:
    rows = h100x8()
    rows[SubjectId("nic:mlx5_0")] = {key: v for key, v in rows[SubjectId("nic:mlx5_0")].items() if key != "nic_rdma"}
    names = [net.attributes["name"] for net in made(graph(rows)).all("net")]
    assert names == [f"mlx5_{n}" for n in range(1, 8)]


def test_what_cannot_stand_in_the_file_is_left_out() -> None:
    topology = changed(SubjectId("nic:mlx5_0"), nic_rdma='a"<&>')
    assert "name" not in made(topology).all("net")[0].attributes
    text = render(msgspec.structs.replace(graph(h100x8()), host="a--><evil>"), Wish())
    assert "evil" not in text
    assert "The wiring of this node" in text


def test_without_gpus_or_addresses_it_is_refused_with_a_next_step() -> None:
    with pytest.raises(Absent, match="gpuguard topo"):
        render(graph({}), Wish())
    bare = Device(name="GPU0", kind="gpu", gpu=Gpu(links=(NvLink(number=0),)))
    for device in (bare, msgspec.structs.replace(bare, pci=PciAddress("10000:01:00.0"))):
        with pytest.raises(NotUnderstood, match="on the machine itself"):
            render(Topology(devices=(device,), levels=((None,),), bonds=((0,),)), Wish())
