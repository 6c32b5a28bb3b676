"""What can be said of devices of the graph as they are now: whether they answer, how many links are up, what ACS does.

What is not known is None, and a GPU of which nobody tells is no GPU that is silent.
"""

import re
from typing import TypeGuard

from gpuguard.model.topology import Device, Topology

# NVIDIA's own driver, as the kernel calls it.
DRIVER = "nvidia"
# Cards of these makers do RDMA, also while the module for it is not loaded: Mellanox and NVIDIA; Amazon's EFA.
_RDMA = re.compile(r"15b3:|1d0f:efa", re.ASCII)


def is_number(value: int | None) -> TypeGuard[int]:
    """Whether lanes or a generation are known: a link that is there has one at least."""
    return value is not None and value > 0


def numa_nodes(topology: Topology) -> int | None:
    """How many NUMA nodes have processors; None where nobody knows. Those of memory alone come and go: a GPU's own
    comes with its driver, and with each of its instances in MIG mode."""
    known = [node.cpus for node in topology.numa]
    return None if None in known else sum(cpus != "" for cpus in known) or None


def silent(topology: Topology, device: Device) -> bool:
    """Whether a GPU is on the bus and does not answer the driver, which answers for others. One that another driver
    has, as vfio-pci where it is passed to a guest, has nothing to answer."""
    if device.gpu is None or device.gpu.index is not None or device.pci is None:
        return False
    if device.gpu.driver not in (None, DRIVER):
        return False
    return any(gpu.gpu is not None and gpu.gpu.index is not None for gpu in topology.gpus)


def links_up(topology: Topology, place: int) -> tuple[int, int] | None:
    """How many NVLinks of a GPU are up, and of how many more nobody knows; None where its links are not known, or off
    because it is cut into instances."""
    device = topology.devices[place]
    if device.gpu is None or device.gpu.mig:
        return None
    links = device.gpu.links
    if links:
        return sum(link.up is True for link in links), sum(link.up is None for link in links)
    bonds = [bond for other, bond in enumerate(topology.bonds[place]) if other != place and bond is not None]
    most = max(bonds, default=0)
    if not most and (device.pci is not None or not bonds):
        return None  # the driver may not have told of links yet; a matrix shows all there is
    # Links to switches count for every peer, those to one GPU for it alone: which of both they are, cells do not tell.
    return most, sum(bonds) - most


def does_rdma(device: Device) -> bool | None:
    """Whether it is a card that can do RDMA; None where nobody knows what it is."""
    nic = device.nic
    if device.kind != "nic":
        return False
    if nic is None or nic.rdma is not None or device.pci is None:
        return True  # a matrix shows RDMA devices alone, and nothing else of them
    return None if nic.pci_id is None else bool(_RDMA.match(nic.pci_id))


def guid_of(device: Device) -> str | None:
    """The card's own number; one of zeros is none."""
    guid = None if device.nic is None else device.nic.guid
    return guid if guid is not None and guid.strip("0:x") else None


def redirecting(topology: Topology) -> tuple[tuple[str, str, str], ...] | None:
    """Bridges at which ACS sends up to the root what one device below a switch writes to another: for each its address
    and the two devices it parts; None where that cannot be told, as nothing is below a switch or nobody knows.

    Source  PCI Express Base Specification, Access Control Services: P2P Request Redirect acts at downstream ports
    """
    flags: dict[str, bool | None] = {
        bridge.pci: bridge.redirects for bridge in topology.bridges if bridge.kind != "root_port"
    }
    found: dict[str, tuple[str, str, str]] = {}
    known = False
    for i, one in enumerate(topology.devices):
        for other in topology.devices[i + 1 :]:
            if one.kind == other.kind == "nic":
                continue
            for port in _apart(one, other):
                flag = flags.get(port)
                known = known or flag is not None
                if flag:
                    found.setdefault(port, (port, one.alias or one.name, other.alias or other.name))
    return tuple(found[port] for port in sorted(found)) if known else None


def _apart(one: Device, other: Device) -> tuple[str, ...]:
    """The bridges between two devices below the switch they share; none where they share no bridge."""
    shared = one.shared(other)
    return (*one.path[shared:], *other.path[shared:]) if shared > 1 else ()
