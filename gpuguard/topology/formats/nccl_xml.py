"""The wiring for NCCL: a file for NCCL_TOPO_FILE, in the form that NCCL_TOPO_DUMP_FILE writes.

As NCCL builds it: a PCI switch is its upstream port, root ports and downstream ports are left out, and links of PCI
have what both ends can do, not what they idle at. What is not known is left out, and NCCL then reads it by itself;
left to it is also what only a job knows (`rank`), what only NCCL's network plugin knows (`guid`, `port`, `maxconn`),
and GPUDirect (`gdr`): a value here would stand above its own. `dev` of a `net` is its place here; NCCL numbers anew.

NCCL's reader is no reader of XML: no declaration, no entities, one blank before each attribute, no tab, values of at
most 254 letters.

Source    NCCL 2.18 to 2.28, src/graph/xml.cc, xml.h and topo.cc (NCCL_TOPO_XML_VERSION 1)
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.topology import ANY_SWITCH, Bridge, Device, Gpu, Nic, PcieLink, Topology
from gpuguard.topology import spelling
from gpuguard.topology.cpus import mask, numbers
from gpuguard.topology.formats import Wish

VERSION = 1
LONGEST_VALUE = 254
# PCI classes. NCCL looks at the first byte of a GPU's and a card's, and asks the device itself where it can.
BRIDGE, GPU, NIC = "0x060400", "0x030200", "0x02"
NVSWITCH, NPU = "0x068000", "0x068001"
# What stands for an NVSwitch that shows no address, in NCCL's words.
NO_ADDRESS = "fffffff:ffff:ff"
# As the kernel prints a link's speed (drivers/pci/probe.c, pci_speed_string).
SPEEDS = {
    1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe",
    6: "64.0 GT/s PCIe",
}  # fmt: skip
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64", "ppc64le": "ppc64", "ppc64": "ppc64"}
ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
Value = str | int | None


@dataclass(slots=True)
class Element:
    """An element of the file: its name, what it says, and what is inside; None says nothing."""

    name: str
    says: dict[str, Value]
    inside: list["Element"] = field(default_factory=list)


def render(topology: Topology, wish: Wish) -> str:
    """The whole file.

    Raises  Absent when no GPU is known; NotUnderstood when one has no address
    """
    if not topology.gpus:
        raise Absent("no GPU is known, so that NCCL has nothing to read: look at `gpuguard topo` first")
    placeless = [gpu.name for gpu in topology.gpus if gpu.pci is None or not ADDRESS.fullmatch(gpu.pci)]
    if placeless:
        raise NotUnderstood(
            f"{placeless[0]} has no PCI address that NCCL knows, and NCCL finds a GPU by it: run it on the machine "
            "itself, not on a matrix"
        )
    host = wish.node or topology.host or ""
    where = host if spelling.is_node(host) and "--" not in host else "this node"
    lines = [f"<!-- The wiring of {where} for NCCL_TOPO_FILE, by gpuguard. -->"]
    lines += [f"<!-- {remark} -->" for remark in _remarks(topology)]
    system = Element("system", {"version": VERSION}, _cpus(topology))
    return "\n".join([*lines, *_written(system, 0)]) + "\n"


def _remarks(topology: Topology) -> Iterator[str]:
    unknown = [gpu.name for gpu in topology.gpus if _nvlinks(gpu) is None]
    if unknown:
        yield f"NVLinks of {', '.join(unknown)} are not all known and left out: NCCL asks the driver itself."
    if hidden := [gpu.name for gpu in topology.gpus if len(gpu.path) <= 1]:
        yield f"PCI switches above {', '.join(hidden)} are not known: the tree is hidden here."


# --- the tree --------------------------------------------------------------------------------------------------------


def _cpus(topology: Topology) -> list[Element]:
    """A `cpu` for each NUMA node that something hangs on; -1 is NCCL's own number for one that is not known."""
    bridges = {str(bridge.pci): bridge for bridge in topology.bridges}
    found: dict[int, Element] = {}
    for place, device in enumerate(topology.devices):
        if not _used(device):
            continue
        number = -1 if device.node is None else device.node
        above = found.setdefault(number, _cpu(topology, number))
        for address in _switches(device.path):
            above = _below(above, _pci(address, BRIDGE, bridges.get(address)))
        leaf = _below(above, _pci(str(device.pci), GPU if device.kind == "gpu" else NIC, device))
        leaf.inside.append(_gpu(device) if device.kind == "gpu" else _nic(device, place - len(topology.gpus)))
    for cpu in found.values():
        _sort(cpu)
    return [found[number] for number in sorted(found)]


def _used(device: Device) -> bool:
    """Whether NCCL looks for it: GPUs, and cards with RDMA, that it finds by address."""
    if device.pci is None or not ADDRESS.fullmatch(device.pci):
        return False
    return device.kind == "gpu" or (device.nic is not None and device.nic.rdma is not None)


def _switches(path: Sequence[str]) -> list[str]:
    """The PCI switches above a device, from the root down, each by its upstream port: NCCL goes up by two bridges at a
    time until it comes to a root complex, and stops below one that has no address of four digits."""
    found: list[str] = []
    for bridge in path[-2:0:-2]:
        if not ADDRESS.fullmatch(bridge):
            break
        found.insert(0, bridge)
    return found


