"""What a drawing tells whoever points at something: one fact a line, the name first."""

from gpuguard.model.topology import PcieLink, Topology
from gpuguard.topology.captions import clean, instances, link_words, rate, short
from gpuguard.topology.picture import Box, Picture, Side, Switch, box_words, side_words, state_words


def device_tip(topology: Topology, drawn: Picture, place: int) -> str:
    """A GPU or a network card: product, address, UUID, where it is, its links."""
    device = topology.devices[place]
    gpu, nic = device.gpu, device.nic
    lines = [clean(device.name) + (f" ({clean(device.alias)})" if device.alias else "")]
    if gpu is not None:
        lines += _known("", gpu.product)
    if nic is not None:
        lines += _known("driver ", nic.driver) + _known("", rate(nic))
        lines += _known("network device ", ", ".join(nic.netdevs)) + _known("GUID ", nic.guid)
    lines += _known("PCI ", device.pci)
    if gpu is not None:
        lines += _known("", gpu.uuid) + _known("", None if gpu.minor is None else f"/dev/nvidia{gpu.minor}")
    lines += _known("NUMA ", device.nodes) + _known("CPUs ", device.cpus)
    if device.link != PcieLink():
        lines.append(link_words(device.link))
    if place in drawn.silent:
        lines.append("the driver does not tell of it")
    if place in drawn.mig:
        lines.append("MIG: " + (", ".join(instances(device)) or "no instance"))
    lines += [state_words(uplink.links) for uplink in drawn.uplinks if uplink.place == place]
    if gpu is not None:
        lines += _known("NVLink domain ", gpu.clique)
    return "\n".join(lines)


def side_tip(topology: Topology, side: Side) -> str:
    """A NUMA node: its processors, and how far the others are."""
    lines = [side_words(side), *_known("CPUs ", side.cpus)]
    node = next((node for node in topology.numa if side.name == f"NUMA {node.number}"), None)
    if node is not None and node.distances:
        lines.append("distances " + ", ".join(f"{far} to NUMA {number}" for number, far in node.distances))
    return "\n".join(lines)


def box_tip(box: Box) -> str:
    """A root complex or a switch: its address, its link, and what ACS does there."""
    lines = [" ".join(box_words(box))]
    if box.root is not None and box.kind != "root":
        lines.append(f"root complex {short(box.root)}")
    if box.link is not None:
        lines.append(link_words(box.link))
    if box.redirects:
        lines.append("ACS sends traffic between its devices up to the root first")
    elif box.redirects is not None:
        lines.append("ACS lets its devices reach each other")
    return "\n".join(lines)


def switch_tip(number: int, switch: Switch) -> str:
    """An NVSwitch: its address, and how many of its links are up."""
    lines = [f"NVSwitch {number}", *_known("PCI ", switch.pci)]
    lines += _known("NUMA ", None if switch.node is None else str(switch.node))
    if switch.links is not None:
        lines.append(f"{switch.links.up} of {switch.links.total} NVLinks of GPUs up")
    return "\n".join(lines)


def _known(before: str, text: str | None) -> list[str]:
    return [before + clean(text)] if text else []
