"""gres.conf: cores by Slurm's numbers, links among the GPUs that are listed, and what is not known in comments."""

import msgspec
import pytest

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.ids import SubjectId
from gpuguard.model.topology import Topology
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.gres import render
from tests.support.layouts import adjacent, interleaved, lost_and_split, nps4, single_thread, snc2_interleaved
from tests.support.wirings import Rows, graph, h100x8, l40sx4


def lines(topology: Topology, node: str | None = None) -> list[dict[str, str]]:
    """The words of each line that is no comment."""
    text = render(topology, Wish(node=node))
    return [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines() if line[0] != "#"]


def comments(topology: Topology) -> str:
    return "\n".join(line for line in render(topology, Wish()).splitlines() if line.startswith("#"))


def without(rows: Rows, *columns: str) -> Rows:
    return {name: {key: value for key, value in row.items() if key not in columns} for name, row in rows.items()}


def test_eight_gpus_of_two_sockets() -> None:
    found = lines(graph(h100x8()), "node17")
    assert [line["File"] for line in found] == [f"/dev/nvidia{n}" for n in range(8)]
    assert {line["NodeName"] for line in found} == {"node17"}
    assert {line["Type"] for line in found} == {"h100"}
    assert [line["Cores"] for line in found] == ["0-55"] * 4 + ["56-111"] * 4
    assert found[2]["Links"] == "18,18,-1,18,18,18,18,18"
    assert "Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 Gres=gpu:h100:8" in comments(graph(h100x8()))


def test_without_a_node_no_line_names_one() -> None:
    assert all("NodeName" not in line for line in lines(graph(h100x8())))


def test_without_nvlink_links_are_zero() -> None:
    assert [line["Links"] for line in lines(graph(l40sx4()))] == ["-1,0,0,0", "0,-1,0,0", "0,0,-1,0", "0,0,0,-1"]


@pytest.mark.parametrize(
    ("rows", "cores"),
    [
        (nps4(), ["48-63"] * 2 + ["16-31"] * 2 + ["112-127"] * 2 + ["80-95"] * 2),
        (interleaved(), ["0-23"] * 4 + ["24-47"] * 4),
        (adjacent(), ["0-15"] * 4 + ["16-31"] * 4),
        (single_thread(), ["32-63"] * 4 + ["0-31"] * 4),
        (snc2_interleaved(), ["0-7"] * 2 + ["8-15"] * 2 + ["16-23"] * 2 + ["24-31"] * 2),
    ],
    ids=["nps4", "interleaved", "adjacent", "single_thread", "snc2_interleaved"],
)
def test_cores_are_slurms_own_numbers(rows: Rows, cores: list[str]) -> None:
    assert [line["Cores"] for line in lines(graph(rows))] == cores


def test_a_part_of_a_socket_comes_with_advice() -> None:
    assert "numa_node_as_socket in slurm.conf makes each NUMA node one: then Sockets=8 CoresPerSocket=16." in comments(
        graph(nps4())
    )
    assert "as_socket" not in comments(graph(h100x8()))
    rows = {
        name: row | {"gpu_local_cpus": "0-7,112-119"} if name.startswith("gpu:") else row
        for name, row in h100x8().items()
    }
    assert "l3cache_as_socket" in comments(graph(rows))


def test_a_lost_gpu_is_left_out_and_named() -> None:
    made = graph(lost_and_split())
    assert "# GPU5 at 0000:c3:00.0 is left out: the driver does not answer for it." in comments(made)
    assert "/dev/nvidia5" not in render(made, Wish())
    assert [line["File"][-1] for line in lines(made)] == ["0", "1", "3", "4", "6", "7"]
    assert {len(line["Links"].split(",")) for line in lines(made)} == {6}
    assert [line["Links"].split(",").index("-1") for line in lines(made)] == list(range(6))


def test_a_split_gpu_has_its_lines_ready_to_fill_in() -> None:
    said = comments(graph(lost_and_split()))
    assert said.count("Type=h100_3g.40gb MultipleFiles=/dev/nvidia2,/dev/nvidia-caps/nvidia-cap<gi>,") == 2
    assert "Gres= in slurm.conf also has gpu:h100_3g.40gb:2,gpu:h100_1g.10gb:1" in said
    assert "Gres=gpu:h100:6\n" in said
    empty = {name: row for name, row in lost_and_split().items() if not name.startswith("mig:")}
    assert "GPU2 is in MIG mode and has no instances" in comments(graph(empty))


