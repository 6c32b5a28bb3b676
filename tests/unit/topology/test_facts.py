"""What JSON has of the matrix."""

import json

from gpuguard.topology.facts import facts
from gpuguard.topology.matrix import read
from tests.support.wirings import graph, l40sx4


def test_a_machine() -> None:
    told = facts(graph(l40sx4()))
    assert told["devices"] == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"]
    matrix, affinity = told["matrix"], told["affinity"]
    assert isinstance(matrix, list)
    assert isinstance(affinity, dict)
    assert matrix[0] == ["X", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert affinity["GPU2"] == {"cpus": "32-63,96-127", "numa": "1"}
    assert told["nic_names"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}
    json.dumps(told)


def test_what_is_not_given_is_null() -> None:
    found = read("\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tN/A\t\nGPU1\tSOC\t X \t\t0-3\n")
    assert facts(found.topology, found.layout) == {
        "devices": ["GPU0", "GPU1", "mlx5_0"],
        "matrix": [["X", "SOC", None], ["SOC", "X", None], [None, None, "X"]],
        "affinity": {"GPU0": {"cpus": None, "numa": None}, "GPU1": {"cpus": "0-3", "numa": None}},
        "nic_names": {},
    }


def test_a_word_of_one_cell_alone_is_kept_there() -> None:
    found = read("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tSOC\tSYS\nGPU1\tSOC\t X \tsoc\nGPU2\tSYS\tsoc\t X \n")
    assert facts(found.topology)["matrix"] == [["X", "SYS", "SYS"], ["SYS", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert facts(found.topology, found.layout)["matrix"] == [
        ["X", "SOC", "SYS"], ["SOC", "X", "soc"], ["SYS", "soc", "X"],
    ]  # fmt: skip
