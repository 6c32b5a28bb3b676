"""The graph of a node from what was measured: PCIe from the kernel, NVLink and the driver's word from NVML.

Each half works alone. Where both tell the same, the driver's common ancestor comes before the tree, as it knows of
bridges that the kernel does not show as such; and the kernel's processors come before the driver's, which a cpuset
shrinks. What is missing, and where the two disagree, is told in the notes.

Reads     the rows of `gpu:`, `mig:`, `nic:`, `nvswitch:`, `bridge:` and `node`, by the columns of sources/topology and
          sources/nvml
Source    nvml.h 13.5 (nvmlGpuTopologyLevel_t, nvmlGpuP2PStatus_t); DCGM DcgmTopology.cpp and go-gpuallocator for how
          NVLinks are counted: those to switches count for every peer that has such links too
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, count
from typing import NamedTuple, TypeVar

import msgspec

from gpuguard.model.ids import NODE, PciAddress, SubjectId, kind_of
from gpuguard.model.readings import Value
from gpuguard.model.topology import (
    ANY_SWITCH,
    P2P_STATUS,
    Bridge,
    BridgeKind,
    Device,
    Gpu,
    Level,
    Nic,
    NumaNode,
    NvLink,
    NvSwitch,
    PcieLink,
    Processors,
    Topology,
)
from gpuguard.topology.names import joined

# nvmlGpuTopologyLevel_t; 0 are two GPUs of one board.
ANCESTORS: dict[int, Level] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
BRIDGE_KINDS: tuple[BridgeKind, ...] = ("root_port", "upstream", "downstream", "bridge")
LINK_UP = 1

Rows = Mapping[SubjectId, Mapping[str, Value]]
T = TypeVar("T")
Grid = tuple[tuple[T | None, ...], ...]


def build(rows: Rows, host: str | None = None) -> Topology:
    """The graph of the node that these rows tell of; without a GPU or a card it has no devices."""
    instances = _instances(rows)
    gpus = [_gpu(name, row, instances.get(name.partition(":")[2], ())) for name, row in _of(rows, "gpu")]
    nics = sorted((_nic(name, row) for name, row in _of(rows, "nic")), key=_natural)
    devices = (*_numbered(gpus, "GPU"), *_numbered(nics, "NIC"))
    notes = list(_missing(rows, devices))
    levels = _levels(devices, rows, notes)
    node = rows.get(NODE, {})
    return Topology(
        devices=devices, levels=levels, bonds=_bonds(devices, rows), p2p=_statuses(devices, rows),
        bridges=tuple(_bridge(name, row) for name, row in _of(rows, "bridge")),
        switches=tuple(_switch(name, row) for name, row in _of(rows, "nvswitch")),
        numa=_numa(node), processors=_processors(node), host=host, machine=_text(node, "machine_profile"),
        notes=tuple(notes),
    )  # fmt: skip


def _of(rows: Rows, kind: str) -> Iterator[tuple[SubjectId, Mapping[str, Value]]]:
    for name in sorted(rows):
        if kind_of(name) == kind:
            yield name, rows[name]


# --- devices ---------------------------------------------------------------------------------------------------------


def _gpu(name: SubjectId, row: Mapping[str, Value], instances: tuple[str, ...]) -> Device:
    nodes = _number(row, "gpu_numa_node")
    told = _text(row, "nvml_numa_nodes")
    return Device(
        name="", kind="gpu", pci=PciAddress(name.partition(":")[2]), path=_path(row, "gpu_pci_path"),
        cpus=_text(row, "gpu_local_cpus") or _text(row, "nvml_cpus"),
        nodes=str(nodes) if nodes is not None else told,
        link=PcieLink(
            lanes=_number(row, "pcie_link_width"), generation=_number(row, "pcie_link_generation"),
            most_lanes=_number(row, "pcie_link_width_limit"),
            most_generation=_number(row, "pcie_link_generation_limit"),
        ),
        gpu=Gpu(
            index=_number(row, "gpu_index"), uuid=_text(row, "gpu_uuid"), serial=_text(row, "gpu_serial"),
            product=_text(row, "gpu_name"), pci_id=_text(row, "gpu_pci_id"), driver=_text(row, "gpu_driver"),
            minor=_number(row, "gpu_minor"), compute=_capability(_text(row, "gpu_compute_capability")),
            memory_node=_number(row, "gpu_memory_numa_node"),
            clique=_clique(row), mig=_flag(row, "mig_mode"), instances=instances,
            links=_links(row),
        ),
    )  # fmt: skip


def _instances(rows: Rows) -> dict[str, tuple[str, ...]]:
    """The profiles of the MIG instances of each GPU that has some, by its address, in the order of their numbers."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, row in _of(rows, "mig"):
        address = name.partition(":")[2].rpartition("/")[0]
        numbered = _number(row, "mig_gpu_instance") or 0, _text(row, "mig_profile") or "unknown"
        found.setdefault(address, []).append(numbered)
    return {address: tuple(profile for _, profile in sorted(listed)) for address, listed in found.items()}


