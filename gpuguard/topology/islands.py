"""Which devices belong together: by NVLink, behind one PCIe switch, on one NUMA node, in one socket.

An island is told only where it is known: a device whose NUMA node nobody tells is on none, and GPUs whose NVLinks
nobody tells are in no domain. A graph that was read from a matrix alone has islands, too.

Source    NVIDIA's words for NVLink (all to all, mesh) are of its white papers of DGX-1 and HGX; PIX and PXB as
          `nvidia-smi topo -m` explains them
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from gpuguard.model.ids import PciAddress
from gpuguard.model.topology import ANY_SWITCH, Device, Topology
from gpuguard.topology.distance import level_of, places_of_gpus
from gpuguard.topology.names import listed

IslandKind = Literal["nvlink", "switch", "numa", "socket"]


class Island(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that belong together: their names in the order of the graph, and one sentence for people."""

    kind: IslandKind
    members: tuple[str, ...]
    words: str


def islands(topology: Topology) -> tuple[Island, ...]:
    """Every island: NVLink domains, PCIe switches, NUMA nodes, and sockets that hold more than one node."""
    return (*_domains(topology), *_switches(topology), *_nodes(topology), *_sockets(topology))


def _named(topology: Topology, places: Iterable[int]) -> tuple[str, ...]:
    return tuple(topology.devices[place].name for place in places)


