"""How far two devices are from each other: in nvidia-smi's word, in hops, and as an estimated bandwidth.

The estimate is nominal, one way, for the better of the two ways there may be: the NVLinks between two GPUs that are up,
or the narrowest PCIe link on the way, as wide as it is now and as fast as it can be (an idle link slows down to save
power, it does not get narrower). What is not known of bridges on the way does not count, so real bandwidth is at most
this. A link that is lost never makes two devices look nearer.

Source    NVLink: NVIDIA's white papers of P100 (20 GB/s each way and link), V100, Turing, A100 and H100 (25), GA102
          (14.0625), Blackwell (1.8 TB/s both ways over 18 links). PCIe: Base Specification, 8b/10b up to generation 2,
          128b/130b up to 5, 236 of the 256 bytes of a flit in 6. Between sockets: NCCL 2.30 src/graph/topo.h and
          topo.cc (ncclTopoGetInterCpuBw), which are estimates for GPU traffic. NVLink's version is no help for H100 and
          newer: nvmlDeviceGetNvLinkVersion says 5.0 for both (seen on H100), so the compute capability comes first
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import msgspec

from gpuguard.errors import UsageError
from gpuguard.model.topology import ANY_SWITCH, LEVELS, SELF, Device, Level, PcieLink, Topology

Way = Literal["self", "nvlink", "pcie", "socket"]

# Bytes per second, one way, of one NVLink by compute capability, and by NVML's code of the version where that is clear.
BY_COMPUTE = {
    (6, 0): 20e9, (7, 0): 25e9, (7, 5): 25e9, (8, 0): 25e9, (8, 6): 14.0625e9, (9, 0): 25e9, (10, 0): 50e9,
    (10, 3): 50e9,
}  # fmt: skip
BY_VERSION = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9}
# Bytes per second, one way, of one PCIe lane by generation.
BY_LANE = {
    1: 2.5e9 / 10, 2: 5e9 / 10, 3: 8e9 / 8 * 128 / 130, 4: 16e9 / 8 * 128 / 130, 5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 236 / 256,
}  # fmt: skip
# Bytes per second between two sockets. Intel's by the least model of family 6, newest first; Granite Rapids and Sierra
# Forest are new ones with low numbers.
AMD_SOCKETS = 16e9
POWER_SOCKETS = 32e9
INTEL_SOCKETS = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
INTEL_NEW = (0xAD, 0xAE, 0xAF)
INTEL_FAMILY = 6

# How far over PCIe, as a number: nearest first. Two NUMA nodes of one socket are nearer than two sockets; what is not
# known may be another socket, and is worse than all that is known not to be, but better than one that is.
SAME_SOCKET, NOT_KNOWN, FARTHEST = 4, 5, 6
RANKS: dict[Level | None, int] = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, None: NOT_KNOWN, "SYS": FARTHEST}

_MEANING = {
    0: "share one PCIe switch or bridge (PIX)",
    1: "are below one PCIe root port, with more than one switch or bridge between them (PXB)",
    2: "meet at one PCIe host bridge, in the processor (PHB)",
    3: "are on one NUMA node, at different PCIe host bridges (NODE)",
    NOT_KNOWN: "are joined over PCIe, and how far is not known",
    SAME_SOCKET: "are on one socket and reach each other over its inner links (SYS)",
    FARTHEST: "reach each other only over the link between processors (SYS)",
}


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """How far two devices are from each other.

    Shape   cell: as in the matrix. level: over PCIe, also where NVLink hides it in the matrix and others tell. kind:
            the way that `hops` and `bytes_per_second` are of. hops: what is passed on the way and one more, so 1 for
            a direct NVLink and 2 through an NVSwitch
    Units   bytes per second, one way; None is not known
    """

    cell: str | None
    level: Level | None
    kind: Way | None
    hops: int | None
    bytes_per_second: float | None
    words: str


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a pair of GPUs is worth beside the best pair of the node; `ratio` of their bandwidths, None if unknown.
    `words` tell of both pairs, `alone` of this one."""

    pair: tuple[str, str]
    best: tuple[str, str]
    ratio: float | None
    words: str
    alone: str


