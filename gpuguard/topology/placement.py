"""What a scheduler needs of a node to place work well: everything by the GPUs' places, as plain values for JSON."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from gpuguard.errors import NotUnderstood
from gpuguard.model.topology import Topology
from gpuguard.topology.distance import FARTHEST, ranks, weights
from gpuguard.topology.near import cpus_of, spread
from gpuguard.topology.offered import offered
from gpuguard.topology.subsets import Masks, Subsets

VERSION = 1


def placement(topology: Topology) -> dict[str, object]:
    """The node by its GPUs.

    Shape   gpus, uuids, pci, numa, cpus, nics, cliques: one entry for each GPU, null where it is not known. offered:
            names of those that a job can be given whole. best: names of the best k of these, by k. wires: what NVLink
            joins each two GPUs with (links, or megabytes per second where links are not all equally fast); far: how
            far each two are over PCIe, 0 PIX to 3 NODE, 4 one socket, 5 not known, 6 beyond. exact: false where there
            are too many GPUs to try every subset
    """
    gpus = topology.gpus
    subsets, choice = Subsets(topology), offered(topology)
    cards = spread(topology)
    aliases = {nic.name: nic.alias or nic.name for nic in topology.nics}
    return {
        "version": VERSION,
        "host": topology.host,
        "machine": topology.machine,
        "gpus": [gpu.name for gpu in gpus],
        "uuids": [gpu.gpu.uuid if gpu.gpu else None for gpu in gpus],
        "pci": [gpu.pci for gpu in gpus],
        "cliques": [gpu.gpu.clique if gpu.gpu else None for gpu in gpus],
        "numa": [gpu.nodes for gpu in gpus],
        "cpus": [cpus_of(topology, gpu.name) for gpu in gpus],
        "nics": [None if (card := cards[gpu.name]) is None else aliases[card] for gpu in gpus],
        "wires": [list(row) for row in weights(topology)],
        "far": [list(row) for row in ranks(topology)],
        "exact": subsets.exact,
        "offered": list(choice),
        "best": {str(k): list(names) for k, names in subsets.table(choice).items()},
    }


def masks(placed: Mapping[str, Any]) -> Masks:  # Any: what JSON held
    """The subsets of a node from its placement, as it was written or read back from JSON.

    Raises  NotUnderstood where this is no placement of this version
    """
    if placed.get("version") != VERSION:
        raise NotUnderstood(f"this placement is of version {placed.get('version')!r}; write it anew with this gpuguard")
    wires, far, nodes = (placed.get(key) for key in ("wires", "far", "numa"))
    if not isinstance(nodes, list) or not all(node is None or isinstance(node, str) for node in nodes):
        raise NotUnderstood("numa of this placement is not a list of nodes; write it anew with this gpuguard")
    if not _is_grid(wires, len(nodes)) or not _is_grid(far, len(nodes), FARTHEST):
        size = len(nodes)
        raise NotUnderstood(f"wires or far of this placement is not {size} rows of {size} numbers; write it anew")
    return Masks(wires, far, nodes)


def _is_grid(rows: object, size: int, most: int | None = None) -> TypeGuard[list[list[int]]]:
    return (
        isinstance(rows, list)
        and len(rows) == size
        and all(isinstance(row, list) and len(row) == size for row in rows)
        and all(type(cell) is int and cell >= 0 and (most is None or cell <= most) for row in rows for cell in row)
    )
