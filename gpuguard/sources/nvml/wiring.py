"""How the GPUs are wired, as the driver tells it: what NVLinks end at, what two GPUs share, which processors are near.

Read with the slow sweep and whenever what there is has changed, as nobody rewires a machine that runs. Each pair is
asked once and told of both GPUs: eight GPUs have 28, with five questions each.

A link that is down may tell no peer. It keeps the one it had earlier in the life of this reader; that it is down is
told by `nvlink_up`. What no link was ever heard of is unknown. In MIG mode links mean nothing and are absent.

Source  nvml.h 13.5: nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlIntNvLinkDeviceType_t, nvmlGpuTopologyLevel_t,
        nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t; NCCL src/graph/xml.cc for switches that a virtual machine hides
"""

import math
from collections.abc import Collection, Sequence
from itertools import combinations

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import PciAddress, SubjectId, nvswitch, parse_pci_address
from gpuguard.model.ids import gpu as gpu_at
from gpuguard.model.readings import Scalar, Values
from gpuguard.sources.nvml import readings
from gpuguard.sources.nvml.gpu import STRIKES, Counts, Gpu
from gpuguard.sources.nvml.library import (
    ABSENT_CODES,
    FATAL_CODES,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST_CODES,
    Answer,
    Library,
    NvmlError,
    Value,
)
from gpuguard.sources.nvml.links import count_links

MEGA = 10**6
TYPE_CALL, ADDRESS_CALL = "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"
A_GPU, AN_NPU, A_SWITCH = 0, 1, 2  # nvmlIntNvLinkDeviceType_t; 255 unknown
HIDDEN = "nvswitch"  # a switch that shows no address
LAST_SLOT = 0x1F  # of a PCI bus
NODE_SCOPE = 0  # NVML_AFFINITY_SCOPE_NODE
WORD = 64  # bits of a word of a mask

_PEERS = readings.column("nvlink_peers")
_TO_SWITCHES = readings.column("nvlinks_to_switches")
_SPEED = readings.column("nvlink_speed_bytes_per_second", MEGA)
_CPUS, _NODES = readings.column("nvml_cpus"), readings.column("nvml_numa_nodes")
_CAPABILITY = readings.column("gpu_compute_capability")
_CLUSTER, _CLIQUE = readings.column("fabric_cluster"), readings.column("fabric_clique")
# What is asked of two GPUs: the column, the call and its arguments.
_PAIRS: tuple[tuple[readings.Column, str, tuple[int, ...]], ...] = (
    (readings.column("common_ancestors"), "nvmlDeviceGetTopologyCommonAncestor", ()),
    *(
        (readings.column(f"p2p_{what}"), "nvmlDeviceGetP2PStatus", (index,))
        for index, what in enumerate(("read", "write", "nvlink", "atomics"))
    ),
)


def read_wiring(row: Values, gpu: Gpu, *, library: Library, counts: Counts, gpus: Collection[PciAddress]) -> None:
    """The row has what the driver tells of this GPU's place; `gpus` are all that are known.

    Raises  NvmlError where the GPU or the library is lost
    """
    for column, call, arguments in (
        (_CPUS, "nvmlDeviceGetCpuAffinity", ()), (_NODES, "nvmlDeviceGetMemoryAffinity", (NODE_SCOPE,)),
    ):  # fmt: skip
        words = _ask(row, gpu, library, counts, (column,), call, *arguments)
        if words is not None:
            row[column.name] = _numbers(words, column, counts)
    answer = _ask(row, gpu, library, counts, (_CAPABILITY,), "nvmlDeviceGetCudaComputeCapability")
    if isinstance(answer, dict):
        row[_CAPABILITY.name] = f"{answer.get('major')}.{answer.get('minor')}"
    _read_clique(row, gpu, library, counts)
    _read_links(row, gpu, library, counts, gpus)


def _ask(
    row: Values,
    gpu: Gpu,
    library: Library,
    counts: Counts,
    columns: Sequence[readings.Column],
    call: str,
    *arguments: int,
) -> Answer | None:
    """What a call says; None where it is not supported, and where it failed and the columns are unknown."""
    if call in gpu.off:
        return None
    try:
        return library.call(gpu.device, call, *arguments)
    except NvmlError as error:
        if error.code in ABSENT_CODES:
            gpu.off.add(call)
        else:
            counts.failed(row, columns, error)
        return None