def distance(topology: Topology, i: int, j: int) -> Distance:
    """The distance of the devices at two places."""
    one, other = topology.devices[i], topology.devices[j]
    if i == j:
        return Distance(
            cell=SELF, level=None, kind="self", hops=0, bytes_per_second=None, words=f"{one.name} is the device itself"
        )
    level, rank = level_of(topology, i, j), rank_of(topology, i, j)
    bond, wire, bus = _bond(topology, i, j), nvlink_speed(topology, i, j), pcie_speed(topology, i, j)
    over: Way | None = "socket" if rank == FARTHEST else "pcie" if level is not None or bus is not None else None
    # With NVLinks unknown, what PCIe carries says little of what the pair can do.
    way, hops, speed = over, _pcie_hops(topology, one, other), None if bond is None else bus
    if bond and (wire is None or bus is None or bus <= wire):
        way, hops, speed = "nvlink", _nvlink_hops(one, other), wire
    return Distance(
        cell=topology.cell(i, j), level=level, kind=way, hops=hops, bytes_per_second=speed,
        words=_words(one, other, bond, rank, speed, way == "nvlink"),
    )  # fmt: skip


def _words(one: Device, other: Device, bond: int | None, rank: int, speed: float | None, by_nvlink: bool) -> str:
    pair = f"{one.name} and {other.name}"
    much = "" if speed is None else f", at most {_gigabytes(speed)} each way"
    if not bond:
        unknown = "; whether NVLinks join them is not known" if bond is None else ""
        return f"{pair} {_MEANING[rank]}{much}{unknown}"
    links = f"{bond} NVLink{'s' if bond > 1 else ''}"
    through = " through NVSwitches" if _nvlink_hops(one, other) == 2 else ""
    return f"{pair} are joined by {links}{through}{'' if by_nvlink else ', and PCIe carries more'}{much}"


def _gigabytes(speed: float) -> str:
    return f"{speed / 1e9:.3g} GB/s"


# --- bandwidth -------------------------------------------------------------------------------------------------------


def link_speed(device: Device) -> float | None:
    """Bytes per second, one way, of one NVLink of this GPU, up or down; None where nothing tells."""
    gpu = device.gpu
    if gpu is None:
        return None
    told = [link.bytes_per_second for link in gpu.links if link.bytes_per_second]
    if told:
        return max(told)
    if gpu.compute is not None:
        return BY_COMPUTE.get(gpu.compute)
    return next((BY_VERSION[link.version] for link in gpu.links if link.version in BY_VERSION), None)


def _bond(topology: Topology, i: int, j: int) -> int | None:
    """NVLinks between two places that are up; a network card has none."""
    if topology.devices[i].kind == topology.devices[j].kind == "gpu":
        return topology.bonds[i][j]
    return 0


def nvlink_speed(topology: Topology, i: int, j: int) -> float | None:
    """Bytes per second, one way, of the NVLinks between two places: 0 without any, None where it is not known."""
    bond = _bond(topology, i, j)
    if not bond:
        return None if bond is None else 0.0
    one, other = (link_speed(topology.devices[place]) for place in (i, j))
    return None if one is None or other is None else bond * min(one, other)


def pcie_speed(topology: Topology, i: int, j: int) -> float | None:
    """Bytes per second, one way, of the narrowest link on the way over PCIe, and over the link between sockets; None
    where one end, or what the processors have between them, is not known."""
    one, other = topology.devices[i], topology.devices[j]
    links = {str(bridge.pci): bridge.link for bridge in topology.bridges}
    crossed = [one.link, other.link, *(links[part] for part in _crossed(topology, one, other) if part in links)]
    speeds = [_speed(link) for link in crossed]
    if speeds[0] is None or speeds[1] is None:
        return None
    known = [speed for speed in speeds if speed is not None]
    if rank_of(topology, i, j) != FARTHEST:
        return min(known)
    sockets = _socket_speed(topology)
    return None if sockets is None else min(*known, sockets)