def test_gpus_are_in_the_order_of_addresses_and_named_by_minor_number() -> None:
    rows = h100x8()
    for n, name in enumerate(sorted(name for name in rows if name.startswith("gpu:"))):
        rows[name] = rows[name] | {"gpu_index": 7 - n, "gpu_minor": (n + 3) % 8}
    found = lines(graph(rows))
    assert [line["File"][-1] for line in found] == list("34567012")
    assert [line["Links"].split(",").index("-1") for line in found] == list(range(8))
    assert [line["Cores"] for line in found] == ["0-55"] * 4 + ["56-111"] * 4


def test_what_is_not_known_is_left_out_and_said() -> None:
    made = graph(without(h100x8(), "cpu_siblings"))
    assert all("Cores" not in line for line in lines(made))
    assert "# Cores are left out: which processors are threads of one core is not known." in comments(made)
    made = graph(without(h100x8(), "gpu_name"))
    assert all("Type" not in line for line in lines(made))
    assert "# Type is left out: the product of GPU0, GPU1" in comments(made)
    assert "Gres=gpu:8\n" in comments(made)
    made = graph(without(h100x8(), "gpu_minor"))
    assert [line["File"][-1] for line in lines(made)] == list("01234567")
    assert "# Minor numbers are not known" in comments(made)
    made = graph(without(h100x8(), "gpu_local_cpus", "nvml_cpus"))
    assert all("Cores" not in line for line in lines(made))
    assert "# Cores are left out for GPU0, GPU1" in comments(made)


def test_links_that_are_not_known_are_left_out_and_not_zero() -> None:
    made = graph(h100x8())
    bonds = [list(row) for row in made.bonds]
    bonds[0][3] = bonds[3][0] = None
    made = msgspec.structs.replace(made, bonds=tuple(tuple(row) for row in bonds))
    assert all("Links" not in line for line in lines(made))
    assert "# Links are left out" in comments(made)


def test_a_gpu_that_is_near_every_core_names_none() -> None:
    """As in a virtual machine that shows no NUMA: gres.conf(5) wants Cores left out where any core will do."""
    rows = {
        name: row | {"gpu_local_cpus": "0-223"} if name.startswith("gpu:") else row for name, row in h100x8().items()
    }
    assert all("Cores" not in line for line in lines(graph(rows)))
    assert "every core is as near" in comments(graph(rows))


def test_processors_of_no_node_and_lists_that_are_none_name_no_cores() -> None:
    for text in ("0-300", "zzz"):
        rows = {
            name: row | {"gpu_local_cpus": text} if name.startswith("gpu:") else row for name, row in h100x8().items()
        }
        assert all("Cores" not in line for line in lines(graph(rows)))


def test_a_machine_without_gpus_or_without_a_driver_is_refused_with_a_next_step() -> None:
    with pytest.raises(Absent, match="gpuguard topo"):
        render(graph({}), Wish())
    sysfs = without(h100x8(), "gpu_index", "gpu_minor", "gpu_up")
    with pytest.raises(Absent, match="gpuguard gpus"):
        render(graph(sysfs), Wish())


@pytest.mark.parametrize("name", ["", "a b", "x\nNodeName=evil", "n[1-2]", "a#"])
def test_a_name_that_cannot_be_a_node_is_refused(name: str) -> None:
    with pytest.raises(NotUnderstood, match=r"slurm\.conf"):
        render(graph(h100x8()), Wish(node=name))


def test_nothing_that_the_machine_says_becomes_a_line_of_its_own() -> None:
    rows = lost_and_split()
    rows[SubjectId("mig:0000:52:00.0/1")] = {"mig_gpu_instance": 1, "mig_profile": "1g\nName=gpu Count=9"}
    made = msgspec.structs.replace(graph(rows), host="a\nName=gpu File=/dev/sda")
    assert {line["Name"] for line in lines(made)} == {"gpu"}
    assert len(lines(made)) == 6
