"""How the devices of one node are wired: the graph that `topology/` builds, and others ask and draw.

What is not known is None, never a guess; `notes` says in words what is missing and why. Devices are numbered by their
place in `devices`, which is the order of the matrix of `nvidia-smi topo -m`: GPUs by index, then network cards.
"""

from typing import Literal

import msgspec

from gpuguard.model.ids import PciAddress

# How far two devices are from each other over PCIe, in nvidia-smi's words, nearest first.
Level = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
LEVELS: tuple[Level, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
DeviceKind = Literal["gpu", "nic"]
BridgeKind = Literal["root_port", "upstream", "downstream", "bridge"]
# Whether two GPUs can reach each other's memory, in the words of `nvidia-smi topo -p2p`, by nvmlGpuP2PStatus_t.
P2P_STATUS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
SELF = "X"
# The peer of a link that ends at an NVSwitch which shows no address, as in a virtual machine or on B200.
ANY_SWITCH = "nvswitch"


class PcieLink(msgspec.Struct, frozen=True, kw_only=True):
    """A PCIe link above a device: lanes and generation now, and the most that both of its ends can do."""

    lanes: int | None = None
    generation: int | None = None
    most_lanes: int | None = None
    most_generation: int | None = None


class NvLink(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink of a GPU.

    `peer` is `gpu:<pci>`, `nvswitch:<pci>`, `nvswitch` where the switch shows no address, `npu:<pci>`, or None where
    nobody knows. `up` is None where nobody knows. Units: bytes per second, each way, as the link is specified
    """

    number: int
    peer: str | None = None
    up: bool | None = None
    version: int | None = None
    bytes_per_second: float | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """What only a GPU has. `driver` is the kernel's; `minor` is N of /dev/nvidiaN; `compute` the capability, as
    (9, 0); `memory_node` the NUMA node of its own memory, on coherent parts; `clique` names its NVLink domain beyond
    the node; `unfit` is what stands against it where no job should get it, None where nothing does or nobody was
    asked."""

    index: int | None = None
    uuid: str | None = None
    serial: str | None = None
    product: str | None = None
    pci_id: str | None = None
    driver: str | None = None
    minor: int | None = None
    compute: tuple[int, int] | None = None
    memory_node: int | None = None
    clique: str | None = None
    mig: bool | None = None
    unfit: str | None = None
    instances: tuple[str, ...] = ()
    links: tuple[NvLink, ...] = ()


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """What only a network card has: `rdma` is its name in /sys/class/infiniband, None for a card without RDMA."""

    rdma: str | None = None
    netdevs: tuple[str, ...] = ()
    driver: str | None = None
    guid: str | None = None
    pci_id: str | None = None
    ports: int | None = None
    bits_per_second: float | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or a network card.

    `name` is its word in the header of the matrix, `alias` what a legend says it means (NIC0 is mlx5_0). `path` are the
    root complex and the bridges above it, from the root down: ("pci0000:15", "0000:15:01.0", ...); empty where the tree
    is not known. `cpus` and `nodes` are lists as the kernel prints them ("0-63,128-191"; "0").
    """

    name: str
    kind: DeviceKind
    alias: str | None = None
    pci: PciAddress | None = None
    path: tuple[str, ...] = ()
    cpus: str | None = None
    nodes: str | None = None
    link: PcieLink = PcieLink()
    gpu: Gpu | None = None
    nic: Nic | None = None

    @property
    def node(self) -> int | None:
        """The NUMA node; None where it is not known, or not one alone."""
        return int(self.nodes) if self.nodes is not None and self.nodes.isdecimal() else None

    def shared(self, other: "Device") -> int:
        """How many parts both paths begin with."""
        shared = 0
        for own, its in zip(self.path, other.path, strict=False):
            if own != its:
                break
            shared += 1
        return shared


class Bridge(msgspec.Struct, frozen=True, kw_only=True):
    """A PCIe bridge above a device. `redirects` says that ACS sends what one device below it writes to another up to
    the root first; None where that cannot be learned."""

    pci: PciAddress
    kind: BridgeKind = "bridge"
    path: tuple[str, ...] = ()
    link: PcieLink = PcieLink()
    redirects: bool | None = None
    pci_id: str | None = None


class NvSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """An NVSwitch that shows on the PCI bus."""

    pci: PciAddress
    path: tuple[str, ...] = ()
    node: int | None = None


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """Processors and memory that are near each other; `distances` to every node by its number, 10 to itself."""

    number: int
    cpus: str | None = None
    socket: int | None = None
    distances: tuple[tuple[int, int], ...] = ()


class Processors(msgspec.Struct, frozen=True, kw_only=True):
    """The processors as NCCL and Slurm want them told. `siblings` are the threads of one core, as "0,112"."""

    architecture: str | None = None
    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    siblings: str | None = None


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The wiring of one node.

    Shape   levels, bonds, p2p: one row and one column for each device, in the order of `devices`, symmetric.
            levels: how far over PCIe, None for itself and where it is not known. bonds: NVLinks between two GPUs that
            are up, straight or through switches; 0 where there are none, None where nobody knows. p2p: words of
            P2P_STATUS for reading, None where nobody told.
    """

    devices: tuple[Device, ...]
    levels: tuple[tuple[Level | None, ...], ...]
    bonds: tuple[tuple[int | None, ...], ...]
    p2p: tuple[tuple[str | None, ...], ...] = ()
    bridges: tuple[Bridge, ...] = ()
    switches: tuple[NvSwitch, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    processors: Processors = Processors()
    host: str | None = None
    machine: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs, in their order."""
        return tuple(device for device in self.devices if device.kind == "gpu")

    @property
    def nics(self) -> tuple[Device, ...]:
        """The network cards, in their order."""
        return tuple(device for device in self.devices if device.kind == "nic")

    def place(self, name: str) -> int:
        """The place of the device of this name, or of this alias.

        Raises  KeyError when there is none
        """
        for place, device in enumerate(self.devices):
            if name in (device.name, device.alias):
                return place
        raise KeyError(name)

    def cell(self, one: int, other: int) -> str | None:
        """What stands in the matrix between two places: X, NV and a number, a level, or None where it is not known."""
        if one == other:
            return SELF
        bond = self.bonds[one][other]
        return f"NV{bond}" if bond else self.levels[one][other]


DifferenceKind = Literal[
    "gpu_missing", "nic_missing", "nvlinks", "pcie_width", "pcie_speed", "nic_moved", "numa", "acs", "gpu_swapped",
    "gpu_moved", "distance", "p2p", "unexpected",
]  # fmt: skip


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be.

    `subject` names whom it concerns, as health does (`gpu:<pci>`, `nic:mlx5_3`, `node`); `device` as people do (GPU3).
    `expected` and `found` are short, `words` one sentence.
    """

    kind: DifferenceKind
    subject: str
    device: str
    expected: str
    found: str
    words: str
