"""The matrix of `nvidia-smi topo -m`: who is how far from whom, with the processors near each GPU.

Who reads it    people, and all that was written to parse the output of `nvidia-smi topo -m`
Defined by      the output of nvidia-smi 570 and 580: TABs between cells, blanks around X, an empty cell before the
                value of GPU NUMA ID and before the N/A of NUMA Affinity, four empty cells behind those of a network
                card, a legend of what the cells mean, and, where there are network cards, one of their names with an
                empty line behind it

Devices without RDMA are left out, as nvidia-smi does. What is not known is N/A. `render_as` prints what was read from a
text in the form of that text instead; the cells come from the graph there too.
"""

from gpuguard.errors import Absent, InvariantBroken
from gpuguard.model.topology import SELF, Device, Topology
from gpuguard.topology.formats import Wish
from gpuguard.topology.matrix import NOWHERE, Layout, Slot

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def render(topology: Topology, wish: Wish) -> str:
    """The matrix as the driver's own tool would print it.

    Raises  Absent when the graph has no device
    """
    listed = [place for place, device in enumerate(topology.devices) if _is_listed(device)]
    if not listed:
        raise Absent("there is no GPU and no RDMA device to draw a matrix of: `gpuguard topo` says what was looked for")
    names = [topology.devices[place].name for place in listed]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for one in listed:
        device = topology.devices[one]
        cells = [f" {SELF} " if one == other else topology.cell(one, other) or NOWHERE for other in listed]
        lines.append("\t".join([device.name, *cells, *_affinities(device)]))
    text = "\n".join(lines) + "\n" + LEGEND
    cards = [device for device in map(topology.devices.__getitem__, listed) if device.kind == "nic" and device.alias]
    if cards:
        text += "\nNIC Legend:\n\n" + "".join(f"  {card.name}: {card.alias}\n" for card in cards) + "\n"
    return text


def _is_listed(device: Device) -> bool:
    return device.nic is None or device.nic.rdma is not None


def _affinities(device: Device) -> list[str]:
    """The cells behind those of the devices. Where neither is known both stay empty, as in WSL; where the processors
    are but not the node, as in a virtual machine, the node is N/A behind an empty cell."""
    if device.kind == "nic":
        return ["", "", "", ""]
    memory = device.gpu.memory_node if device.gpu is not None else None
    nodes = [device.nodes] if device.nodes is not None else [""] if device.cpus is None else ["", NOWHERE]
    return [device.cpus or "", *nodes, "", NOWHERE if memory is None else str(memory)]


def render_as(topology: Topology, layout: Layout) -> str:
    """The graph in the form of the text that it was read from.

    Raises  InvariantBroken when the layout is that of another graph
    """
    spelled, devices = layout.spelling(), topology.devices
    parts: list[str] = []
    for piece in layout.pieces:
        if isinstance(piece, str):
            parts.append(piece)
            continue
        if max(piece.one, piece.other) >= len(devices):
            raise InvariantBroken(f"the layout has a cell of device {piece.one}, the graph {len(devices)} devices")
        if piece.what == "cell":
            told = spelled(piece.one, piece.other, topology.cell(piece.one, piece.other))
        elif piece.what == "p2p":
            told = SELF if piece.one == piece.other else _status(topology, piece)
        else:
            told = _affinity(devices[piece.one], piece.what)
        text = (piece.blank if told is None else told).ljust(piece.width)
        for place, gap in reversed(piece.cuts):
            text = text[:place] + gap + text[place:]
        parts.append(text)
    return "".join(parts)


def _status(topology: Topology, slot: Slot) -> str | None:
    return topology.p2p[slot.one][slot.other] if topology.p2p else None


def _affinity(device: Device, what: str) -> str | None:
    if what != "memory":
        return device.cpus if what == "cpus" else device.nodes
    memory = device.gpu.memory_node if device.gpu is not None else None
    return None if memory is None else str(memory)
