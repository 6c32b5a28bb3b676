"""The terminal form: no line too wide, each device once, what is wrong in words, and nothing that steers a terminal."""

import re

import msgspec
import pytest
from hypothesis import given

from gpuguard.model.topology import Topology
from gpuguard.topology.captions import columns
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.drawing import WIDTH, render
from tests.support.drawn import graphs, machines

MACHINES = machines()


def drawn(name: str) -> list[str]:
    return render(MACHINES[name], Wish()).splitlines()


@pytest.mark.parametrize("name", MACHINES)
def test_no_line_is_wider_than_a_terminal_and_each_device_stands_once(name: str) -> None:
    text = render(MACHINES[name], Wish())
    _holds(MACHINES[name], text)


@given(graphs())
def test_so_it_is_for_any_graph(topology: Topology) -> None:
    _holds(topology, render(topology, Wish()))


def _holds(topology: Topology, text: str) -> None:
    lines = text.splitlines()
    assert text.endswith("\n")
    assert max(map(columns, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    leaves = [match[1] for line in lines if (match := re.match(r"[│ ]*[├└]─ (\S+)", line))]
    for device in topology.devices:
        assert leaves.count(device.name) == 1


def test_eight_gpus_and_ten_cards_are_a_tree_of_sockets_and_switches() -> None:
    lines = drawn("ten_cards")
    assert lines[:2] == ["node17 · hgx-h100-8", "8 x NVIDIA H100 80GB HBM3, 10 network cards"]
    assert lines[3:7] == [
        "socket 0, NUMA 0 · CPUs 0-55,112-167",
        "├─ PCIe switch 19:00.0 · root complex 18 · x16 Gen5",
        "│  ├─ GPU0  1b:00.0  x16 Gen5",
        "│  └─ NIC0  1c:00.0  x16 Gen5  mlx5_0  400 Gb/s",
    ]
    assert lines[-2:] == ["NVLink", "  all 8 GPUs: NV18 through 4 NVSwitches, 478 GB/s each way"]


def test_what_is_not_as_it_could_be_is_said_in_words() -> None:
    text = "\n".join(drawn("link_down"))
    assert "GPU5  c3:00.0  x8 of x16 Gen5" in text
    assert "GPU3  61:00.0  x16 Gen1 of 5" in text
    assert "\n* GPU2: 17 of 18 NVLinks up, down: link 6\n" in text
    assert "\n* GPU3: PCIe Gen1 of 5, as is usual at rest\n" in text


def test_the_notes_stand_at_the_end_and_are_wrapped() -> None:
    lines = drawn("hidden")
    notes = lines[lines.index("note: the PCIe tree is hidden, as in a virtual machine: switches and the way to") :]
    assert notes[1] == "      network cards are not known"
    assert len(notes) == 4
    assert "NUMA node not known" in lines
    assert not any("socket" in line for line in lines)


def test_a_lost_gpu_and_instances_are_told() -> None:
    assert any("GPU4" in line and "the driver does not tell of it" in line for line in drawn("lost"))
    assert any("GPU0" in line and "MIG 7 x 1g.10gb" in line for line in drawn("mig"))
    made = MACHINES["mig"]
    bare = msgspec.structs.replace(made.devices[0].gpu or made, instances=())
    cut_up = msgspec.structs.replace(made.devices[0], gpu=bare)
    made = msgspec.structs.replace(made, devices=(cut_up, *made.devices[1:]))
    assert "MIG, no instance" in render(made, Wish())


def test_names_steer_no_terminal() -> None:
    text = render(MACHINES["hostile"], Wish())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert('&\"')</script>\ufffd[31m" in text