def _together(places: Sequence[int], joined: Callable[[int, int], bool]) -> list[list[int]]:
    """The places in groups: two are in one if they are joined, straight or through others."""
    groups: list[list[int]] = []
    for place in places:
        near = [group for group in groups if any(joined(place, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([place, *(other for group in near for other in group)]))
    return sorted(groups)


# --- NVLink ----------------------------------------------------------------------------------------------------------


def _domains(topology: Topology) -> Iterator[Island]:
    bonds = topology.bonds
    for group in _together(places_of_gpus(topology), lambda i, j: bool(bonds[i][j])):
        if len(group) > 1:
            names = _named(topology, group)
            words = f"{listed(names)} are one NVLink domain, {_wired(topology, group)}{_clique(topology, group)}"
            yield Island(kind="nvlink", members=names, words=words)


def _wired(topology: Topology, group: Sequence[int]) -> str:
    """How the GPUs of a domain are joined."""
    if (switched := _to_switches(topology, group)) is not None:
        return switched
    bonds = [topology.bonds[i][j] for i, j in combinations(group, 2)]
    there = sorted({bond for bond in bonds if bond})
    most = f"{there[-1]} NVLink{'s' if there[-1] > 1 else ''}"
    if len(group) == 2:
        return f"{most} between them"
    how = most if len(there) == 1 else f"{there[0]} to {most}"
    missing, unknown = bonds.count(0), bonds.count(None)
    words = f"a mesh with {how} between neighbours, none between {missing} of {len(bonds)} pairs"
    told = f"; between {unknown} pair{'s' if unknown > 1 else ''} they are not known" if unknown else ""
    return f"{words if missing else f'{how} between each two'}{told}"


def _to_switches(topology: Topology, group: Sequence[int]) -> str | None:
    """ "18 links each through 4 NVSwitches", where all of them end there."""
    ends: dict[str, list[str]] = {}
    for place in group:
        gpu = topology.devices[place].gpu
        links = gpu.links if gpu is not None else ()
        peers = [link.peer for link in links if link.peer and link.peer.startswith(ANY_SWITCH) and link.up is not False]
        if not peers:
            return None
        ends[topology.devices[place].name] = peers
    counts = [len(peers) for peers in ends.values()]
    usual = max(counts, key=lambda count: (counts.count(count), count))
    fewer = [f"{name} {len(peers)}" for name, peers in ends.items() if len(peers) != usual]
    switches = {peer for peers in ends.values() for peer in peers}
    through = "NVSwitches" if ANY_SWITCH in switches else f"{len(switches)} NVSwitch{'es' if len(switches) > 1 else ''}"
    links_each = f"{usual} link{'s' if usual > 1 else ''} each"
    return f"{links_each} through {through}{''.join(f', {words}' for words in fewer)}"


def _clique(topology: Topology, group: Sequence[int]) -> str:
    cliques = {gpu.clique for place in group if (gpu := topology.devices[place].gpu) is not None}
    return f", part of {clique} beyond this node" if len(cliques) == 1 and (clique := cliques.pop()) else ""


# --- PCIe ------------------------------------------------------------------------------------------------------------


def _switches(topology: Topology) -> Iterator[Island]:
    """Devices below one root port, and within these those that share one switch, where that is less."""
    places = range(len(topology.devices))
    levels = {pair: level_of(topology, *pair) for pair in combinations(places, 2)}

    def joined(*words: str) -> Callable[[int, int], bool]:
        return lambda i, j: levels[min(i, j), max(i, j)] in words

    for group in _together(places, joined("PIX", "PXB")):
        inner = _together(group, joined("PIX"))
        if len(inner) > 1:
            names = _named(topology, group)
            words = f"{listed(names)} are below one PCIe root port, through more than one switch (PXB)"
            yield Island(kind="switch", members=names, words=words)
        for part in inner:
            # The ports of one card hang at one link; there need not be a switch.
            if len(part) > 1 and not _one_card([topology.devices[place] for place in part]):
                names = _named(topology, part)
                words = f"{listed(names)} share one PCIe switch (PIX)"
                if all(topology.devices[place].kind == "nic" for place in part):
                    words = f"{listed(names)} share one PCIe switch or are ports of one card (PIX)"
                yield Island(kind="switch", members=names, words=words)


def _one_card(devices: Sequence[Device]) -> bool:
    """Whether these are functions of one PCI device."""
    cards = {_slot(device.pci) for device in devices}
    return len(cards) == 1 and None not in cards


def _slot(pci: PciAddress | None) -> str | None:
    return None if pci is None else str(pci).rpartition(".")[0]


# --- NUMA nodes and sockets ------------------------------------------------------------------------------------------


def _nodes(topology: Topology) -> Iterator[Island]:
    sockets = {node.number: node.socket for node in topology.numa}
    alone = {socket for socket in sockets.values() if [*sockets.values()].count(socket) == 1}
    cpus = {node.number: node.cpus for node in topology.numa}
    for number, group in _by(topology, lambda device: device.node):
        names, socket = _named(topology, group), sockets.get(number)
        where = f"NUMA node {number}" + (
            f", which is socket {socket}" if socket is not None and socket in alone else ""
        )
        told = cpus.get(number) or _alike({topology.devices[place].cpus for place in group} - {None})
        beside = f", with CPUs {told}" if told else ""
        words = f"{listed(names)} {'are' if len(names) > 1 else 'is'} on {where}{beside}"
        yield Island(kind="numa", members=names, words=words)


def _alike(texts: set[str | None]) -> str | None:
    """What all of them say."""
    return next(iter(texts)) if len(texts) == 1 else None


def _sockets(topology: Topology) -> Iterator[Island]:
    sockets = {node.number: node.socket for node in topology.numa if node.socket is not None}
    for socket, group in _by(topology, lambda device: None if device.node is None else sockets.get(device.node)):
        nodes = [str(number) for number, held in sockets.items() if held == socket]
        if len(nodes) > 1:
            names = _named(topology, group)
            words = (
                f"{listed(names)} {'are' if len(names) > 1 else 'is'} in socket {socket}, "
                f"which has the NUMA nodes {listed(nodes)}"
            )
            yield Island(kind="socket", members=names, words=words)


def _by(topology: Topology, key: Callable[[Device], int | None]) -> list[tuple[int, list[int]]]:
    """The places of the devices by this number, without those that have none."""
    found: dict[int, list[int]] = {}
    for place, device in enumerate(topology.devices):
        if (number := key(device)) is not None:
            found.setdefault(number, []).append(place)
    return sorted(found.items())