def _links(row: Mapping[str, Value]) -> tuple[NvLink, ...]:
    """One entry for each link that either the driver's states or its peers tell of; none in MIG mode."""
    if _flag(row, "mig_mode"):
        return ()
    peers, states = _parts(row, "nvlink_peers"), _parts(row, "nvlink_up")
    speed, version = row.get("nvlink_speed_bytes_per_second"), _number(row, "nvlink_version")
    return tuple(
        NvLink(
            number=number, peer=_at(peers, number, str),
            up=None if (up := _at(states, number, _as_number)) is None else up == LINK_UP,
            version=version, bytes_per_second=float(speed) if isinstance(speed, int | float) else None,
        )
        for number in range(max(len(peers), len(states)))
    )  # fmt: skip


def _nic(name: SubjectId, row: Mapping[str, Value]) -> Device:
    rdma, node = _text(row, "nic_rdma"), _number(row, "nic_numa_node")
    pci = _text(row, "nic_pci")
    netdevs = _text(row, "nic_netdevs") or ""
    rate = row.get("nic_rate_bits_per_second")
    return Device(
        name="", kind="nic", alias=name.partition(":")[2], pci=None if pci is None else PciAddress(pci),
        path=_path(row, "nic_pci_path"), cpus=_text(row, "nic_local_cpus"), nodes=None if node is None else str(node),
        link=PcieLink(
            lanes=_number(row, "nic_link_width"), generation=_number(row, "nic_link_generation"),
            most_lanes=_number(row, "nic_link_width_limit"), most_generation=_number(row, "nic_link_generation_limit"),
        ),
        nic=Nic(
            rdma=rdma, netdevs=tuple(netdevs.split(",")) if netdevs else (), driver=_text(row, "nic_driver"),
            guid=_text(row, "nic_guid"), pci_id=_text(row, "nic_pci_id"), ports=_number(row, "nic_ports"),
            bits_per_second=float(rate) if isinstance(rate, int | float) else None,
        ),
    )  # fmt: skip


def _bridge(name: SubjectId, row: Mapping[str, Value]) -> Bridge:
    told = _text(row, "bridge_kind")
    kind: BridgeKind = told if told in BRIDGE_KINDS else "bridge"
    return Bridge(
        pci=PciAddress(name.partition(":")[2]), kind=kind, path=_path(row, "bridge_pci_path"),
        redirects=_flag(row, "bridge_p2p_redirect"), pci_id=_text(row, "bridge_pci_id"),
        link=PcieLink(
            lanes=_number(row, "bridge_link_width"), generation=_number(row, "bridge_link_generation"),
            most_lanes=_number(row, "bridge_link_width_limit"),
            most_generation=_number(row, "bridge_link_generation_limit"),
        ),
    )  # fmt: skip


