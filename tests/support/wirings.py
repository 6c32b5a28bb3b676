"""Machines as the rows that tell of their wiring, for tests of the graph; addresses and names belong to nobody."""

from collections.abc import Sequence
from typing import Any

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.model.topology import Device, Gpu, Level, Topology
from gpuguard.topology.build import build

Rows = dict[SubjectId, Values]

H100_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100_SWITCHES = tuple(f"0000:0{n}:00.0" for n in (5, 6, 7, 8))
CPUS = ("0-55,112-167", "56-111,168-223")


def node(cpus: tuple[str, ...] = CPUS, siblings: str = "0,112", **more: Any) -> Values:  # Any: as Values hold
    """The node's row: one NUMA node for each list of processors, each in a socket of its own."""
    count = len(cpus)
    return {
        "numa_cpus": tuple(part for n, text in enumerate(cpus) for part in (str(n), text)),
        "numa_sockets": tuple(part for n in range(count) for part in (str(n), n)),
        "numa_distances": tuple(
            part for i in range(count) for j in range(count) for part in (f"{i}/{j}", 10 if i == j else 21)
        ),
        "cpu_architecture": "x86_64", "cpu_vendor": "GenuineIntel", "cpu_family": 6, "cpu_model": 143,
        "cpu_siblings": siblings, **more,
    }  # fmt: skip


def switched(bus: str, numa: int, kind: str) -> tuple[Values, Rows]:
    """Where a device behind a PCIe switch of its own hangs, and the bridges above it."""
    number = int(bus, 16)
    root, port = f"pci0000:{number - 3:02x}", f"0000:{number - 3:02x}:01.0"
    upstream, slot = f"0000:{number - 2:02x}:00.0", 0 if kind == "gpu" else 1
    downstream = f"0000:{number - 1:02x}:{slot:02x}.0"
    link: Values = {
        "bridge_link_width": 16, "bridge_link_generation": 5, "bridge_link_width_limit": 16,
        "bridge_link_generation_limit": 5,
    }  # fmt: skip
    bridges: Rows = {
        SubjectId(f"bridge:{port}"): {"bridge_kind": "root_port", "bridge_pci_path": (root,), **link},
        SubjectId(f"bridge:{upstream}"): {"bridge_kind": "upstream", "bridge_pci_path": (root, port), **link},
        SubjectId(f"bridge:{downstream}"): {
            "bridge_kind": "downstream", "bridge_pci_path": (root, port, upstream), "bridge_p2p_redirect": 0, **link,
        },
    }  # fmt: skip
    place: Values = {
        f"{kind}_pci_path": (root, port, upstream, downstream), f"{kind}_numa_node": numa,
        f"{kind}_local_cpus": CPUS[numa],
    }  # fmt: skip
    return place, bridges


