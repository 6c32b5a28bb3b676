"""The PCI tree as sysfs lays it out: what hangs where.

Source  Linux drivers/pci/probe.c and drivers/base/core.c: the folder of a device lies in that of the bridge above it,
        under pci<domain>:<bus>, the root complex; drivers/pci/pci-sysfs.c: vendor, device, class, numa_node and
        local_cpulist are the kernel's copies; PCI Code and ID Assignment: classes 02xx are network controllers, 0604
        bridges, 0680 bridges of another kind, as which NVSwitches show
"""

import re
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.ids import PciAddress, parse_pci_address
from gpuguard.model.readings import Values
from gpuguard.sweeping.attributes import parse_numa_node
from gpuguard.sweeping.files import listed, read_text, take
from gpuguard.sweeping.gpus import DEVICES, GPU_CLASSES, VENDOR_NVIDIA
from gpuguard.sweeping.links import Links

# Ethernet, InfiniBand, and the fabric controllers that Omni-Path's adapters are.
NETWORK_CLASSES = ("0x0200", "0x0207", "0x0208")
SWITCH_CLASS = "0x0680"

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ID = re.compile(r"0x([0-9a-f]{4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listed:
    """The functions on the bus that the wiring is about, in the order of their addresses."""

    gpus: tuple[PciAddress, ...]
    switches: tuple[PciAddress, ...]
    networks: tuple[PciAddress, ...]


def look(root: Path) -> Listed:
    """What the bus shows now; what vanishes meanwhile is left out.

    Raises  ReadFailed where the bus or a device on it cannot be read: who was not seen once is not missing
    """
    gpus: list[PciAddress] = []
    switches: list[PciAddress] = []
    networks: list[PciAddress] = []
    for name in listed(root / DEVICES):
        try:
            pci = parse_pci_address(name)
            kind = read_text(root / DEVICES / name / "class")
            if kind.startswith(NETWORK_CLASSES):
                networks.append(pci)
            elif not kind.startswith((*GPU_CLASSES, SWITCH_CLASS)):
                continue
            elif read_text(root / DEVICES / name / "vendor") == VENDOR_NVIDIA:
                (switches if kind.startswith(SWITCH_CLASS) else gpus).append(pci)
        except (Absent, NotUnderstood):
            continue  # unplugged meanwhile, or a bridge of odd firmware
        except ReadFailed:
            if (root / DEVICES / name).is_dir():
                raise
    return Listed(tuple(gpus), tuple(switches), tuple(networks))


def parse_path(target: str | None) -> tuple[str, ...] | None:
    """The root complex and the bridges above a device, from the root down; None where its place is not known.

    Shape   sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0; before the root complex may stand what the
            firmware has above it, and a bridge that makes a root complex of its own (VMD) lies between two of them
    """
    parts = (target or "").split("/")
    if parts[:2] != ["sys", "devices"] or not _DEVICE.fullmatch(parts[-1]):
        return None
    first = next((place for place, part in enumerate(parts) if _ROOT.fullmatch(part)), None)
    if first is None:
        return None
    return tuple(
        part if _ROOT.fullmatch(part) else parse_pci_address(part)
        for part in parts[first:-1]
        if _ROOT.fullmatch(part) or _DEVICE.fullmatch(part)
    )


def device_of(target: str | None) -> tuple[PciAddress | None, bool]:
    """The function that something hangs on, and whether directly: a virtio or auxiliary device may lie between."""
    parts = (target or "").split("/")
    found = [place for place, part in enumerate(parts) if _DEVICE.fullmatch(part)]
    if not found:
        return None, False
    return parse_pci_address(parts[found[-1]]), found[-1] == len(parts) - 1


def path_of(links: Links, address: str) -> tuple[str, ...] | None:
    """The root complex and the bridges above the device at this address; None where it is not known."""
    return parse_path(links.target(f"{DEVICES}/{address}"))


def bridges_of(path: tuple[str, ...]) -> tuple[PciAddress, ...]:
    """The bridges of a path, without root complexes."""
    return tuple(PciAddress(part) for part in path if not _ROOT.fullmatch(part))


def driver_of(links: Links, pci: PciAddress) -> str | None:
    """The kernel driver that has the device; None while none has."""
    target = links.target(f"{DEVICES}/{pci}/driver")
    return None if target is None else target.rpartition("/")[2]


def place(root: Path, links: Links, pci: PciAddress, kind: str) -> Values:
    """Where the device hangs: columns `<kind>_pci_path` and `<kind>_numa_node`."""
    values: Values = {f"{kind}_pci_path": path_of(links, pci)}
    take(values, f"{kind}_numa_node", root / DEVICES / pci / "numa_node", parse_numa_node)
    return values


def read_id(folder: Path) -> str | None:
    """Vendor and device, as 10de:2330; None where they are not known."""
    found = []
    for file in ("vendor", "device"):
        try:
            match = _ID.fullmatch(read_text(folder / file))
        except (Absent, ReadFailed):
            return None
        if match is None:
            return None
        found.append(match[1])
    return ":".join(found)
