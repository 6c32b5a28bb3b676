"""topology.conf and topology.yaml from a fabric file, and what the node knows held against it."""

import pytest

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.ids import SubjectId
from gpuguard.topology.formats import Wish
from gpuguard.topology.formats.slurm_topology import render
from tests.support.wirings import Rows, graph, h100x8
from tests.support.yaml_subset import read

TREE = """
[switches.spine]
switches = "leaf[1-2]"
speed = 400
[switches.leaf1]
nodes = "node[01-16,17]"
[switches.leaf2]
nodes = ["node[20-21]", "login"]
"""
BLOCKS = """
block_sizes = [2, 4]
[blocks.rack1]
nodes = "node[16-17]"
clique = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f.1"
[blocks.2]
nodes = "9n[20-21]"
"""


def in_domain(domain: str, clique: int) -> Rows:
    return {
        name: {**row, "fabric_cluster": domain, "fabric_clique": clique} if name.startswith("gpu:") else row
        for name, row in h100x8().items()
    }


def lines(fabric: str, node: str | None = "node17") -> list[str]:
    text = render(graph(h100x8()), Wish(node=node, fabric=fabric))
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def test_a_tree_is_topology_conf() -> None:
    assert lines(TREE) == [
        "SwitchName=leaf1 Nodes=node[01-16,17]",
        "SwitchName=leaf2 Nodes=node[20-21],login",
        "SwitchName=spine LinkSpeed=400 Switches=leaf[1-2]",
    ]


def test_blocks_are_topology_conf_of_the_other_plugin() -> None:
    assert lines(BLOCKS) == ["BlockName=rack1 Nodes=node[16-17]", "BlockName=2 Nodes=9n[20-21]", "BlockSizes=2,4"]
    assert lines('plugin = "block"' + BLOCKS + TREE) == lines(BLOCKS)
    assert lines(BLOCKS + TREE) == lines(TREE)
    assert "TopologyPlugin=topology/block" in render(graph({}), Wish(fabric=BLOCKS))


def test_what_topology_conf_cannot_hold_is_told() -> None:
    for fabric, told in ((TREE, 0), (BLOCKS, 0), (BLOCKS + TREE, 1)):
        text = render(graph(h100x8()), Wish(node="node17", fabric=fabric))
        assert text.count("are left out") == told


def test_yaml_holds_both() -> None:
    tree = {
        "topology": "tree", "cluster_default": True,
        "tree": {"switches": [
            {"switch": "leaf1", "nodes": "node[01-16,17]"}, {"switch": "leaf2", "nodes": "node[20-21],login"},
            {"switch": "spine", "children": "leaf[1-2]"},
        ]},
    }  # fmt: skip
    block = {
        "topology": "block", "cluster_default": False,
        "block": {"block_sizes": [2, 4], "blocks": [
            {"block": "rack1", "nodes": "node[16-17]"}, {"block": "2", "nodes": "9n[20-21]"},
        ]},
    }  # fmt: skip
    form = 'form = "yaml"\n'
    assert read(render(graph({}), Wish(fabric=form + BLOCKS + TREE))) == [tree, block]
    assert read(render(graph({}), Wish(fabric=form + TREE))) == [tree]
    chosen = read(render(graph({}), Wish(fabric=form + 'plugin = "block"' + BLOCKS + TREE)))
    assert chosen == [tree | {"cluster_default": False}, block | {"cluster_default": True}]


@pytest.mark.parametrize("name", ["1", "0x10", "true", "No", "null", "1e3", "y", "on"])
def test_a_name_that_yaml_would_read_as_something_else_is_quoted(name: str) -> None:
    text = render(graph({}), Wish(fabric=f'form = "yaml"\n[switches.{name}]\nnodes = "{name}"'))
    assert f'- switch: "{name}"\n        nodes: "{name}"\n' in text


def test_trees_that_nothing_joins_are_told() -> None:
    text = render(graph({}), Wish(fabric='[switches.a]\nnodes = "n1"\n[switches.b]\nnodes = "n2"'))
    assert "# Nothing joins a, b: no job can use nodes below two of them." in text


def test_without_a_fabric_file_it_says_what_to_give() -> None:
    with pytest.raises(Absent, match=r"\[switches\.leaf1\]"):
        render(graph(h100x8()), Wish())
    with pytest.raises(Absent, match=r"NVLink domain is ab\.7\)"):
        render(graph(in_domain("ab", 7)), Wish())


@pytest.mark.parametrize(
    ("fabric", "where"),
    [
        (TREE, "below no switch"), (BLOCKS, "in no block"),
        ('form = "yaml"' + BLOCKS + TREE, "below no switch and in no block"),
    ],
)  # fmt: skip
def test_a_node_that_is_not_there_is_a_mistake(fabric: str, where: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"node99 is {where}; add it to the nodes of one"):
        render(graph(h100x8()), Wish(node="node99", fabric=fabric))


def test_a_node_in_the_block_of_another_domain_is_a_mistake() -> None:
    domain = "7ec9d7a4-5a5b-4b6e-9f1c-0b6a2c1d3e4f"
    assert render(graph(in_domain(domain, 1)), Wish(node="node17", fabric=BLOCKS))
    with pytest.raises(ConfigInvalid, match=r"blocks\.rack1: node17 is in the NVLink domain .*\.2, not in .*\.1; move"):
        render(graph(in_domain(domain, 2)), Wish(node="node17", fabric=BLOCKS))


def test_the_machine_itself_changes_nothing() -> None:
    rows = h100x8()
    del rows[SubjectId("gpu:0000:1b:00.0")]
    assert render(graph(rows), Wish(fabric=TREE)) == render(graph(h100x8()), Wish(fabric=TREE))