def _switch(name: SubjectId, row: Mapping[str, Value]) -> NvSwitch:
    return NvSwitch(
        pci=PciAddress(name.partition(":")[2]), path=_path(row, "nvswitch_pci_path"),
        node=_number(row, "nvswitch_numa_node"),
    )  # fmt: skip


def _numbered(devices: Sequence[Device], word: str) -> tuple[Device, ...]:
    """The devices by the names that the matrix gives them. A GPU that NVML does not list now takes a number that is
    free: that of its place on the bus, where no other is gone."""
    taken = {_index(device) for device in devices}
    spare = (number for number in count() if number not in taken)
    numbers = [next(spare) if (index := _index(device)) is None else index for device in devices]
    named = sorted(zip(numbers, devices, strict=True), key=lambda pair: pair[0])
    return tuple(msgspec.structs.replace(device, name=f"{word}{number}") for number, device in named)


def _index(device: Device) -> int | None:
    return None if device.gpu is None else device.gpu.index


def _natural(device: Device) -> tuple[bool, tuple[tuple[int, str], ...]]:
    """RDMA devices first, as the matrix has them alone, and mlx5_2 before mlx5_10."""
    parts = re.split(r"(\d+)", device.alias or "")
    return (
        device.nic is None or device.nic.rdma is None,
        tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts),
    )


# --- what lies between two of them -----------------------------------------------------------------------------------


def between(one: Device, other: Device, numa: int | None = None) -> Level | None:
    """How far two devices are from each other by the PCIe tree alone; None where it does not tell.

    `numa` is how many NUMA nodes there are: with one alone, nothing can be on another.
    Source  the words of `nvidia-smi topo -m`: PIX at most one bridge (a switch counts as one), PXB more, PHB one root
            complex, NODE one NUMA node, SYS beyond
    """
    if not (one.path and other.path):
        return None
    shared = one.shared(other)
    if shared > 1:
        return "PIX" if max(len(one.path), len(other.path)) - shared <= 1 else "PXB"
    if shared == 1:
        return "PHB"
    if one.node is None or other.node is None:
        return "NODE" if numa == 1 else None
    return "NODE" if one.node == other.node else "SYS"


def _levels(devices: Sequence[Device], rows: Rows, notes: list[str]) -> Grid[Level]:
    told = _told(devices, rows, "common_ancestors")
    nodes = sum(cpus != "" for cpus in _keyed(rows.get(NODE, {}), "numa_cpus").values())  # "": memory alone
    grid: list[list[Level | None]] = [[None] * len(devices) for _ in devices]
    other: list[str] = []
    for i, j in combinations(range(len(devices)), 2):
        tree = between(devices[i], devices[j], nodes)
        driver = ANCESTORS.get(told.get((i, j), -1))
        if tree is not None and driver is not None and tree != driver:
            other.append(f"{devices[i].name} and {devices[j].name} {driver}, the kernel's tree {tree}")
        grid[i][j] = grid[j][i] = driver or tree
    if other:
        more = f" (and {len(other) - 1} more pairs)" if len(other) > 1 else ""
        notes.append(f"the driver calls {other[0]}{more}; the driver's word is shown")
    return tuple(tuple(row) for row in grid)


def _told(devices: Sequence[Device], rows: Rows, column: str) -> dict[tuple[int, int], int]:
    """What the driver told of pairs, by both of their places in order."""
    places = {device.pci: place for place, device in enumerate(devices) if device.kind == "gpu"}
    found: dict[tuple[int, int], int] = {}
    for device in devices:
        if device.kind == "gpu":
            parts = _parts(rows[SubjectId(f"gpu:{device.pci}")], column)
            for peer, code in zip(parts[::2], parts[1::2], strict=False):
                other = places.get(PciAddress(str(peer)))
                if other is not None and isinstance(code, int):
                    one = places[device.pci]
                    found[min(one, other), max(one, other)] = code
    return found