def _below(above: Element, wanted: Element) -> Element:
    """The element of this address below another: the one that is there, or this one from now on."""
    for child in above.inside:
        if child.says.get("busid") == wanted.says["busid"]:
            return child
    above.inside.append(wanted)
    return wanted


def _sort(element: Element) -> None:
    """Devices of PCI in the order of their addresses, as NCCL keeps them."""
    element.inside.sort(key=lambda child: str(child.says.get("busid", "")))
    for child in element.inside:
        if child.name == "pci":
            _sort(child)


def _cpu(topology: Topology, number: int) -> Element:
    told = topology.processors
    says: dict[str, Value] = {"numaid": number, "affinity": _affinity(topology, number)}
    says["arch"] = ARCHITECTURES.get(told.architecture or "")
    if says["arch"] == "x86_64":
        says |= {"vendor": told.vendor, "familyid": _family(told.family), "modelid": told.model}
    return Element("cpu", says)


def _affinity(topology: Topology, number: int) -> str | None:
    """The processors of a NUMA node as the kernel masks them; None where they are not known, or NCCL could not read
    them for their length (more than 896 processors): it reads them by itself then."""
    try:
        every = {node.number: numbers(node.cpus) for node in topology.numa if node.cpus}
    except NotUnderstood:
        return None
    here = every.get(number)
    if not here:
        return None
    text = mask(here, max(processors[-1] for processors in every.values()))
    return text if len(text) <= LONGEST_VALUE else None


def _family(family: int | None) -> int | None:
    """NCCL's number of a family: it shifts the extended part by four bits, so that AMD's 25 is 175."""
    return family if family is None or family < 15 else 15 + ((family - 15) << 4)


def _pci(address: str, kind: str, told: Device | Bridge | None) -> Element:
    ids: str | None = None
    link = PcieLink()
    if isinstance(told, Bridge):
        ids, link = told.pci_id, told.link
    elif told is not None:
        ids = (told.gpu.pci_id if told.gpu else None) or (told.nic.pci_id if told.nic else None)
        link = told.link
    known = re.fullmatch(r"([0-9a-f]{4}):([0-9a-f]{4})", (ids or "").lower())
    return Element("pci", {
        "busid": address, "class": kind,
        "vendor": f"0x{known[1]}" if known else None, "device": f"0x{known[2]}" if known else None,
        "link_speed": None if link.most_generation is None else SPEEDS.get(link.most_generation),
        "link_width": link.most_lanes,
    })  # fmt: skip


# --- what hangs on it ------------------------------------------------------------------------------------------------


def _gpu(device: Device) -> Element:
    told = device.gpu or Gpu()
    sm = None if told.compute is None else 10 * told.compute[0] + told.compute[1]
    links = _nvlinks(device) or {}
    inside = [
        Element("nvlink", {"target": target, "count": count, "tclass": kind})
        for (target, kind), count in links.items()
    ]  # fmt: skip
    return Element("gpu", {"dev": told.index, "sm": sm}, inside)


def _nvlinks(device: Device) -> dict[tuple[str, str], int] | None:
    """How many NVLinks that are up go to each target of a class; None where one of them is not known: a part of them
    would keep NCCL from asking for the rest."""
    found: dict[tuple[str, str], int] = {}
    for link in (device.gpu or Gpu()).links:
        if link.up is False:
            continue
        target = None if link.up is None or link.peer is None else _target(link.peer)
        if target is None:
            return None
        found[target] = found.get(target, 0) + 1
    return found


def _target(peer: str) -> tuple[str, str] | None:
    if peer == ANY_SWITCH:
        return NO_ADDRESS, NVSWITCH
    kind, _, address = peer.partition(":")
    tclass = {"gpu": GPU, "nvswitch": NVSWITCH, "npu": NPU}.get(kind)
    return (address, tclass) if tclass is not None and ADDRESS.fullmatch(address) else None


def _nic(device: Device, number: int) -> Element:
    told = device.nic or Nic()
    speed = None if told.bits_per_second is None else round(told.bits_per_second / 1e6)
    return Element("nic", {}, [Element("net", {"name": told.rdma, "dev": number, "speed": speed or None})])


# --- text ------------------------------------------------------------------------------------------------------------


def _written(element: Element, depth: int) -> Iterator[str]:
    pairs = "".join(f' {key}="{value}"' for key, value in element.says.items() if _readable(value))
    start = f"{'  ' * depth}<{element.name}{pairs}"
    if not element.inside:
        yield f"{start}/>"
        return
    yield f"{start}>"
    for child in element.inside:
        yield from _written(child, depth + 1)
    yield f"{'  ' * depth}</{element.name}>"


def _readable(value: Value) -> bool:
    """Whether NCCL reads this value as it stands."""
    return (
        value is not None
        and re.fullmatch(rf"[ -~]{{1,{LONGEST_VALUE}}}", text := str(value)) is not None
        and (not set(text) & set("\"'<>&"))
    )
