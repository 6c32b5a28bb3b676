"""Graphs to draw: machines out of rows, and others made from the cells of a matrix; all of them our own."""

from hypothesis import strategies as st

from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.model.topology import Device, DeviceKind, Gpu, Level, Topology
from tests.support.wirings import H100_BUSES, Rows, graph, h100x8, l40sx4, node

LEVELS: dict[str, Level] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS"}


def cells(text: str, cpus: tuple[str | None, ...] = (), nodes: tuple[str | None, ...] = ()) -> Topology:
    """The graph of a matrix: a row a device, its name first, then its cells; `-` for one that is not known.

    `cpus` and `nodes` are those of the GPUs, in their order.
    """
    rows = [line.split() for line in text.strip().splitlines()]
    devices = []
    for place, (name, *_) in enumerate(rows):
        kind: DeviceKind = "gpu" if name.startswith("GPU") else "nic"
        devices.append(
            Device(
                name=name, kind=kind, gpu=Gpu(index=place) if kind == "gpu" else None,
                cpus=cpus[place] if place < len(cpus) else None, nodes=nodes[place] if place < len(nodes) else None,
            )
        )  # fmt: skip
    return Topology(
        devices=tuple(devices),
        levels=tuple(tuple(LEVELS.get(cell) for cell in row) for _, *row in rows),
        bonds=tuple(
            tuple(None if cell == "-" else int(cell[2:]) if cell.startswith("NV") else 0 for cell in row)
            for _, *row in rows
        ),
    )


def uniform(count: int, cell: str, cpus: tuple[str | None, ...] = (), nodes: tuple[str | None, ...] = ()) -> Topology:
    """GPUs that all have one cell between them."""
    rows = [f"GPU{row} " + " ".join("X" if row == column else cell for column in range(count)) for row in range(count)]
    return cells("\n".join(rows), cpus, nodes)