def _numbers(words: Answer, column: readings.Column, counts: Counts) -> str | None:
    """The numbers of the bits that are set, as the kernel prints lists: "0-55,112-167"; None where there are none, as
    in a container whose processors are others."""
    bits = 0
    for place, word in enumerate(words if isinstance(words, list) else (None,)):
        if not isinstance(word, int) or not 0 <= word < 1 << WORD:
            counts.reject(column.name)
            return None
        bits |= word << WORD * place
    ranges, number = [], 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & bits + 1).bit_length() - 1
        first = number + skipped
        ranges.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        bits >>= length
        number = first + length
    return ",".join(ranges) or None


def _read_clique(row: Values, gpu: Gpu, library: Library, counts: Counts) -> None:
    """Which NVLink domain beyond the node the GPU belongs to; unknown until its fabric is ready."""
    columns = (_CLUSTER, _CLIQUE)
    answer = _ask(row, gpu, library, counts, columns, readings.FABRIC_CALL)
    if not isinstance(answer, dict) or not answer.get("state"):  # 0: this GPU has no fabric
        return
    if answer["state"] != readings.FABRIC_DONE or answer.get("status"):
        row[_CLUSTER.name] = row[_CLIQUE.name] = None
        return
    cluster = str(answer.get("clusterUuid", ""))
    if cluster.strip("0-"):  # all zeros: its fabric ends with the node
        row[_CLUSTER.name] = cluster
        counts.put(row, _CLIQUE, answer.get("cliqueId"))


# --- NVLink ----------------------------------------------------------------------------------------------------------


def _read_links(row: Values, gpu: Gpu, library: Library, counts: Counts, gpus: Collection[PciAddress]) -> None:
    if gpu.mig_mode == 1:
        return
    links = count_links(gpu, library, counts)
    if links is None:
        row[_PEERS.name] = None
    if not links:
        return
    kinds = _fields(gpu, links, library, counts)
    if readings.SWITCHED in kinds:
        (number,) = kinds[readings.SWITCHED]
        if isinstance(number, NvmlError):
            row[_TO_SWITCHES.name] = None
        else:
            counts.put(row, _TO_SWITCHES, number)
    speeds = [value for kind in (readings.LINKS_SPEED, readings.LINK_SPEED) for value in kinds.get(kind, ())]
    if speeds:
        # Links that are down have a speed of 0, which is not what they can carry.
        told = [value for value in speeds if not isinstance(value, NvmlError) and value > 0 and math.isfinite(value)]
        if told:
            counts.put(row, _SPEED, max(told))
        else:
            row[_SPEED.name] = None
    peers = _peers(gpu, links, library, counts, gpus)
    if peers is not None:
        row[_PEERS.name] = peers


def _fields(gpu: Gpu, links: int, library: Library, counts: Counts) -> dict[int, Sequence[Value]]:
    """What each kind of field gave, without those that are not supported; those are dropped after three times."""
    scopes = {readings.SWITCHED: range(1), readings.LINKS_SPEED: range(1), readings.LINK_SPEED: range(links)}
    scopes = {kind: places for kind, places in scopes.items() if gpu.link_strikes.get(kind, 0) < STRIKES}
    wanted = tuple((kind, place) for kind, places in scopes.items() for place in places)
    if not wanted:
        return {}
    try:
        values: Sequence[Value] = library.fields(gpu.device, wanted)
    except NvmlError as error:
        values = [error] * len(wanted)
    found: dict[int, Sequence[Value]] = {}
    for kind in scopes:
        own = [value for (asked, _), value in zip(wanted, values, strict=True) if asked == kind]
        if all(isinstance(value, NvmlError) and value.code in ABSENT_CODES for value in own):
            gpu.link_strikes[kind] = gpu.link_strikes.get(kind, 0) + 1
            continue
        for value in own:
            if isinstance(value, NvmlError) and value.code not in ABSENT_CODES:
                counts.failed({}, (), value)
        found[kind] = own
    return found


