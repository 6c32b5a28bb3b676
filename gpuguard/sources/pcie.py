"""The PCIe link of each GPU and the errors on it, as the kernel sees them, without the driver.

Reads     /sys/bus/pci/devices/<address>/{current,max}_link_{speed,width}, the same of the port above it,
          aer_dev_{correctable,nonfatal,fatal}, numa_node
Emits     a Sweep with a row for each GPU that is awake
Source    Linux drivers/pci/pci-sysfs.c (link attributes), drivers/pci/probe.c (pci_speed_string),
          drivers/pci/pcie/aer.c (aer_stats_dev_attr), Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats

What a link runs at is read from the config space of the device and of its port: that may hang, and since Linux 6.17 it
wakes a device that sleeps. So each GPU is read in a thread of its own with a deadline, one whose last read still hangs
is not read again, and one that sleeps, or whose port does, is left alone.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.ids import PciAddress, gpu, parse_pci_address
from gpuguard.model.instants import Instant
from gpuguard.model.quantities import COUNTER_TOP
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.attributes import least, parse_generation, parse_lanes, parse_numa_node
from gpuguard.sweeping.files import take, whole
from gpuguard.sweeping.gpus import DEVICES, Bus, is_asleep
from gpuguard.sweeping.links import Links
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "pcie"
AER_KINDS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}

QUANTITIES: tuple[Quantity, ...] = (
    *(
        Quantity(
            name=f"pcie_aer_{kind}_total", of="gpu", unit="count", kind="counter", low=0, high=COUNTER_TOP,
            metric="pcie_aer_errors_total", labels={"severity": kind},
            help="Errors of the PCIe link that the GPU itself reported, by severity.",
        )
        for kind in AER_KINDS
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(30.0)  # each link is looked at this often; a link that trains down stays down
    deadline: Seconds = Seconds(1.0)  # for all GPUs together: a read takes microseconds

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


def parse_aer_total(text: str, label: str) -> int | None:
    """How many errors of one severity a device reported, of all kinds.

    Shape   lines of a name, a blank and a number; the last is the total, as `TOTAL_ERR_FATAL 0`
    """
    for line in reversed(text.splitlines()):
        name, _, number = line.partition(" ")
        if name == label:
            return whole(number)
    return None


def port_above(device: Path, links: Links) -> Path | None:
    """The port that the device is plugged into; None where the tree does not tell.

    Shape   /sys/bus/pci/devices/<address> is a link to /sys/devices/pci0000:00/0000:00:01.0/<address>
    """
    above = os.path.basename(os.path.dirname(links.target(f"{DEVICES}/{device.name}") or ""))
    try:
        parse_pci_address(above)
    except NotUnderstood:
        return None
    return device.with_name(above) if above.count(":") == 2 else None


class Pcie:
    """The links of the GPUs under a root. `read` is the blocking read of one; tests hand in one that hangs."""

    def __init__(
        self, settings: Settings, root: Path, *, read: Callable[[Path, Path | None], Values] | None = None
    ) -> None:
        """Reads nothing yet."""
        self._root, self._bus = root, Bus(root)
        self._apart: Apart[Values] = Apart(NAME, settings.deadline)
        self._read = read or read_link
        self._ports: dict[PciAddress, Path | None] = {}

    def sweep(self, now: Instant) -> Rows:
        """A row for each GPU; one that did not answer in time has unknown values, one that sleeps has no row.

        Raises  Absent where the machine has no PCI bus or never had an NVIDIA GPU on it
        """
        if not (self._root / DEVICES).is_dir():
            raise Absent(f"{self._root / DEVICES} does not exist; this machine has no PCI bus")
        found = self._bus.gpus()
        if not (found or self._ports):
            raise Absent("no NVIDIA GPU on the PCI bus; it is looked for again later")
        links = Links(self._root)
        ports = {pci: self._ports.get(pci) or port_above(device, links) for pci, device in found.items()}
        self._ports = ports or self._ports
        awake = [
            pci
            for pci, device in found.items()
            if not is_asleep(device) and not ((port := ports[pci]) is not None and is_asleep(port))
        ]
        read = self._apart.read({pci: partial(self._read, found[pci], ports[pci]) for pci in awake})
        return {gpu(pci): read.get(pci) or _unknown() for pci in awake}


def read_link(device: Path, port: Path | None) -> Values:
    """What sysfs says of the link of a device; blocks as long as the bus does."""
    values: Values = {}
    for kind, label in AER_KINDS.items():
        take(values, f"pcie_aer_{kind}_total", f"{device}/aer_dev_{kind}", partial(parse_aer_total, label=label))
    take(values, "gpu_numa_node", f"{device}/numa_node", parse_numa_node)
    understood: tuple[tuple[str, str, Callable[[str], int | None]], ...] = (
        ("generation", "speed", parse_generation), ("width", "width", parse_lanes),
    )  # fmt: skip
    for column, file, understand in understood:
        take(values, f"pcie_link_{column}", f"{device}/current_link_{file}", understand)
        limits: Values = {}
        take(limits, "device", f"{device}/max_link_{file}", understand)
        if port is not None:
            take(limits, "port", f"{port}/max_link_{file}", understand)
        if limits:
            values[f"pcie_link_{column}_limit"] = least(list(limits.values()))
    return values


def _unknown() -> Values:
    """Asked, and no answer came."""
    return {"pcie_link_generation": None, "pcie_link_width": None}


def build(settings: Settings, root: Path, clock: Clock) -> Rounds:
    """The source for the machine under `root`."""
    return Rounds(NAME, Pcie(settings, root).sweep, clock, every=settings.every)
