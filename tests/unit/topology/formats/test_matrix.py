"""The matrix of the machine itself has the form that everything else was written to read."""

import msgspec
import pytest

from gpuguard.errors import Absent, InvariantBroken
from gpuguard.model.topology import Topology
from gpuguard.topology.facts import facts
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.matrix import render, render_as
from gpuguard.topology.matrix import read
from tests.support.shared_data import shared
from tests.support.wirings import graph, h100x8, l40sx4

LEGEND_LINES = 10
EMPTY = Topology(devices=(), levels=(), bonds=())


def test_eight_gpus_and_eight_cards() -> None:
    text = render(graph(h100x8()), Wish())
    lines = text.split("\n")
    names = [f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(8)]
    assert lines[0] == "\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    assert lines[1].startswith("GPU0\t X \tNV18\t")
    assert lines[1].endswith("\t0-55,112-167\t0\t\tN/A")
    assert lines[9].endswith("\t\t\t\t")
    assert text.endswith("  NIC6: mlx5_6\n  NIC7: mlx5_7\n\n")


def test_a_published_matrix_is_drawn_anew_byte_for_byte() -> None:
    """Sample 03 has all that a driver prints but the empty line at the end."""
    samples = shared("reference", "topo-samples.txt").read_text().split("### SAMPLE ")
    (sample,) = [text for text in samples if text.startswith("03\n")]
    text = sample.split("--- BEGIN MATRIX\n")[1].split("--- END MATRIX\n")[0]
    assert render(read(text).topology, Wish()) == text + "\n"


def test_without_network_cards_there_is_no_legend_of_them() -> None:
    rows = {name: row for name, row in h100x8().items() if not name.startswith("nic:")}
    text = render(graph(rows), Wish())
    assert text.endswith("  NV#  = Connection traversing a bonded set of # NVLinks\n")
    assert "NIC" not in text


def test_a_card_without_rdma_is_not_listed() -> None:
    rows = l40sx4()
    del rows[next(name for name in rows if name == "nic:mlx5_1")]["nic_rdma"]  # type: ignore[attr-defined]
    topology = graph(rows)
    assert len(topology.nics) == 2
    text = render(topology, Wish())
    assert "NIC0: mlx5_0" in text
    assert "NIC1" not in text


def test_what_is_not_known_is_said_to_be_so() -> None:
    rows = h100x8()
    for row in rows.values():
        for column in ("nvlink_peers", "common_ancestors", "gpu_pci_path", "gpu_numa_node", "gpu_local_cpus"):
            row.pop(column, None)  # type: ignore[attr-defined]
        row.update(dict.fromkeys(row.keys() & {"nvlinks_to_switches"}))  # type: ignore[attr-defined]
        if "gpu_index" in row:
            row["nvlink_peers"] = None  # type: ignore[index]
    text = render(graph(rows), Wish())
    assert "GPU0\t X \tN/A\tN/A\t" in text
    assert "\tN/A\t\t\t\tN/A\n" in text  # no processors and no node, as in WSL
    assert read(text).topology.bonds[0][1] is None


def test_a_node_that_is_not_known_stands_behind_an_empty_cell() -> None:
    topology = graph(h100x8())
    devices = tuple(msgspec.structs.replace(device, nodes=None) for device in topology.devices)
    text = render(msgspec.structs.replace(topology, devices=devices), Wish())
    assert "\t0-55,112-167\t\tN/A\t\tN/A\n" in text
    again = read(text).topology.gpus[0]
    assert (again.cpus, again.nodes) == ("0-55,112-167", None)


def test_memory_of_its_own_has_its_node() -> None:
    topology = graph(h100x8())
    gpu = topology.devices[0].gpu
    assert gpu is not None
    coherent = msgspec.structs.replace(topology.devices[0], gpu=msgspec.structs.replace(gpu, memory_node=4))
    text = render(msgspec.structs.replace(topology, devices=(coherent, *topology.devices[1:])), Wish())
    assert text.split("\n")[1].endswith("\t0-55,112-167\t0\t\t4")


@pytest.mark.parametrize("machine", [h100x8, l40sx4])
def test_what_is_drawn_is_read_again(machine: object) -> None:
    assert callable(machine)
    topology = graph(machine())
    text = render(topology, Wish())
    again = read(text)
    assert again.topology.notes == ()
    assert facts(again.topology) == facts(topology)
    assert render(again.topology, Wish()) == text
    assert render_as(again.topology, again.layout) == text


def test_a_machine_without_devices_has_no_matrix() -> None:
    with pytest.raises(Absent, match="no GPU"):
        render(EMPTY, Wish())


def test_a_layout_is_of_its_own_graph() -> None:
    found = read(render(graph(l40sx4()), Wish()))
    with pytest.raises(InvariantBroken):
        render_as(EMPTY, found.layout)
