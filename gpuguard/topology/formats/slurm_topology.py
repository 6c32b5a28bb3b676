"""The network above the nodes for Slurm: topology.conf, or topology.yaml, from a fabric file.

No node sees the switches of its network, so a person names them in a fabric file (`gpuguard/topology/fabric.py` tells
how). With `form = "conf"` this is topology.conf for the plugin topology/tree or topology/block, read by every Slurm;
with `form = "yaml"` it is topology.yaml, which Slurm reads from 25.05 on and which holds both at once. It is the whole
file, the same on every machine of the cluster. What the node knows of itself, its NVLink domain, is held against it.

Source    topology.conf(5) of Slurm 22.05 to 25.11, topology.yaml(5) of Slurm 25.05
"""

import re
from collections.abc import Iterator

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.topology import Topology
from gpuguard.topology import fabric
from gpuguard.topology.fabric import Block, Fabric
from gpuguard.topology.formats import Wish

# What YAML reads as something else than text.
NOT_TEXT = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|[0-9.+-].*")


def render(topology: Topology, wish: Wish) -> str:
    """The text of topology.conf or topology.yaml.

    Raises  Absent without a fabric file; ConfigInvalid with each mistake in it
    """
    domains = sorted({gpu.gpu.clique for gpu in topology.gpus if gpu.gpu is not None and gpu.gpu.clique is not None})
    if wish.fabric is None:
        known = f" (this node's NVLink domain is {', '.join(domains)})" if domains else ""
        raise Absent(
            "no node can see the switches of its network: give a fabric file (--fabric) that names them, for example "
            f'with [switches.leaf1] and nodes = "gpu[01-16]"{known}'
        )
    told = fabric.read(wish.fabric)
    _fits(told, wish.node, domains)
    lines = list(_yaml(told) if told.form == "yaml" else _conf(told))
    return "\n".join(lines) + "\n"


def _fits(told: Fabric, node: str | None, domains: list[str]) -> None:
    """The node that asks is in the file, in the block of its own NVLink domain."""
    if node is None:
        return
    wrong: list[str] = []
    block = told.block(node)
    tree = told.form == "yaml" or told.plugin == "tree"
    blocks = told.form == "yaml" or told.plugin == "block"
    if not (tree and told.above(node)) and not (blocks and block is not None):
        where = " and ".join(["below no switch"] * tree + ["in no block"] * blocks)
        wrong.append(f"fabric file: {node} is {where}; add it to the nodes of one, or give another node")
    if block is not None and block.clique is not None and domains and block.clique not in domains:
        wrong.append(
            f"fabric file: blocks.{block.name}: {node} is in the NVLink domain {', '.join(domains)}, not in "
            f"{block.clique}; move the node to the block of its domain, or correct the clique"
        )
    if wrong:
        raise ConfigInvalid(wrong)


def _conf(told: Fabric) -> Iterator[str]:
    yield f"# topology.conf for TopologyPlugin=topology/{told.plugin}, by gpuguard from a fabric file."
    if told.switches and told.blocks:
        other = "blocks" if told.plugin == "tree" else "switches"
        yield f'# The {other} are left out, as this form holds one of the two; form = "yaml" has both.'
    if told.plugin == "tree":
        yield from _apart(told)
        for switch in told.switches:
            speed = "" if switch.speed is None else f" LinkSpeed={switch.speed}"
            yield f"SwitchName={switch.name}{speed} {'Nodes' if switch.nodes else 'Switches'}={switch.told}"
        return
    for block in told.blocks:
        yield from _clique(block)
        yield f"BlockName={block.name} Nodes={block.told}"
    if told.block_sizes:
        yield f"BlockSizes={','.join(str(size) for size in told.block_sizes)}"


def _yaml(told: Fabric) -> Iterator[str]:
    yield "# topology.yaml for Slurm 25.05 and later, by gpuguard from a fabric file; partitions choose with Topology=."
    if told.switches:
        yield from _apart(told)
        yield from _head("tree", told)
        yield "    switches:"
        for switch in told.switches:
            yield f"      - switch: {_scalar(switch.name)}"
            yield f"        {'nodes' if switch.nodes else 'children'}: {_scalar(switch.told)}"
    if told.blocks:
        yield from _head("block", told)
        if told.block_sizes:
            yield "    block_sizes:"
            yield from (f"      - {size}" for size in told.block_sizes)
        yield "    blocks:"
        for block in told.blocks:
            yield from (f"      {line}" for line in _clique(block))
            yield f"      - block: {_scalar(block.name)}"
            yield f"        nodes: {_scalar(block.told)}"


def _head(kind: str, told: Fabric) -> Iterator[str]:
    yield f"- topology: {kind}"
    yield f"  cluster_default: {'true' if told.plugin == kind else 'false'}"
    yield f"  {kind}:"


def _apart(told: Fabric) -> Iterator[str]:
    """A word on trees that nothing joins."""
    below = {child for switch in told.switches for child in switch.switches}
    roots = [switch.name for switch in told.switches if switch.name not in below]
    if len(roots) > 1:
        some = ", ".join(roots[:5]) + (", ..." if len(roots) > 5 else "")
        yield f"# Nothing joins {some}: no job can use nodes below two of them."


def _clique(block: Block) -> Iterator[str]:
    if block.clique is not None:
        yield f"# {block.name} is the NVLink domain {re.sub(r'[^ -~]', '?', block.clique)}"


def _scalar(text: str) -> str:
    """A name or a host list in YAML: plain, but where it would read as a number or as yes and no."""
    return f'"{text}"' if NOT_TEXT.fullmatch(text) else text