def _speed(link: PcieLink) -> float | None:
    lanes = link.most_lanes if link.lanes is None else link.lanes
    generation = link.generation if link.most_generation is None else link.most_generation
    lane = None if generation is None else BY_LANE.get(generation)
    return None if lanes is None or lane is None else lanes * lane


def _crossed(topology: Topology, one: Device, other: Device) -> list[str]:
    """The bridges between two devices; those above both too where ACS sends what they write to the root first."""
    shared = one.shared(other)
    apart = [*one.path[shared:], *other.path[shared:]] if shared else [*one.path[1:], *other.path[1:]]
    redirects = {str(bridge.pci) for bridge in topology.bridges if bridge.redirects}
    if shared > 1 and not redirects.isdisjoint(apart):
        return [*apart, *one.path[1:shared]]
    return apart


def _socket_speed(topology: Topology) -> float | None:
    """What NCCL expects of the link between two sockets of these processors; None where it says nothing."""
    told = topology.processors
    if told.architecture in ("ppc64", "ppc64le"):
        return POWER_SOCKETS
    if told.vendor == "AuthenticAMD":
        return AMD_SOCKETS
    if told.vendor == "GenuineIntel" and told.family == INTEL_FAMILY and (model := told.model) is not None:
        return INTEL_SOCKETS[0][1] if model in INTEL_NEW else next(s for least, s in INTEL_SOCKETS if model >= least)
    return None


# --- hops ------------------------------------------------------------------------------------------------------------


def _nvlink_hops(one: Device, other: Device) -> int | None:
    peers = [[link.peer or "" for link in device.gpu.links] if device.gpu else [] for device in (one, other)]
    if f"gpu:{other.pci}" in peers[0] or f"gpu:{one.pci}" in peers[1]:
        return 1
    return 2 if all(any(peer.startswith(ANY_SWITCH) for peer in ends) for ends in peers) else None


def _pcie_hops(topology: Topology, one: Device, other: Device) -> int | None:
    """Bridges and root complexes passed, and one more; None where the tree is not known."""
    shared = one.shared(other)
    if not (len(one.path) > 1 and len(other.path) > 1):
        return None
    crossed = _crossed(topology, one, other)
    apart = len(one.path) + len(other.path) - 2 * shared if shared else len(one.path) + len(other.path) - 2
    up_and_down = 2 * (len(crossed) - apart)
    roots = 2 if not shared else 1 if shared == 1 or up_and_down else 0
    return apart + up_and_down + roots + 1


# --- how far over PCIe -----------------------------------------------------------------------------------------------


def level_of(topology: Topology, i: int, j: int) -> Level | None:
    """How far two places are over PCIe; where the matrix hides it behind NVLinks, what others tell; else None.

    PCIe is a tree: of three devices the two greatest distances are equal. So a card that is PXB from one GPU and SYS
    from the other puts these SYS apart, and one that is PXB from both puts them PXB apart at most. GPUs of one NUMA
    node are NODE apart at most, those of two are SYS apart.
    """
    told = topology.levels[i][j]
    if told is not None:
        return told
    exact, most = -1, len(LEVELS) - 1
    for one, other in zip(topology.levels[i], topology.levels[j], strict=True):
        if one is not None and other is not None:
            if one == other:
                most = min(most, LEVELS.index(one))
            else:
                exact = max(exact, LEVELS.index(one), LEVELS.index(other))
    nodes = {topology.devices[place].nodes for place in (i, j)}
    if None not in nodes:
        if len(nodes) > 1:
            exact = len(LEVELS) - 1
        else:
            most = min(most, LEVELS.index("NODE"))
    if exact >= 0:
        return LEVELS[exact]
    return LEVELS[most] if most < len(LEVELS) - 1 else None


def rank_of(topology: Topology, i: int, j: int) -> int:
    """How far two places are over PCIe as a number, nearest first, as in RANKS."""
    level = level_of(topology, i, j)
    if level == "SYS":
        one, other = topology.devices[i].node, topology.devices[j].node
        socket = _socket(topology, one)
        together = one is not None and (one == other or (socket is not None and socket == _socket(topology, other)))
        return SAME_SOCKET if together else FARTHEST
    return RANKS[level]