def _peers(
    gpu: Gpu, links: int, library: Library, counts: Counts, gpus: Collection[PciAddress]
) -> tuple[str | None, ...] | None:
    """What each link ends at, None where nobody knows; None for all where this driver has no way to tell."""
    peers: list[str | None] = []
    known = 0  # links up to the last one that the driver knows of
    for link in range(links):
        kind, address = (_ask_link(gpu, call, link, library, counts) for call in (TYPE_CALL, ADDRESS_CALL))
        codes = {answer.code if isinstance(answer, NvmlError) else 0 for answer in (kind, address)}
        if codes == {FUNCTION_NOT_FOUND}:
            return None
        peer = _peer(kind, address, gpus)
        if peer is None or peer == HIDDEN:
            peer = gpu.link_peers.get(link, peer)
        if peer is not None:
            gpu.link_peers[link] = peer
        peers.append(peer)
        if codes != {INVALID_ARGUMENT} or peer is not None:
            known = link + 1
    return tuple(peers[:known])


def _ask_link(gpu: Gpu, call: str, link: int, library: Library, counts: Counts) -> Answer | NvmlError:
    """What a call says of a link, or why it says nothing. It is asked each time: one that is down may come up.

    Raises  NvmlError where the GPU or the library is lost
    """
    try:
        return library.call(gpu.device, call, link)
    except NvmlError as error:
        if error.code != INVALID_ARGUMENT and error.code not in ABSENT_CODES:
            counts.failed({}, (), error)
        return error


def _peer(kind: Answer | NvmlError, address: Answer | NvmlError, gpus: Collection[PciAddress]) -> str | None:
    """The subject that a link ends at; None where the driver does not tell."""
    text = str(address["busId"]) if isinstance(address, dict) else ""
    pci = _address(text)
    if kind == A_SWITCH:
        return HIDDEN if pci is None else nvswitch(pci)
    if kind == AN_NPU:
        return None if pci is None else SubjectId(f"npu:{pci}")
    if pci is not None and (kind == A_GPU or pci in gpus):
        return gpu_at(pci)
    if kind != A_GPU and _all_ones(text):
        return HIDDEN  # a virtual machine is shown neither the switch nor that it is one
    return None


def _address(text: str) -> PciAddress | None:
    """The address of a peer; None for what stands there in place of one: all ones, zeros, or nothing."""
    try:
        pci = parse_pci_address(text)
    except NotUnderstood:
        return None
    return None if int(pci[-4:-2], 16) > LAST_SLOT or pci.startswith("0000:00:00.") else pci


def _all_ones(text: str) -> bool:
    places = text.lower().partition(".")[0].replace(":", "")
    return bool(places) and not places.strip("f")


# --- pairs -----------------------------------------------------------------------------------------------------------


def read_pairs(rows: dict[SubjectId, Values], gpus: Sequence[Gpu], library: Library, counts: Counts) -> None:
    """The rows of these GPUs have what the driver says of each two of them; a pair that lost one is left out.

    Raises  NvmlError where the library is lost
    """
    found: dict[SubjectId, dict[str, list[Scalar]]] = {gpu_at(gpu.pci): {} for gpu in gpus}
    for one, other in combinations(gpus, 2):
        for name, value in _pair(one, other, library, counts):
            for gpu, peer in ((one, other), (other, one)):
                found[gpu_at(gpu.pci)].setdefault(name, []).extend((peer.pci, value))
    for subject, columns in found.items():
        rows[subject].update((name, tuple(parts)) for name, parts in columns.items())


def _pair(one: Gpu, other: Gpu, library: Library, counts: Counts) -> list[tuple[str, Scalar]]:
    """What the driver says of two GPUs, by column; nothing where one of them is lost, which its own calls tell."""
    told: list[tuple[str, Scalar]] = []
    for column, call, arguments in _PAIRS:
        try:
            code = library.pair(one.device, other.device, call, *arguments)
        except NvmlError as error:
            if error.code in FATAL_CODES:
                raise
            if error.code in ABSENT_CODES:
                continue
            counts.erred(error.code)
            if error.code in LOST_CODES:
                return []
            told.append((column.name, None))
        else:
            known = isinstance(code, int) and column.low <= code <= column.high
            if not known:
                counts.reject(column.name)
            told.append((column.name, code if known else None))
    return told
