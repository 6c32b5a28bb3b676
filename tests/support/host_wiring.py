"""How a recorded machine is wired: bridges, network cards, NUMA nodes and processors, made from its addresses.

Addresses of GPUs and NVSwitches are there already; what lies above them is ours: on HGX boards of H100 and B200 each
GPU shares a PCIe switch with a card; on A100 two GPUs and two cards hang below one switch, each behind another; L40S
sit at root ports. Ports of the root isolate what is below them, ports of switches do not.

Form    Linux 6.8, drivers/pci/pci-sysfs.c, drivers/base/node.c, drivers/base/topology.c, arch/x86/kernel/cpu/proc.c;
        ids of pci.ids: Broadcom's switches, Intel's root ports, ConnectX-6 and -7, BCM57508
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.host_files import HOSTS, SPEEDS

SPEEDS_OF = {3: "8.0 GT/s PCIe", **SPEEDS}
CPUS = 224
# Root ports that the kernel's log of these machines names.
NAMED = {"1b": "0000:14:02.0", "9d": "0000:97:02.0", "17": "0000:14:02.0"}
ROOT_PORT, SWITCH = {4: "8086:347a", 5: "8086:352a"}, {4: "1000:c010", 5: "1000:c030"}
CONNECT_X = {4: "15b3:101b", 5: "15b3:1021"}
ETHERNET = "14e4:1750"


@dataclass(slots=True)
class Tree:
    """What hangs where: the path above each function, and the files of those that are made here."""

    generation: int
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: dict[str, dict[str, str | bytes]] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def bridge(self, address: str, path: tuple[str, ...], pci_id: str, lanes: int = 16, generation: int = 0) -> None:
        if address not in self.paths:
            self.hang(address, path)
            self.files[address] = function(pci_id, "060400", lanes, generation or self.generation, bridge=True)

    def hang(self, address: str, path: tuple[str, ...]) -> None:
        """The function hangs there, in a group of its own, or in that of the port of a switch above it."""
        self.paths[address] = path
        below_switch = len(path) >= 4  # root complex, root port, and two of a switch
        self.groups[address] = self.groups[path[-1]] if below_switch else len(set(self.groups.values())) + 12

    def target(self, address: str) -> str:
        return "/".join(("sys/devices", *self.paths[address], address))


def function(pci_id: str, kind: str, lanes: int, generation: int, *, bridge: bool = False) -> dict[str, str | bytes]:
    """The files of a function that is at its full link."""
    vendor, device = pci_id.split(":")
    header = bytearray(64)
    header[0:4] = int(vendor, 16).to_bytes(2, "little") + int(device, 16).to_bytes(2, "little")
    header[4:8] = (0x0010_0547).to_bytes(4, "little")  # bus master, memory and I/O; a list of capabilities
    header[9:12] = int(kind, 16).to_bytes(3, "little")
    header[14], header[0x34] = int(bridge), 0x40
    speed = SPEEDS_OF[generation]
    return {
        "vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{kind}", "config": bytes(header),
        "current_link_speed": speed, "max_link_speed": speed, "current_link_width": str(lanes),
        "max_link_width": str(lanes),
    }  # fmt: skip


def at(bus: str | int, shift: int = 0, slot: int = 0) -> str:
    """The address of a device, by its bus."""
    return f"0000:{(int(bus, 16) if isinstance(bus, str) else bus) + shift:02x}:{slot:02x}.0"


def above(port: str) -> tuple[str, str]:
    """The root complex of a root port, and the port."""
    return f"pci{port[:7]}", port


def behind_switches(tree: Tree, gpus: list[str], cards: int) -> None:
    """Each GPU behind a switch that it shares with a card."""
    for n, address in enumerate(gpus):
        bus = address[5:7]
        root, port = above(NAMED.get(bus) or at(bus, -3, 1))
        upstream = at(bus, -2)
        tree.bridge(port, (root,), ROOT_PORT[tree.generation])
        tree.bridge(upstream, (root, port), SWITCH[tree.generation])
        for slot in range(2 if n < cards else 1):
            tree.bridge(at(bus, -1, slot), (root, port, upstream), SWITCH[tree.generation])
        tree.hang(address, (root, port, upstream, at(bus, -1)))
        if n < cards:
            rdma(tree, n, at(bus, 1), (root, port, upstream, at(bus, -1, 1)))


# The buses of the cards below the switch that each pair of GPUs hangs on, and that switch's own.
PAIRS = {"07": (0x01, 0x0C, 0x12), "47": (0x41, 0x4B, 0x54), "87": (0x81, 0x8D, 0x94), "b7": (0xB1, 0xBA, 0xCC)}


def behind_two_switches(tree: Tree, gpus: list[str], cards: int) -> None:
    """Two GPUs and two cards below one switch, each behind another of its own."""
    for pair in range(len(gpus) // 2):
        one, other = gpus[2 * pair : 2 * pair + 2]
        bus, *nics = PAIRS[one[5:7]]
        root, port = above(at(bus, -1, 1))
        upstream = at(bus)
        tree.bridge(port, (root,), ROOT_PORT[tree.generation])
        tree.bridge(upstream, (root, port), SWITCH[tree.generation])
        leaves = [int(one[5:7], 16), int(other[5:7], 16), *nics]
        for slot, leaf in enumerate(leaves):
            first, second, third = at(bus, 1, slot), at(leaf, -2), at(leaf, -1)
            path = (root, port, upstream)
            for address in (first, second, third):
                tree.bridge(address, path, SWITCH[tree.generation])
                path = (*path, address)
            if slot < 2:
                tree.hang(at(leaf), path)
            else:
                rdma(tree, 2 * pair + slot - 2, at(leaf), path)


def at_root_ports(tree: Tree, gpus: list[str], cards: int) -> None:
    """Each GPU at a root port of its own."""
    assert not cards
    for address in gpus:
        root, port = above(NAMED.get(address[5:7]) or at(address[5:7], -1, 1))
        tree.bridge(port, (root,), ROOT_PORT[tree.generation])
        tree.hang(address, (root, port))


def rdma(tree: Tree, number: int, address: str, path: tuple[str, ...]) -> None:
    """An InfiniBand card."""
    tree.hang(address, path)
    tree.files[address] = function(CONNECT_X[tree.generation], "020700", 16, tree.generation)
    netdev = f"ibp{int(address[5:7], 16)}s0"
    tree.links |= {
        f"sys/bus/pci/devices/{address}/driver": "sys/bus/pci/drivers/mlx5_core",
        f"sys/class/infiniband/mlx5_{number}/device": tree.target(address),
        f"sys/class/net/{netdev}/device": tree.target(address),
    }  # fmt: skip


def ethernet(tree: Tree, address: str, port: str, names: tuple[str, ...]) -> None:
    """One card with a function for each port, without RDMA."""
    tree.bridge(port, (above(port)[0],), ROOT_PORT[tree.generation], generation=4)
    for n, netdev in enumerate(names):
        one = f"{address[:-1]}{n}"
        tree.hang(one, above(port))
        tree.files[one] = function(ETHERNET, "020000", 16, 4)
        tree.groups[one] = tree.groups[f"{address[:-1]}0"]
        tree.links |= {
            f"sys/bus/pci/devices/{one}/driver": "sys/bus/pci/drivers/bnxt_en",
            f"sys/class/net/{netdev}/device": tree.target(one),
        }  # fmt: skip


LAYOUTS = {"a100x8": behind_two_switches, "l40sx4": at_root_ports}


def wired(name: str, root: Path) -> Tree:
    """The tree of a machine."""
    host = HOSTS[name]
    devices = root / "sys/bus/pci/devices"
    kinds = {folder.name: (folder / "class").read_text() for folder in sorted(devices.iterdir())}
    gpus = [address for address, kind in kinds.items() if kind.startswith("0x0302")]
    tree = Tree(host.pcie)
    LAYOUTS.get(name, behind_switches)(tree, gpus, host.ports)
    for n, address in enumerate(one for one, kind in kinds.items() if kind.startswith("0x0680")):
        port = at("00" if int(address[5:7], 16) < 0x80 else "c0", 0, n + 2)
        tree.bridge(port, (above(port)[0],), ROOT_PORT[tree.generation], lanes=4, generation=3)
        tree.hang(address, above(port))
    if name == "h100x8":
        ethernet(tree, "0000:2a:00.0", "0000:26:01.0", ("ens2f0np0", "ens2f1np1"))
    if host.lost:
        port = tree.paths[host.lost][-1]
        tree.files[port] |= {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "0"}
    for address in gpus:
        tree.links[f"sys/bus/pci/devices/{address}/driver"] = "sys/bus/pci/drivers/nvidia"
    return tree


def write_wiring(root: Path, name: str) -> None:
    """All of it lies below `root`; that of an earlier time is gone."""
    devices = root / "sys/bus/pci/devices"
    for folder in list(devices.iterdir()):
        if not (folder / "class").read_text().startswith(("0x0302", "0x0680")):
            shutil.rmtree(folder)
    for old in ("sys/class/net", "sys/devices/system/node", "sys/devices/system/cpu"):
        shutil.rmtree(root / old, ignore_errors=True)
    tree = wired(name, root)
    for address, path in tree.paths.items():
        node = int(int(path[0][-2:], 16) >= 0x80)
        files = {**tree.files.get(address, {}), "numa_node": str(node)}
        if address in tree.files and files["class"] != "0x060400":
            files["local_cpulist"] = cpus_of(node)
        for file, content in files.items():
            _write(devices / address / file, content)
        tree.links[f"sys/bus/pci/devices/{address}"] = tree.target(address)
        tree.links[f"sys/bus/pci/devices/{address}/iommu_group"] = f"sys/kernel/iommu_groups/{tree.groups[address]}"
    for link in list(tree.links):
        _, _, kind, device, *_ = link.split("/")
        if kind == "infiniband":
            _write(root / f"sys/class/infiniband/{device}/node_guid", f"0200:0000:0000:{int(device[5:]) + 1:04x}")
        elif kind == "net":
            fast = {"ens": 100_000}.get(device[:3]) or {4: 200_000, 5: 400_000}[tree.generation]
            _write(root / f"sys/class/net/{device}/speed", str(fast))
    _processors(root)
    _write(root / "links", "\n".join(f"{link} {target}" for link, target in sorted(tree.links.items())))


def cpus_of(node: int) -> str:
    """Half of the cores and of their second threads."""
    quarter = CPUS // 4
    first = node * quarter
    return f"{first}-{first + quarter - 1},{first + 2 * quarter}-{first + 3 * quarter - 1}"


def _processors(root: Path) -> None:
    for node in range(2):
        folder = root / f"sys/devices/system/node/node{node}"
        _write(folder / "cpulist", cpus_of(node))
        _write(folder / "distance", "10 21" if node == 0 else "21 10")
        cpu = node * CPUS // 4
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        _write(topology / "physical_package_id", str(node))
        _write(topology / "thread_siblings_list", f"{cpu},{cpu + CPUS // 2}")
    _write(root / "proc/cpuinfo", "\n".join(CPUINFO))


CPUINFO = (
    "processor\t: 0", "vendor_id\t: GenuineIntel", "cpu family\t: 6", "model\t\t: 143",
    "model name\t: Intel(R) Xeon(R) Platinum 8480C", "stepping\t: 8", "physical id\t: 0", "siblings\t: 112",
    "core id\t\t: 0", "cpu cores\t: 56", "flags\t\t: fpu lm sse2 ht avx512f", "",
)  # fmt: skip


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
