"""A real Slurm takes the gres.conf and the topology.conf that are made from the graph, and acts on them."""

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from gpuguard.topology.cpus import numbers
from gpuguard.topology.formats import Wish, gres, slurm_topology
from tests.support.layouts import alternating, interleaved, lost_and_split, nps4
from tests.support.slurm import CONF, Cluster, free_ports, running
from tests.support.wirings import Rows, graph, h100x8

pytestmark = pytest.mark.slurm

# A machine for each node; node5 is node2 with SlurmdParameters=numa_node_as_socket, as the comment there says.
MACHINES: dict[str, Rows] = {
    "node1": h100x8(), "node2": nps4(), "node3": interleaved(), "node4": lost_and_split(), "node5": nps4(),
    "node6": alternating(),
}  # fmt: skip
FABRIC = """\
[switches.leaf1]
nodes = "node[1-2]"

[switches.leaf2]
nodes = ["node3", "node[4-6]"]

[switches.spine]
switches = "leaf[1-2]"
speed = 400
"""


class Wired(Cluster):
    """A Slurm whose nodes are these machines: their gres.conf as it is made, but for the folder of the devices."""

    def _configure(self) -> None:
        for index in range(8):
            os.mknod(self.root / "dev" / f"nvidia{index}", 0o666 | 0o020000, os.makedev(1, 3))
        made = {name: gres.render(graph(rows), Wish(node=name)) for name, rows in MACHINES.items()}
        text = "".join(made.values()).replace("File=/dev/", f"File={self.root}/dev/")
        (self.root / "gres.conf").write_text(text)
        topology = slurm_topology.render(graph(h100x8()), Wish(node="node1", fabric=FABRIC))
        (self.root / "topology.conf").write_text(topology)
        first = free_ports(len(made) + 1)
        conf = CONF.format(root=self.root, port=first, first=0, last=0, nodes=0, gres="")
        kept = [line for line in conf.splitlines() if not line.startswith("NodeName=")]
        where = "NodeHostname=localhost NodeAddr=127.0.0.1 RealMemory=8000"
        nodes = [f"{_line(name, text)} {where} Port={first + 1 + n}" for n, (name, text) in enumerate(made.items())]
        self.conf.write_text("\n".join([*kept[:-1], "TopologyPlugin=topology/tree", *nodes, kept[-1]]) + "\n")

    def written(self) -> str:
        """The gres.conf of all nodes."""
        return (self.root / "gres.conf").read_text()


def _line(name: str, made: str) -> str:
    """What the comment says of slurm.conf."""
    (line,) = re.findall(r"^# slurm\.conf needs GresTypes=gpu and, of this node: (NodeName=.*)$", made, re.MULTILINE)
    if name == "node5":
        (sockets,) = re.findall(r"numa_node_as_socket .* then (Sockets=\d+ CoresPerSocket=\d+)\.$", made, re.MULTILINE)
        return re.sub(r"Sockets=\d+ CoresPerSocket=\d+", sockets, line)
    return line


@pytest.fixture(scope="module")
def wired_cluster() -> Iterator[Wired]:
    with running(Wired, len(MACHINES)) as cluster:
        yield cluster


@pytest.fixture
def wired(wired_cluster: Wired) -> Wired:
    """The cluster with no jobs and all nodes idle."""
    wired_cluster.reset()
    return wired_cluster


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("node1", "gpu:h100:8(S:0-1)"), ("node2", "gpu:a100:8(S:0-1)"), ("node3", "gpu:l40s:8(S:0-1)"),
        ("node4", "gpu:h100:6(S:0-1)"), ("node5", "gpu:a100:8(S:1,3,5,7)"), ("node6", "gpu:l40s:8(S:0-1)"),
    ],
)  # fmt: skip
def test_the_controller_sees_every_gpu_at_its_socket(wired: Wired, node: str, found: str) -> None:
    record = wired.client("scontrol", "-o", "show", "node", node)
    assert f" Gres={found} " in record
    assert " State=IDLE " in record