def _statuses(devices: Sequence[Device], rows: Rows) -> Grid[str]:
    told = _told(devices, rows, "p2p_read")
    grid: list[list[str | None]] = [[None] * len(devices) for _ in devices]
    for (i, j), code in told.items():
        grid[i][j] = grid[j][i] = P2P_STATUS[code] if 0 <= code < len(P2P_STATUS) else None
    return tuple(tuple(row) for row in grid)


def _bonds(devices: Sequence[Device], rows: Rows) -> Grid[int]:
    grid: list[list[int | None]] = [[0] * len(devices) for _ in devices]
    ends = [_ends(device, rows[SubjectId(f"gpu:{device.pci}")]) for device in devices if device.kind == "gpu"]
    for (i, one), (j, other) in combinations(enumerate(ends), 2):  # GPUs come first among the devices
        grid[i][j] = grid[j][i] = None if one is None or other is None else _bond(one, other)
    return tuple(tuple(row) for row in grid)


class _Ends(NamedTuple):
    """Where the NVLinks of a GPU that are up end: how many at each peer, and how many at switches in all, which is None
    where links are up and nobody tells."""

    gpu: str
    straight: Counter[str | None]
    switched: int | None


def _ends(gpu: Device, row: Mapping[str, Value]) -> _Ends | None:
    """None where the driver told nothing of this GPU's links."""
    if not _tells(row):
        return None
    return _Ends(f"gpu:{gpu.pci}", Counter(link.peer for link in _not_down(gpu)), _to_switches(gpu, row))


def _not_down(gpu: Device) -> list[NvLink]:
    return [link for link in links_of(gpu) if link.up is not False]


def _tells(row: Mapping[str, Value]) -> bool:
    """Whether the driver told of this GPU's NVLinks, and be it that there are none."""
    if _flag(row, "gpu_up") is False:
        return False
    return any(
        column in row for column in ("nvlink_peers", "nvlinks_to_switches", "mig_mode", "gpu_up", "gpu_index")
    ) and not ("nvlink_peers" in row and row["nvlink_peers"] is None)


def _bond(one: _Ends, other: _Ends) -> int | None:
    straight = max(one.straight[other.gpu], other.straight[one.gpu])
    switched = (one.switched, other.switched)
    if straight or 0 in switched:
        return max(straight, min(links or 0 for links in switched))
    return None if None in switched else min(links or 0 for links in switched)


def _to_switches(gpu: Device, row: Mapping[str, Value]) -> int | None:
    """How many of a GPU's links that end at switches are up; all switches of a node are one fabric. None where links
    are up and nobody tells where they end."""
    if gpu.gpu is not None and gpu.gpu.mig:
        return 0
    counted = _number(row, "nvlinks_to_switches")
    if not links_of(gpu):
        return counted or 0
    up = _not_down(gpu)
    told = sum(link.peer is not None and link.peer.startswith(ANY_SWITCH) for link in up)
    if told or all(link.peer is not None for link in up):
        return told
    return None if counted is None else min(counted, len(up))


def links_of(device: Device) -> tuple[NvLink, ...]:
    """The NVLinks of a device; none for a network card."""
    return () if device.gpu is None else device.gpu.links


# --- the rest of the node --------------------------------------------------------------------------------------------


def _numa(node: Mapping[str, Value]) -> tuple[NumaNode, ...]:
    cpus, sockets, distances = (_keyed(node, column) for column in ("numa_cpus", "numa_sockets", "numa_distances"))
    found = []
    for number in sorted(int(key) for key in cpus if key.isdecimal()):
        key = str(number)
        told = cpus[key]
        far = [(pair.partition("/")[2], d) for pair, d in distances.items() if pair.partition("/")[0] == key]
        socket = sockets.get(key)
        found.append(
            NumaNode(
                number=number, cpus=str(told) if told is not None else None,
                socket=socket if isinstance(socket, int) else None,
                distances=tuple(
                    sorted((int(to), d) for to, d in far if to.isdecimal() and isinstance(d, int))
                ),
            )
        )  # fmt: skip
    return tuple(found)