def _socket(topology: Topology, node: int | None) -> int | None:
    return next((numa.socket for numa in topology.numa if numa.number == node), None)


# --- all pairs of GPUs -----------------------------------------------------------------------------------------------


def places_of_gpus(topology: Topology) -> list[int]:
    """The places of the GPUs."""
    return [place for place, device in enumerate(topology.devices) if device.kind == "gpu"]


def weights(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """How much NVLink joins each two GPUs, in the order of the GPUs: links where all are equally fast or nobody
    tells, else megabytes per second. What is not known counts as none."""
    places = places_of_gpus(topology)
    speeds = {link_speed(topology.devices[place]) for place in places}
    if len(speeds) <= 1 or None in speeds:
        return tuple(tuple(topology.bonds[i][j] or 0 if i != j else 0 for j in places) for i in places)
    return tuple(
        tuple(round((nvlink_speed(topology, i, j) or 0.0) / 1e6) if i != j else 0 for j in places) for i in places
    )


def ranks(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """How far over PCIe each two GPUs are, in the order of the GPUs, as in RANKS; 0 to itself."""
    places = places_of_gpus(topology)
    return tuple(tuple(rank_of(topology, i, j) if i != j else 0 for j in places) for i in places)


def cost(topology: Topology, i: int, j: int) -> Cost:
    """What the GPUs at two places are worth beside the pair with most NVLink, else the nearest one.

    Raises  UsageError where these are not two GPUs
    """
    if i == j or not {i, j} <= set(places_of_gpus(topology)):
        raise UsageError(f"{topology.devices[i].name} and {topology.devices[j].name} are not two GPUs; name two")
    best = best_pair(topology)
    here, there = distance(topology, i, j), distance(topology, *best)
    ratio = None
    if here.bytes_per_second is not None and there.bytes_per_second:
        ratio = here.bytes_per_second / there.bytes_per_second
    names = _names(topology, (i, j))
    mine, most = _merit(topology, (i, j)), _merit(topology, best)
    # With as many NVLinks as the best pair has, PCIe between them matters little.
    if mine <= most or (mine[0] == most[0] < 0):
        sure = "" if _is_known(topology, i, j) else "known to be "
        alone, more = here.words, f"; no pair of this node is {sure}better joined"
    else:
        share = "" if ratio is None else f", {_percent(ratio)} of what the best pair has"
        alone, more = f"{here.words}{share}", f"; {there.words}"
    return Cost(pair=names, best=_names(topology, best), ratio=ratio, words=alone + more, alone=alone)


def _is_known(topology: Topology, i: int, j: int) -> bool:
    """Whether it is known what joins two GPUs: their NVLinks, and without any how far they are over PCIe."""
    bond = _bond(topology, i, j)
    return bond is not None and (bond > 0 or rank_of(topology, i, j) != NOT_KNOWN)


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %" if ratio >= 0.1 else f"{ratio * 100:.2g} %"


def _names(topology: Topology, pair: Sequence[int]) -> tuple[str, str]:
    return topology.devices[pair[0]].name, topology.devices[pair[1]].name


def best_pair(topology: Topology) -> tuple[int, int]:
    """The places of the two GPUs that are best joined: by most NVLink, else nearest; the lowest of equal ones.

    Raises  UsageError where there are not two
    """
    places = places_of_gpus(topology)
    if len(places) < 2:
        raise UsageError("there are not two GPUs here, so no pair to choose")
    wires, far = weights(topology), ranks(topology)
    pairs = combinations(range(len(places)), 2)
    one, other = min(pairs, key=lambda pair: (-wires[pair[0]][pair[1]], far[pair[0]][pair[1]]))
    return places[one], places[other]


def _merit(topology: Topology, pair: tuple[int, int]) -> tuple[int, int]:
    """Less is better: by NVLink, then over PCIe."""
    one, other = (places_of_gpus(topology).index(place) for place in pair)
    return -weights(topology)[one][other], ranks(topology)[one][other]
