"""Network cards: where they hang, by which names RDMA and the network know them, and how fast they are.

One row for each PCI function. A virtual function stands for its card and is left out where it can be told apart.

Reads   /sys/class/infiniband/<device>/{device,node_guid,ports/<port>/rate}, /sys/class/net/<device>/{device,speed,
        phys_port_name}, /sys/bus/pci/devices/<address>/{driver,physfn,local_cpulist,...}
Source  Linux Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net;
        net/core/net-sysfs.c: speed is in Mbit/s, -1 or an error while the link is down, and it waits for the lock of
        the network's configuration; drivers/infiniband/core/sysfs.c: a rate may be asked of the firmware;
        Documentation/networking/representors.rst: representors of functions are named pf<N>vf<N> or pf<N>sf<N>
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import PciAddress, SubjectId
from gpuguard.model.readings import Value, Values
from gpuguard.sources.topology import bridges
from gpuguard.sources.topology.tree import device_of, driver_of, place, read_id
from gpuguard.sweeping.attributes import parse_rate
from gpuguard.sweeping.files import listed, read_text, take, whole
from gpuguard.sweeping.gpus import DEVICES
from gpuguard.sweeping.links import Links

RDMA, NET = "sys/class/infiniband", "sys/class/net"
MOST_CARDS = 256
MEGABIT = 1_000_000
FASTEST = 1_600_000  # Mbit/s; 4294967295 is how old kernels print -1

_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+", re.ASCII)
_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclass(slots=True)
class Card:
    """A function by its names. Those that hang on it directly come before those of a device in between."""

    pci: PciAddress
    rdma: list[str] = field(default_factory=list)
    netdevs: list[str] = field(default_factory=list)

    @property
    def subject(self) -> SubjectId:
        """Named as people name it: by RDMA, else by its interface, else by its address."""
        return SubjectId(f"nic:{next(iter((*self.rdma, *self.netdevs)), self.pci)}")


def find(root: Path, links: Links, functions: Sequence[PciAddress]) -> list[Card]:
    """Every card among these functions of the bus and behind RDMA devices, without virtual functions where there are
    others; of more than any server has, those with RDMA first.

    Raises  ReadFailed where the kernel's lists of devices cannot be read
    """
    rdma, netdevs = _hanging(root, links, RDMA), _hanging(root, links, NET)
    cards = [
        Card(pci, rdma.get(pci, []), netdevs.get(pci, []))
        for pci in sorted({*functions, *rdma})
    ]  # fmt: skip
    whole_ones = [card for card in cards if links.target(f"{DEVICES}/{card.pci}/physfn") is None]
    return sorted(whole_ones or cards, key=lambda card: (not card.rdma, card.pci))[:MOST_CARDS]


def _hanging(root: Path, links: Links, kind: str) -> dict[PciAddress, list[str]]:
    """The names of a class by the function that they hang on; what is only software hangs on none."""
    direct: dict[PciAddress, list[str]] = {}
    others: dict[PciAddress, list[str]] = {}
    for name in sorted(listed(root / kind), key=natural):
        pci, directly = device_of(links.target(f"{kind}/{name}/device"))
        if pci is not None:
            (direct if directly else others).setdefault(pci, []).append(name)
    return {**others, **direct}


def natural(name: str) -> tuple[object, ...]:
    """Sorts mlx5_2 before mlx5_10."""
    return tuple(int(part) if part.isdecimal() else part for part in _NUMBER.split(name))


def describe(root: Path, links: Links, card: Card) -> Values:
    """What the kernel knows of a card without asking it."""
    folder = root / DEVICES / card.pci
    values: Values = {"nic_pci": card.pci, **place(root, links, card.pci, "nic"), "nic_pci_id": read_id(folder)}
    take(values, "nic_local_cpus", folder / "local_cpulist", lambda text: text or None)
    if (driver := driver_of(links, card.pci)) is not None:
        values["nic_driver"] = driver
    if card.rdma:
        values["nic_rdma"] = card.rdma[0]
        take(values, "nic_guid", root / RDMA / card.rdma[0] / "node_guid", lambda text: text or None)
    if card.netdevs:
        values["nic_netdevs"] = ",".join(card.netdevs)
    return values


def read(root: Path, card: Card) -> Values:
    """The link of a card, and the columns that it has to be asked for; blocks as long as it or the network does."""
    values = bridges.read_link(root / DEVICES / card.pci)
    netdevs = card.netdevs
    if len(netdevs) > 1:
        netdevs = [name for name in netdevs if not _represents(root / NET / name)] or netdevs
        values["nic_netdevs"] = ",".join(netdevs)
    rates: list[Value] = []
    ports = 0
    if card.rdma:
        folder = root / RDMA / card.rdma[0] / "ports"
        for port in listed(folder):
            ports += 1
            rates += _asked(folder / port / "rate", parse_rate)
    else:
        ports = len(netdevs)
        for name in netdevs:
            rates += _asked(root / NET / name / "speed", _speed)
    if ports:
        values["nic_ports"] = ports
    if rates:
        known = [rate for rate in rates if isinstance(rate, int)]
        values["nic_rate_bits_per_second"] = max(known) if known else None
    return values


def _asked(path: Path, understand: Callable[[str], Value]) -> list[Value]:
    """What the file says as the only one of a list; nothing where there is no file."""
    values: Values = {}
    take(values, "it", path, understand)
    return list(values.values())


def _speed(text: str) -> int | None:
    speed = whole(text)
    return speed * MEGABIT if speed is not None and 0 < speed <= FASTEST else None


def _represents(folder: Path) -> bool:
    """Whether an interface stands for a virtual function or a part of one, as a switch in the card has them."""
    try:
        return _REPRESENTOR.fullmatch(read_text(folder / "phys_port_name")) is not None
    except (Absent, ReadFailed):
        return False
