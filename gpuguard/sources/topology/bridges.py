"""The bridges above GPUs, cards and NVSwitches: what they are, their links, and whether ACS has them redirect.

A bridge's link is that of its own registers: above an upstream port, below a root port or a downstream port.

Where the registers may not be read, the kernel's IOMMU groups tell of ACS, as the kernel found it when it made them: a
device shares the group of the port above it unless all ports up to the root isolate. A shared group says that some port
does not redirect: this one, where those above it isolate. A group of its own says nothing of now: boot scripts of GPU
servers clear ACS after the groups were made.

Reads   /sys/bus/pci/devices/<address>/{config,current_link_*,max_link_*}, its link iommu_group, and that of a device
        right below it
Source  Linux drivers/iommu/iommu.c (pci_device_group, REQ_ACS_FLAGS), drivers/pci/pci.c (pci_acs_path_enabled)
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.readings import Values
from gpuguard.sources.topology import registers
from gpuguard.sources.topology.tree import bridges_of, read_id
from gpuguard.sweeping.attributes import least, parse_generation, parse_lanes
from gpuguard.sweeping.files import take
from gpuguard.sweeping.gpus import DEVICES
from gpuguard.sweeping.links import Links
from gpuguard.sweeping.rounds import Rows

LINK = ("width", "generation")
FACING_DOWN = ("root_port", "downstream")


@dataclass(slots=True)
class Bridge:
    """A bridge by its place: what is above it, what is right below it, and whether that leads on to a bridge."""

    path: tuple[str, ...]
    below: set[PciAddress] = field(default_factory=set)
    leads_on: bool = False


def find(paths: Mapping[PciAddress, tuple[str, ...]]) -> dict[PciAddress, Bridge]:
    """Every bridge above these devices, those nearer to the root first."""
    found: dict[PciAddress, Bridge] = {}
    for device, path in paths.items():
        bridges = bridges_of(path)
        for pci, below in zip(bridges, (*bridges, device)[1:], strict=True):
            bridge = found.setdefault(pci, Bridge(path[: path.index(pci)]))
            bridge.below.add(below)
            bridge.leads_on = bridge.leads_on or below != device
    return dict(sorted(found.items(), key=lambda item: (len(item[1].path), item[0])))


def read_link(folder: Path) -> Values:
    """One end of a link: lanes and generation now, and the most that this end can do; blocks as long as the bus does.

    Shape   columns width, generation, width_limit, generation_limit; absent where the device has no link
    """
    values: Values = {}
    take(values, "width", folder / "current_link_width", parse_lanes)
    take(values, "generation", folder / "current_link_speed", parse_generation)
    take(values, "width_limit", folder / "max_link_width", parse_lanes)
    take(values, "generation_limit", folder / "max_link_speed", parse_generation)
    return values


def read(folder: Path) -> Values:
    """The link of a bridge, and `kind`, `acs` and `redirects` of its registers; blocks as long as the bus does."""
    try:
        told = registers.read(folder / "config")
    except OSError:
        told = registers.Registers()
    return {**read_link(folder), "kind": told.kind, "acs": told.acs, "redirects": told.redirects}


def link(kind: str, own: Values | None, above: Values | None) -> Values:
    """The columns of a device's link, the limits being the least of both ends; unknown where it did not answer."""
    if own is None:
        return dict.fromkeys(f"{kind}_link_{name}" for name in LINK)
    values: Values = {f"{kind}_link_{name}": own[name] for name in LINK if name in own}
    for name in (f"{name}_limit" for name in LINK):
        ends = [end[name] for end in (own, above or {}) if name in end]
        if ends:
            values[f"{kind}_link_{name}"] = least(ends)
    return values


def rows(
    root: Path, links: Links, found: Mapping[PciAddress, Bridge], read: Mapping[PciAddress, Values | None]
) -> Rows:
    """A row for each bridge. `read` holds what each told, None for one that did not answer; one that sleeps is not in
    it, and what would have to be asked of it is absent."""
    kinds: dict[PciAddress, str] = {}
    isolating: dict[PciAddress, bool | None] = {}
    made: Rows = {}
    for pci, bridge in found.items():
        own = read.get(pci)
        parent = next(reversed(bridges_of(bridge.path)), None)
        kinds[pci] = kind = str((own or {}).get("kind") or _kind(bridge, own, kinds.get(parent) if parent else None))
        values: Values = {
            "bridge_kind": kind, "bridge_pci_path": bridge.path, "bridge_pci_id": read_id(root / DEVICES / pci)
        }  # fmt: skip
        if pci in read:
            above = read.get(parent) if parent is not None and kind not in FACING_DOWN else None
            values |= link("bridge", own, above)
        if kind in FACING_DOWN:
            isolating[pci] = _isolates(links, pci, bridge)
            over = [isolating[port] for port in bridges_of(bridge.path) if port in isolating]
            if (own or {}).get("acs") is not False:
                told = (own or {}).get("redirects")
                redirects = told if told is not None else _redirects(isolating[pci], over)
                values["bridge_p2p_redirect"] = None if redirects is None else int(bool(redirects))
        made[SubjectId(f"bridge:{pci}")] = values
    return made


def _kind(bridge: Bridge, own: Values | None, parent: str | None) -> str:
    """What kind of port a bridge is by its place alone: below a root port or a downstream port can be a switch, which
    has two bridges in a row, or a bridge to the older bus, which has no link of its own below."""
    if own is not None and not own.keys() & {"width", "width_limit"}:
        return "bridge"
    if parent is None:
        return "root_port"
    if parent == "upstream":
        return "downstream"
    return "upstream" if parent in FACING_DOWN and bridge.leads_on else "bridge"


def _isolates(links: Links, pci: PciAddress, bridge: Bridge) -> bool | None:
    """Whether what is below the port has another IOMMU group than the port; None without groups."""
    group = _group(links, pci)
    groups = {_group(links, device) for device in bridge.below}
    if group is None or None in groups:
        return None
    return group not in groups


def _redirects(isolates: bool | None, above: list[bool | None]) -> bool | None:
    return False if isolates is False and above and all(above) else None


def _group(links: Links, pci: PciAddress) -> str | None:
    target = links.target(f"{DEVICES}/{pci}/iommu_group")
    return None if target is None else os.path.basename(target)
