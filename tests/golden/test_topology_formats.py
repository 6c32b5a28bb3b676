"""The wiring of whole machines as people, schedulers and NCCL read it.

`pytest --rewrite` writes the files anew; read the difference.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.topology.formats import Wish, drawing, gres, labels, matrix, nccl_xml, slurm_topology, svg
from tests.support.drawn import machines
from tests.support.layouts import interleaved, lost_and_split, nps4
from tests.support.wirings import Rows, graph, h100x8, l40sx4

HERE = Path(__file__).parent / "topology_formats"
FABRIC = """\
form = "{form}"
block_sizes = [4, 8]

[switches.spine]
switches = "leaf[1-2]"
speed = 400

[switches.leaf1]
nodes = "node[01-16]"

[switches.leaf2]
nodes = "node[17-32]"

[blocks.rack1]
nodes = "node[01-16]"

[blocks.rack2]
nodes = "node[17-32]"
clique = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f.2"
"""
MACHINES: dict[str, Rows] = {
    "h100x8": h100x8(), "l40sx4": l40sx4(), "nps4": nps4(), "interleaved": interleaved(),
    "lost_and_split": lost_and_split(),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_gres(machine: str, golden: Callable[[Path, str], None]) -> None:
    golden(HERE / f"gres_{machine}.conf", gres.render(graph(MACHINES[machine]), Wish(node="node17")))


@pytest.mark.parametrize("machine", ["h100x8", "l40sx4", "lost_and_split"])
def test_nccl_xml(machine: str, golden: Callable[[Path, str], None]) -> None:
    golden(HERE / f"nccl_xml_{machine}.xml", nccl_xml.render(graph(MACHINES[machine]), Wish(node="node17")))


@pytest.mark.parametrize("machine", ["h100x8", "l40sx4", "lost_and_split"])
def test_labels(machine: str, golden: Callable[[Path, str], None]) -> None:
    wish = Wish(node="node17", fabric=FABRIC.format(form="conf") if machine == "h100x8" else None)
    golden(HERE / f"labels_{machine}.yaml", labels.render(graph(MACHINES[machine]), wish))


@pytest.mark.parametrize("form", ["conf", "yaml"])
def test_slurm_topology(form: str, golden: Callable[[Path, str], None]) -> None:
    wish = Wish(node="node17", fabric=FABRIC.format(form=form))
    golden(HERE / f"slurm_topology.{form}", slurm_topology.render(graph(h100x8()), wish))


def test_slurm_topology_of_blocks(golden: Callable[[Path, str], None]) -> None:
    wish = Wish(node="node17", fabric='plugin = "block"\n' + FABRIC.format(form="conf"))
    golden(HERE / "slurm_topology_blocks.conf", slurm_topology.render(graph(h100x8()), wish))


@pytest.mark.parametrize("machine", ["h100x8", "l40sx4"])
def test_matrix(machine: str, golden: Callable[[Path, str], None]) -> None:
    golden(HERE / f"matrix_{machine}.txt", matrix.render(graph(MACHINES[machine]), Wish()))


@pytest.mark.parametrize("name", ["link_down", "cube_mesh"])
def test_pictures(name: str, golden: Callable[[Path, str], None]) -> None:
    """Of a machine of rows with faults, and of a mesh from cells alone."""
    topology = machines()[name]
    golden(HERE / f"drawing_{name}.txt", drawing.render(topology, Wish()))
    golden(HERE / f"svg_{name}.svg", svg.render(topology, Wish()))
