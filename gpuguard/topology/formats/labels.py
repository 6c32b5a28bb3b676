"""Labels of a Kubernetes node: where it stands in the network, in topograph's names, and how it is wired inside.

A patch in YAML: `gpuguard topo --format labels > labels.yaml; kubectl patch node NAME --patch-file labels.yaml`. A
label whose value is not known is not there, and one that a node already has then stays as it is.

    accelerator.topograph.run/domain        the NVLink domain beyond the node, CLUSTER_UUID.CLIQUE
    fabric.topograph.run/tier-N             the switches above it, 0 the nearest, from a fabric file
    network.topology.nvidia.com/accelerator, leaf, spine, core    the same in the names before topograph 1.0
    gpuguard.io/gpu-count, gpu-product      the GPUs on the bus, also one that is lost
    gpuguard.io/nvlink-domain               as above
    gpuguard.io/nvlinks-per-gpu             NVLinks that are up; of the GPU that has the fewest
    gpuguard.io/nvswitch-count              NVSwitches on the bus
    gpuguard.io/numa-nodes                  NUMA nodes with processors
    gpuguard.io/pcie-switch-groups          PCIe switches with GPUs right below them
    gpuguard.io/nic-count                   network cards with RDMA
    gpuguard.io/topology                    a digest of the wiring: machines that are wired alike have the same

Source    topograph CHANGELOG, 1.0.0, and docs/engines/k8s.md; Kubernetes, "Labels and Selectors"
"""

import hashlib
import json
from collections.abc import Iterator

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.model.topology import ANY_SWITCH, Device, Gpu, Topology
from gpuguard.topology import fabric, spelling
from gpuguard.topology.formats import Wish

DOMAIN, TIER, BEFORE, OURS = (
    "accelerator.topograph.run/domain", "fabric.topograph.run/tier-", "network.topology.nvidia.com/", "gpuguard.io/",
)  # fmt: skip
TIERS_BEFORE = ("leaf", "spine", "core")
DIGEST = 12


def render(topology: Topology, wish: Wish) -> str:
    """The patch.

    Raises  Absent when no GPU is known; ConfigInvalid with the mistakes of a fabric file, or when it lacks the node
    """
    if not topology.gpus:
        raise Absent("no GPU is known, so that there is nothing to label: look at `gpuguard topo` first")
    found = {**dict(_network(topology, wish)), **dict(_wiring(topology))}
    lines = ["# kubectl patch node NAME --patch-file FILE; by gpuguard.", "metadata:", "  labels:"]
    return "\n".join([*lines, *(f'    {key}: "{found[key]}"' for key in sorted(found))]) + "\n"


def _network(topology: Topology, wish: Wish) -> Iterator[tuple[str, str]]:
    domain = _domain(topology)
    if wish.fabric is not None:
        told = fabric.read(wish.fabric)
        node = wish.node or topology.host
        above, block = (told.above(node), told.block(node)) if node is not None else ((), None)
        if not above and block is None:
            where = f"{node} is below no switch and in no block; add it" if node else "which node this is is not known"
            raise ConfigInvalid([f"fabric file: {where}, or give the name that it has there with --node"])
        for tier, switch in enumerate(above):
            yield f"{TIER}{tier}", spelling.identity(switch)
        for word, switch in zip(TIERS_BEFORE, above, strict=False):
            yield f"{BEFORE}{word}", spelling.identity(switch)
        if domain is None and block is not None:
            domain = block.clique or block.name
    if domain is not None:
        yield DOMAIN, spelling.identity(domain)
        yield f"{BEFORE}accelerator", spelling.identity(domain)
        yield f"{OURS}nvlink-domain", spelling.identity(domain)


def _wiring(topology: Topology) -> Iterator[tuple[str, str]]:
    gpus = topology.gpus
    yield f"{OURS}gpu-count", str(len(gpus))
    if (product := _product(topology)) is not None:
        yield f"{OURS}gpu-product", product
    for key, count in (
        ("nvlinks-per-gpu", _nvlinks(topology)),
        ("nvswitch-count", _nvswitches(topology)),
        ("numa-nodes", sum(bool(node.cpus) for node in topology.numa) or None),
        ("pcie-switch-groups", _groups(topology)),
        ("nic-count", sum(nic.nic is not None and nic.nic.rdma is not None for nic in topology.nics) or None),
    ):
        if count is not None:
            yield f"{OURS}{key}", str(count)
    yield f"{OURS}topology", digest(topology)


def _of(gpu: Device) -> Gpu:
    return gpu.gpu or Gpu()


def _domain(topology: Topology) -> str | None:
    """The NVLink domain that all GPUs are in; None where none tells of one, or they tell of two."""
    found = {_of(gpu).clique for gpu in topology.gpus} - {None}
    return found.pop() if len(found) == 1 else None


def _product(topology: Topology) -> str | None:
    """What the GPUs are; the short names of all kinds where there are several, None where one is not known."""
    products = sorted({_of(gpu).product or "" for gpu in topology.gpus})
    if "" in products:
        return None
    if len(products) == 1:
        return spelling.label(products[0])
    kinds = [spelling.short(product) for product in products]
    known = dict.fromkeys(kind for kind in kinds if kind is not None)
    return spelling.identity(".".join(known)) if all(kinds) else None


def _nvlinks(topology: Topology) -> int | None:
    """The NVLinks that are up, of the GPU that has the fewest; None where one GPU's are not known."""
    counts: list[int] = []
    for gpu in topology.gpus:
        links = _of(gpu).links
        place = topology.place(gpu.name)
        others = [topology.bonds[place][topology.place(other.name)] for other in topology.gpus if other is not gpu]
        if any(link.up is None for link in links) or None in others or not (links or others):
            return None
        counts.append(sum(link.up is True for link in links) if links else max(bond or 0 for bond in others))
    return min(counts)


def _nvswitches(topology: Topology) -> int | None:
    """The NVSwitches on the bus; None where links end at some that show no address, or no link tells."""
    peers = [link.peer for gpu in topology.gpus for link in _of(gpu).links]
    if topology.switches:
        return len(topology.switches)
    return 0 if peers and not any(peer is None or peer.startswith(ANY_SWITCH) for peer in peers) else None


def _groups(topology: Topology) -> int | None:
    """The PCIe switches that have GPUs right below them; None where the tree above one GPU is hidden."""
    paths = [gpu.path for gpu in topology.gpus]
    if any(len(path) <= 1 for path in paths):
        return None
    return len({path[-2] for path in paths if len(path) >= 4})


def digest(topology: Topology) -> str:
    """A short digest of how the machine is wired: what its GPUs and cards are, how far they are from each other, and
    on which NUMA node. Addresses, serial numbers and names do not count: two machines of one make, cabled alike, have
    the same, until one of them loses a link or a GPU."""
    devices = topology.devices
    shape = {
        "devices": [
            [one.kind, _of(one).product, None if one.nic is None else one.nic.rdma is not None, one.nodes]
            for one in devices
        ],
        "cells": [[topology.cell(i, j) for j in range(i)] for i in range(len(devices))],
        # Nodes of memory alone come and go with the driver of coherent GPUs.
        "numa": [[node.number, node.socket, node.cpus] for node in topology.numa if node.cpus != ""],
        "mig": [_of(one).mig for one in devices],
    }  # fmt: skip
    return hashlib.sha256(json.dumps(shape, separators=(",", ":")).encode()).hexdigest()[:DIGEST]