def h100x8() -> Rows:
    """Eight GPUs on four NVSwitches, each behind a PCIe switch with a network card of its own, on two sockets."""
    rows: Rows = {SubjectId("node"): node(machine_profile="hgx-h100-8")}
    for n, bus in enumerate(H100_BUSES):
        numa = n // 4
        place, bridges = switched(bus, numa, "gpu")
        peers = tuple(f"nvswitch:{H100_SWITCHES[link * 4 // 18]}" for link in range(18))
        others = [(other, m) for m, other in enumerate(H100_BUSES) if other != bus]
        rows |= bridges
        rows[SubjectId(f"gpu:0000:{bus}:00.0")] = {
            **place, "gpu_index": n, "gpu_uuid": f"GPU-00000000-0000-4000-8000-{n:012d}", "gpu_up": 1, "mig_mode": 0,
            "gpu_name": "NVIDIA H100 80GB HBM3", "gpu_pci_id": "10de:2330", "gpu_minor": n,
            "gpu_compute_capability": "9.0", "gpu_serial": f"165000000000{n}",
            "pcie_link_width": 16, "pcie_link_generation": 5, "pcie_link_width_limit": 16,
            "pcie_link_generation_limit": 5,
            "nvlink_peers": peers, "nvlink_up": (1,) * 18, "nvlink_version": 7, "nvlinks_to_switches": 18,
            "nvlink_speed_bytes_per_second": 26.562e9, "nvlinks_expected": 18,
            "common_ancestors": tuple(
                part for other, m in others for part in (f"0000:{other}:00.0", 40 if m // 4 == numa else 50)
            ),
            "p2p_read": tuple(part for other, _ in others for part in (f"0000:{other}:00.0", 0)),
        }  # fmt: skip
        place, bridges = switched(bus, numa, "nic")
        rows |= bridges
        rows[SubjectId(f"nic:mlx5_{n}")] = {
            **place, "nic_pci": f"0000:{int(bus, 16) + 1:02x}:00.0", "nic_rdma": f"mlx5_{n}", "nic_driver": "mlx5_core",
            "nic_netdevs": f"ibs{n}", "nic_rate_bits_per_second": 400e9, "nic_ports": 1, "nic_pci_id": "15b3:1021",
            "nic_guid": f"5c25:7303:0001:{n:04x}", "nic_link_width": 16, "nic_link_generation": 5,
            "nic_link_width_limit": 16, "nic_link_generation_limit": 5,
        }  # fmt: skip
    for n, pci in enumerate(H100_SWITCHES):
        rows[SubjectId(f"nvswitch:{pci}")] = {
            "nvswitch_pci_path": ("pci0000:00", f"0000:00:0{n + 1}.0"), "nvswitch_numa_node": 0,
        }  # fmt: skip
    return rows


def l40sx4() -> Rows:
    """Four cards without NVLink, two a socket, each at a root port of its own; two ports of one card on socket 1."""
    rows: Rows = {SubjectId("node"): node(("0-31,64-95", "32-63,96-127"), "0,64", machine_profile="l40s")}
    cpus = ("0-31,64-95", "32-63,96-127")
    for n, bus in enumerate(("17", "3d", "98", "c1")):
        root = f"pci0000:{int(bus, 16) - 1:02x}"
        port = f"0000:{int(bus, 16) - 1:02x}:01.0"
        rows[SubjectId(f"bridge:{port}")] = {"bridge_kind": "root_port", "bridge_pci_path": (root,)}
        rows[SubjectId(f"gpu:0000:{bus}:00.0")] = {
            "gpu_pci_path": (root, port), "gpu_numa_node": n // 2, "gpu_local_cpus": cpus[n // 2], "gpu_index": n,
            "gpu_up": 1, "gpu_uuid": f"GPU-00000000-0000-4000-8000-{n:012d}", "gpu_name": "NVIDIA L40S",
            "gpu_pci_id": "10de:26b9", "gpu_minor": n, "gpu_compute_capability": "8.9", "pcie_link_width": 16,
            "pcie_link_generation": 4, "pcie_link_width_limit": 16, "pcie_link_generation_limit": 4,
        }  # fmt: skip
    for n in range(2):
        rows[SubjectId(f"nic:mlx5_{n}")] = {
            "nic_pci_path": ("pci0000:80", "0000:80:01.0"), "nic_numa_node": 1, "nic_local_cpus": cpus[1],
            "nic_pci": f"0000:81:00.{n}", "nic_rdma": f"mlx5_{n}", "nic_driver": "mlx5_core",
            "nic_rate_bits_per_second": 100e9, "nic_ports": 1,
        }  # fmt: skip
    return rows


def l40sx8() -> Rows:
    """Eight cards without NVLink, two behind each of four PCIe switches, on two AMD processors; a network card a
    socket, behind the second switch of each."""
    cpus = ("0-63,128-191", "64-127,192-255")
    rows: Rows = {
        SubjectId("node"): node(
            cpus, "0,128", machine_profile="l40s", cpu_vendor="AuthenticAMD", cpu_family=25, cpu_model=17
        )
    }
    for n in range(4):
        root, port, up = f"pci0000:{n}0", f"0000:{n}0:01.1", f"0000:{n}1:00.0"
        link: Values = {
            f"bridge_link_{what}": number
            for what, number in (("width", 16), ("generation", 4), ("width_limit", 16), ("generation_limit", 4))
        }
        rows[SubjectId(f"bridge:{port}")] = {"bridge_kind": "root_port", "bridge_pci_path": (root,), **link}
        rows[SubjectId(f"bridge:{up}")] = {"bridge_kind": "upstream", "bridge_pci_path": (root, port), **link}
        cards = [("gpu", 2 * n, 3), ("gpu", 2 * n + 1, 4), *([("nic", n // 2, 5)] if n % 2 else [])]
        for kind, number, bus in cards:
            down, pci = f"0000:{n}2:{bus:02x}.0", f"0000:{n}{bus}:00.0"
            rows[SubjectId(f"bridge:{down}")] = {
                "bridge_kind": "downstream",
                "bridge_pci_path": (root, port, up),
                **link,
            }
            place: Values = {
                f"{kind}_pci_path": (root, port, up, down),
                f"{kind}_numa_node": n // 2,
                f"{kind}_local_cpus": cpus[n // 2],
            }
            if kind == "gpu":
                rows[SubjectId(f"gpu:{pci}")] = {
                    **place,
                    "gpu_index": number,
                    "gpu_up": 1,
                    "gpu_name": "NVIDIA L40S",
                    "gpu_minor": number,
                    "gpu_uuid": f"GPU-00000000-0000-4000-8000-{number:012d}",
                    "gpu_compute_capability": "8.9",
                    "pcie_link_width": 16,
                    "pcie_link_generation": 4,
                    "pcie_link_width_limit": 16,
                    "pcie_link_generation_limit": 4,
                }
            else:
                rows[SubjectId(f"nic:mlx5_{number}")] = {
                    **place,
                    "nic_pci": pci,
                    "nic_rdma": f"mlx5_{number}",
                    "nic_driver": "mlx5_core",
                    "nic_rate_bits_per_second": 200e9,
                    "nic_ports": 1,
                    "nic_link_width": 16,
                    "nic_link_generation": 4,
                    "nic_link_width_limit": 16,
                    "nic_link_generation_limit": 4,
                }
    return rows


def graph(rows: Rows) -> Topology:
    """The graph of these rows."""
    return build(rows, host="node17")


def plain(
    bonds: Sequence[Sequence[int | None]],
    levels: Sequence[Sequence[Level | None]] | None = None,
    nodes: Sequence[str | None] | None = None,
) -> Topology:
    """GPUs alone, as a matrix tells of them; levels and nodes that are not given are not known."""
    size = len(bonds)
    devices = tuple(
        Device(name=f"GPU{n}", kind="gpu", nodes=nodes[n] if nodes else None, gpu=Gpu(index=n)) for n in range(size)
    )
    return Topology(
        devices=devices, bonds=tuple(tuple(row) for row in bonds),
        levels=tuple(tuple(row) for row in levels or [[None] * size] * size),
    )  # fmt: skip