def _processors(node: Mapping[str, Value]) -> Processors:
    return Processors(
        architecture=_text(node, "cpu_architecture"), vendor=_text(node, "cpu_vendor"),
        family=_number(node, "cpu_family"), model=_number(node, "cpu_model"), siblings=_text(node, "cpu_siblings"),
    )  # fmt: skip


def _missing(rows: Rows, devices: Sequence[Device]) -> Iterator[str]:
    """What is not known of the wiring, and why."""
    gpus = [device for device in devices if device.kind == "gpu"]
    if not gpus:
        yield "no GPU is known: neither the kernel nor the driver tells of one"
        return
    of = {device.name: rows[SubjectId(f"gpu:{device.pci}")] for device in gpus}
    if treeless := [gpu.name for gpu in gpus if len(gpu.path) <= 1]:
        whose = "the PCIe tree" if len(treeless) == len(gpus) else f"the PCIe tree above {joined(treeless)}"
        yield f"{whose} is hidden, as in a virtual machine: switches and the way to network cards are not known"
    if silent := [name for name, row in of.items() if not _tells(row)]:
        whose = "any GPU" if len(silent) == len(gpus) else joined(silent)
        yield f"the driver's library does not tell of {whose}: NVLinks are not known there"
    if mig := [gpu.name for gpu in gpus if gpu.gpu is not None and gpu.gpu.mig]:
        yield f"{joined(mig)} in MIG mode: NVLinks are off there"
    if stateless := [gpu.name for gpu in gpus if any(link.up is None for link in links_of(gpu))]:
        yield f"whether each NVLink of {joined(stateless)} is up is not known: those links are shown as if they were"
    if placeless := [gpu.name for gpu in gpus if gpu.nodes is None]:
        whose = "any GPU" if len(placeless) == len(gpus) else joined(placeless)
        yield f"the NUMA node of {whose} is not known: the kernel says -1, as in a virtual machine"


# --- columns ---------------------------------------------------------------------------------------------------------


def _number(row: Mapping[str, Value], column: str) -> int | None:
    value = row.get(column)
    return int(value) if isinstance(value, int | float) and value % 1 == 0 else None


def _flag(row: Mapping[str, Value], column: str) -> bool | None:
    value = _number(row, column)
    return None if value is None else bool(value)


def _text(row: Mapping[str, Value], column: str) -> str | None:
    value = row.get(column)
    return value or None if isinstance(value, str) else None


def _parts(row: Mapping[str, Value], column: str) -> tuple[int | float | str | None, ...]:
    value = row.get(column)
    return value if isinstance(value, tuple) else ()


def _at(
    parts: Sequence[int | float | str | None], place: int, kind: Callable[[str | int | float], T | None]
) -> T | None:
    value = parts[place] if place < len(parts) else None
    return None if value is None else kind(value)


def _as_number(value: str | int | float) -> float | None:
    return None if isinstance(value, str) else value


def _keyed(row: Mapping[str, Value], column: str) -> dict[str, int | float | str | None]:
    parts = _parts(row, column)
    return {str(key): value for key, value in zip(parts[::2], parts[1::2], strict=False)}


def _path(row: Mapping[str, Value], column: str) -> tuple[str, ...]:
    return tuple(str(part) for part in _parts(row, column))


def _capability(text: str | None) -> tuple[int, int] | None:
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _clique(row: Mapping[str, Value]) -> str | None:
    """The NVLink domain: its cluster and the part of it, as topograph and the driver's device plugin name it."""
    cluster, clique = _text(row, "fabric_cluster"), _number(row, "fabric_clique")
    return None if cluster is None or clique is None else f"{cluster}.{clique}"