@pytest.mark.parametrize("node", MACHINES)
def test_slurmd_reads_what_was_written(wired: Wired, node: str) -> None:
    """`slurmd -G` prints each GPU with the cores and links of its line, and complains of nothing."""
    command = [f"{wired.root}/bin/slurmd", "-G", "-f", str(wired.conf), "-N", node]
    done = subprocess.run(command, env=wired.environ, capture_output=True, text=True, timeout=20, check=True)
    printed = done.stdout + done.stderr
    written = re.findall(rf"^NodeName={node} .*$", wired.written(), re.MULTILINE)
    assert len(written) == (6 if node == "node4" else 8)
    for line in written:
        words = dict(word.split("=", 1) for word in line.split())
        (said,) = (row for row in printed.splitlines() if f" File={words['File']} " in row)
        for key in ("Type", "Cores", "Links"):
            assert f" {key}={words[key]} " in f"{said} "
    assert "error" not in printed.lower()


def test_a_job_gets_two_gpus(wired: Wired) -> None:
    told = wired.client("srun", "-w", "node1", "-n1", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert told.split() == ["0,1"]


@pytest.mark.parametrize("wish", ["--gres=gpu:2", "--gpus=2"])
def test_two_cards_without_nvlink_are_of_one_socket(wired: Wired, wish: str) -> None:
    """Also where their neighbours by number are on the other one: it is Cores that keeps a job on one side."""
    told = wired.client("srun", "-w", "node6", "-n1", wish, "printenv", "CUDA_VISIBLE_DEVICES")
    one, other = (int(gpu) for gpu in told.strip().split(","))
    assert one % 2 == other % 2


@pytest.mark.parametrize(
    ("node", "processors", "gpus"),
    [("node1", 112, {"4"}), ("node3", 48, {"4"}), ("node5", 64, {"0", "2", "4", "6"})],
)
def test_a_gpu_comes_with_cores_of_its_own_socket(wired: Wired, node: str, processors: int, gpus: set[str]) -> None:
    """Where other sockets are full, a job that must have its GPU near gets one that is, and cores of its line."""
    first = wired.client(
        "sbatch", "--parsable", "-w", node, "-n1", f"-c{processors}", "-o", "/dev/null", "--wrap", "exec sleep 600"
    ).strip()
    wired.until("it runs", lambda: "RUNNING" in wired.client("squeue", "-h", "-j", first, "-o", "%T"))
    try:
        told = wired.client(
            "srun", "-w", node, "-n1", "--gres=gpu:1", "--gres-flags=enforce-binding",
            "bash", "-c", "scontrol -d show job $SLURM_JOB_ID",
        )  # fmt: skip
    finally:
        wired.client("scancel", first)
    ((threads, gpu),) = re.findall(r" CPU_IDs=(\S+) .* GRES=gpu:\w+:1\(IDX:(\d+)\)", told)
    assert gpu in gpus
    (cores,) = re.findall(rf"^NodeName={node} .*/nvidia{gpu} Cores=(\S+) ", wired.written(), re.MULTILINE)
    assert {thread // 2 for thread in numbers(threads)} <= set(numbers(cores))


def test_the_controller_knows_the_switches(wired: Wired) -> None:
    told = wired.client("scontrol", "show", "topology")
    lines = [dict(word.split("=", 1) for word in line.split()) for line in told.splitlines() if line.strip()]
    assert [(line["SwitchName"], line["Level"], line["Nodes"]) for line in lines] == [
        ("leaf1", "0", "node[1-2]"), ("leaf2", "0", "node3,node[4-6]"), ("spine", "1", "node[1-6]"),
    ]  # fmt: skip
    assert (lines[2]["Switches"], lines[2]["LinkSpeed"]) == ("leaf[1-2]", "400")