def cube_mesh() -> Topology:
    """Eight GPUs in two halves of four: a hybrid cube mesh, as of the year of the V100; processors, no NUMA nodes."""
    pairs = {
        (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
        (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    }  # fmt: skip
    names = [f"GPU{n}" for n in range(8)] + ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    homes = [0, 0, 2, 2, 4, 4, 6, 6, 0, 4, 2, 6]

    def cell(i: int, j: int) -> str:
        if i == j:
            return "X"
        if bond := pairs.get((min(i, j), max(i, j))):
            return f"NV{bond}"
        if homes[i] == homes[j]:
            return "PIX"
        return "PHB" if homes[i] // 4 == homes[j] // 4 else "SYS"

    rows = [f"{name} " + " ".join(cell(i, j) for j in range(12)) for i, name in enumerate(names)]
    return cells("\n".join(rows), ("0-15,32-47",) * 4 + ("16-31,48-63",) * 4)


def bridged_pairs() -> Topology:
    """Six GPUs in pairs with an NVLink bridge, one of them across the sockets."""
    return cells(
        """
        GPU0 X NODE NODE NV12 SYS SYS NODE
        GPU1 NODE X NV12 SYS SYS SYS NODE
        GPU2 NODE NV12 X SYS SYS SYS NODE
        GPU3 NV12 SYS SYS X NODE NODE SYS
        GPU4 SYS SYS SYS NODE X NV12 SYS
        GPU5 SYS SYS SYS NODE NV12 X SYS
        mlx5_0 NODE NODE NODE SYS SYS SYS X
        """,
        ("0-23,48-71",) * 3 + ("24-47,72-95",) * 3, ("0",) * 3 + ("1",) * 3,
    )  # fmt: skip


def lopsided() -> Topology:
    """Eight GPUs without NVLink: six at one socket, two at the other, some of them below one host bridge."""
    near = {(1, 2), (3, 4), (6, 7)}

    def cell(i: int, j: int) -> str:
        if i == j:
            return "X"
        return "PHB" if (min(i, j), max(i, j)) in near else "NODE" if (i < 6) == (j < 6) else "SYS"

    rows = [f"GPU{i} " + " ".join(cell(i, j) for j in range(8)) for i in range(8)]
    return cells("\n".join(rows), ("0-11,24-35",) * 6 + ("12-23,36-47",) * 2, ("0",) * 6 + ("1",) * 2)


def gpu(n: int) -> SubjectId:
    """The subject of GPU n of `h100x8`."""
    return SubjectId(f"gpu:0000:{H100_BUSES[n]}:00.0")


def link_down() -> Rows:
    """One link of GPU2 is down, GPU5 runs narrow, the others' PCIe rests, one switch redirects."""
    rows = h100x8()
    rows[gpu(2)]["nvlink_up"] = (1,) * 6 + (0,) + (1,) * 11
    rows[gpu(3)]["pcie_link_generation"] = 1
    rows[gpu(5)]["pcie_link_width"] = 8
    rows[gpu(6)]["nvlink_up"] = (0,) * 18
    rows[gpu(7)]["nvlink_up"] = (None,) * 18
    rows[SubjectId("bridge:0000:1a:00.0")]["bridge_p2p_redirect"] = 1
    return rows


def lost() -> Rows:
    """GPU4 fell off the bus: the kernel still has it, the driver tells nothing."""
    rows = h100x8()
    kept = {name: value for name, value in rows[gpu(4)].items() if name.startswith(("gpu_pci", "gpu_numa", "gpu_loc"))}
    rows[gpu(4)] = {**kept, "gpu_up": 0, "nvml_error": 15, "gpu_uuid": "GPU-00000000-0000-4000-8000-000000000004"}
    return rows


def mig() -> Rows:
    """GPU0 and GPU1 are cut into instances."""
    rows = h100x8()
    for n, profiles in ((0, ("1g.10gb",) * 7), (1, ("3g.40gb", "4g.40gb"))):
        rows[gpu(n)]["mig_mode"] = 1
        for number, profile in enumerate(profiles):
            row: Values = {"mig_gpu_instance": number, "mig_profile": profile}
            rows[SubjectId(f"mig:0000:{H100_BUSES[n]}:00.0/{number}")] = row
    return rows


def ten_cards() -> Rows:
    """`h100x8` with two cards more for storage, one a socket, at root complexes of their own."""
    rows = h100x8()
    for n in range(2):
        number = 8 + n
        rows[SubjectId(f"nic:mlx5_{number}")] = {
            **{key: value for key, value in rows[SubjectId(f"nic:mlx5_{n * 4}")].items() if "link" in key},
            "nic_pci_path": (f"pci0000:{8 + n}0", f"0000:{8 + n}0:01.0"), "nic_numa_node": n,
            "nic_rdma": f"mlx5_{number}", "nic_pci": f"0000:{8 + n}1:00.0", "nic_rate_bits_per_second": 200e9,
            "nic_netdevs": f"eth{n}", "nic_driver": "mlx5_core",
        }  # fmt: skip
    return rows


def sixteen() -> Rows:
    """Sixteen GPUs, eight on each of two boards with six NVSwitches; two GPUs and two cards below each PCIe switch."""
    rows: Rows = {SubjectId("node"): node(machine_profile="hgx-2")}
    link: Values = {"width": 16, "generation": 3, "width_limit": 16, "generation_limit": 3}
    for n in range(16):
        pair, slot = n // 2, n % 2
        root, bus = f"pci0000:{0x20 + pair * 16:02x}", 0x20 + pair * 16
        port, upstream = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
        rows[SubjectId(f"bridge:{port}")] = {"bridge_kind": "root_port", "bridge_pci_path": (root,)}
        rows[SubjectId(f"bridge:{upstream}")] = {
            "bridge_kind": "upstream", "bridge_pci_path": (root, port),
            **{f"bridge_link_{key}": value for key, value in link.items()},
        }  # fmt: skip
        for kind, number in (("gpu", slot), ("nic", 2 + slot)):
            down = f"0000:{bus + 2:02x}:{number:02x}.0"
            path = (root, port, upstream, down)
            rows[SubjectId(f"bridge:{down}")] = {"bridge_kind": "downstream", "bridge_pci_path": path[:-1]}
            place: Values = {f"{kind}_pci_path": path, f"{kind}_numa_node": pair // 4}
            pci = f"0000:{bus + 3 + number:02x}:00.0"
            if kind == "gpu":
                rows[SubjectId(f"gpu:{pci}")] = {
                    **place, "gpu_index": n, "gpu_uuid": f"GPU-00000000-0000-4000-8000-{n:012d}", "gpu_up": 1,
                    "mig_mode": 0, "gpu_name": "Tesla V100-SXM3-32GB",
                    **{f"pcie_link_{key}": value for key, value in link.items()},
                    "nvlink_peers": tuple(f"nvswitch:0000:f{pair // 4 * 6 + link:x}:00.0" for link in range(6)),
                    "nvlink_up": (1,) * 6, "nvlink_speed_bytes_per_second": 25e9,
                }  # fmt: skip
            else:
                rows[SubjectId(f"nic:mlx5_{n}")] = {
                    **place, "nic_pci": pci, "nic_rdma": f"mlx5_{n}", "nic_rate_bits_per_second": 100e9,
                    **{f"nic_link_{key}": value for key, value in link.items()},
                }  # fmt: skip
    return rows


def alone() -> Rows:
    """One card in a workstation."""
    rows = l40sx4()
    return {
        name: row for name, row in rows.items()
        if not name.startswith(("gpu:", "nic:")) or name == "gpu:0000:17:00.0"
    }  # fmt: skip


def hidden() -> Rows:
    """A virtual machine: no tree, no NUMA node, switches without an address."""
    rows: Rows = {SubjectId("node"): node(("0-95",), "0,48")}
    for n in range(8):
        rows[SubjectId(f"gpu:000{n}:00:00.0")] = {
            "gpu_numa_node": None, "gpu_index": n, "gpu_uuid": f"GPU-00000000-0000-4000-8000-{n:012d}", "gpu_up": 1,
            "mig_mode": 0, "gpu_name": "NVIDIA H100 80GB HBM3", "pcie_link_width": 16, "pcie_link_generation": 5,
            "nvlink_peers": ("nvswitch",) * 18, "nvlink_up": (1,) * 18, "nvlink_speed_bytes_per_second": 26.562e9,
        }  # fmt: skip
    return rows


def hostile() -> Topology:
    """Names that hold what XML and terminals take for themselves."""
    rows = h100x8()
    rows[gpu(0)]["gpu_name"] = "<script>alert('&\"')</script>\x1b[31m"
    rows[SubjectId('nic:<&">\x00\u202e')] = {
        **rows[SubjectId("nic:mlx5_0")],
        "nic_rdma": '<&">\x00\u202e', "nic_pci": "0000:1c:00.1",
    }  # fmt: skip
    rows[SubjectId("node")]["machine_profile"] = "</title><&>" + "m" * 400
    return graph(rows)


def nested() -> Rows:
    """Two GPUs and two cards below two switches that hang below a third; four NUMA nodes, three of them bare."""
    rows: Rows = {
        SubjectId("node"): node(tuple(f"{16 * n}-{16 * n + 15}" for n in range(4)), "0,64", numa_sockets=(
            "0", 0, "1", 0, "2", 1, "3", 1,
        ))
    }  # fmt: skip
    link: Values = {"width": 16, "generation": 4, "width_limit": 16, "generation_limit": 4}

    def bridge(pci: str, kind: str, *path: str) -> None:
        rows[SubjectId(f"bridge:{pci}")] = {
            "bridge_kind": kind, "bridge_pci_path": path,
            **{f"bridge_link_{key}": value for key, value in link.items()},
        }  # fmt: skip

    root = ("pci0000:20", "0000:20:01.0", "0000:21:00.0")
    bridge(root[1], "root_port", *root[:1])
    bridge(root[2], "upstream", *root[:2])
    for n in range(2):
        way = (*root, f"0000:22:0{n}.0", f"0000:{23 + 10 * n}:00.0")
        bridge(way[3], "downstream", *way[:3])
        bridge(way[4], "upstream", *way[:4])
        for kind, slot in (("gpu", 0), ("nic", 1)):
            down = f"0000:{24 + 10 * n}:0{slot}.0"
            bridge(down, "downstream", *way)
            pci = f"0000:{25 + 10 * n + slot}:00.0"
            place: Values = {f"{kind}_pci_path": (*way, down), f"{kind}_numa_node": 1}
            if kind == "gpu":
                rows[SubjectId(f"gpu:{pci}")] = {
                    **place, "gpu_index": n, "gpu_up": 1, "gpu_name": "NVIDIA A100-SXM4-40GB",
                    **{f"pcie_link_{key}": value for key, value in link.items()},
                    "nvlink_peers": (f"gpu:0000:{35 - 10 * n}:00.0",) * 4 + (None,) * 2,
                    "nvlink_up": (1, 1, 0, 1, 0, 0),
                }  # fmt: skip
            else:
                rows[SubjectId(f"nic:rdmap{n}")] = {
                    **place,
                    "nic_pci": pci,
                    "nic_rdma": f"rdmap{n}",
                    "nic_driver": "efa",
                }
    return rows


def kernel_only() -> Rows:
    """`h100x8` without the driver: what sysfs tells."""
    rows = h100x8()
    return {
        name: {
            key: value for key, value in row.items()
            if not name.startswith("gpu:") or key.startswith(("gpu_pci_path", "gpu_numa", "gpu_local", "pcie"))
        } for name, row in rows.items()
    }  # fmt: skip


def unbridged() -> Rows:
    """Four cards that could have an NVLink bridge, and have none: their links are down, and show no other end."""
    rows = l40sx4()
    for name in rows:
        if name.startswith("gpu:"):
            rows[name] |= {"nvlink_peers": (None,) * 4, "nvlink_up": (0,) * 4}
    return rows


def stray() -> Topology:
    """Cards that are equally near to both NUMA nodes, so that theirs is not known; GPUs in a mesh of pairs of four."""
    return cells(
        """
        GPU0 X NV4 NV4 NV4 NODE NODE NODE
        GPU1 NV4 X NV4 NV4 NODE NODE NODE
        GPU2 NV4 NV4 X NV4 NODE NODE NODE
        GPU3 NV4 NV4 NV4 X NODE NODE NODE
        NIC0 NODE NODE NODE NODE X PIX PHB
        NIC1 NODE NODE NODE NODE PIX X PHB
        NIC2 NODE NODE NODE NODE PHB PHB X
        """,
        ("0", "0", None, None), ("0", "0", "1", "1"),
    )  # fmt: skip


def fewer() -> Topology:
    """Eight GPUs from a matrix: GPU2 reads NV17, the others NV18; GPU7's row is missing, and with it its cells."""
    rows = [
        f"GPU{i} " + " ".join(
            "X" if i == j else "-" if 7 in (i, j) else "NV17" if 2 in (i, j) else "NV18" for j in range(8)
        ) for i in range(8)
    ]  # fmt: skip
    return cells("\n".join(rows), nodes=("0",) * 4 + ("1",) * 3)


def machines() -> dict[str, Topology]:
    """All of them by a name."""
    return {
        "h100x8": graph(h100x8()), "l40sx4": graph(l40sx4()), "link_down": graph(link_down()), "lost": graph(lost()),
        "mig": graph(mig()), "ten_cards": graph(ten_cards()), "sixteen": graph(sixteen()), "alone": graph(alone()),
        "hidden": graph(hidden()), "hostile": hostile(), "cube_mesh": cube_mesh(), "bridged_pairs": bridged_pairs(),
        "lopsided": lopsided(), "pair": uniform(2, "NV4", nodes=("0", "0")), "mesh4": uniform(4, "NV4"),
        "tray": uniform(4, "NV18", ("0-71",) * 2 + ("72-143",) * 2, ("0", "0", "1", "1")),
        "flat": uniform(4, "PHB", ("0-119",) * 4, ("0",) * 4), "nested": graph(nested()),
        "kernel_only": graph(kernel_only()), "unbridged": graph(unbridged()), "stray": stray(), "fewer": fewer(),
        "empty": Topology(devices=(), levels=(), bonds=()),
    }  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Any cells between up to sixteen GPUs and as many cards, on any NUMA nodes; they need not make sense."""
    gpus, nics, chance = draw(st.integers(0, 16)), draw(st.integers(0, 16)), draw(st.randoms(use_true_random=False))
    kinds = draw(
        st.sampled_from([("PIX", "PXB", "PHB", "NODE", "SYS"), ("PHB", "SYS", "NV1", "NV2"), ("NV18",), ("NV17", "-")])
    )
    count = gpus + nics
    grid = [["X"] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            cell = chance.choice(kinds)
            grid[i][j] = grid[j][i] = "SYS" if i >= gpus and cell.startswith("NV") else cell
    names = [f"GPU{n}" for n in range(gpus)] + [f"NIC{n}" for n in range(nics)]
    homes = draw(st.sampled_from([("0", "1"), ("0", "1", "3", "0-1", None), (None,), tuple("01234567")]))
    nodes = [chance.choice(homes) for _ in range(gpus)]
    return cells("\n".join(" ".join((name, *row)) for name, row in zip(names, grid, strict=True)), nodes=tuple(nodes))
