"""Machines whose processors are numbered and parted in other ways than those of `wirings`."""

from gpuguard.model.ids import SubjectId
from tests.support.wirings import Rows, h100x8, node


def nps4() -> Rows:
    """Eight GPUs and two sockets, each parted into four NUMA nodes of 16 cores; a GPU pair is near one of them. The
    processors of DGX A100 (public: sample 02 of `nvidia-smi topo -m`)."""
    cpus = tuple(f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{128 + 16 * n + 15}" for n in range(8))
    return _placed(cpus, "0,128", tuple(n // 4 for n in range(8)), (3, 3, 1, 1, 7, 7, 5, 5), "NVIDIA A100-SXM4-40GB")


def interleaved() -> Rows:
    """Two sockets of 24 cores, even processors on the first and odd ones on the second; threads 48 apart."""
    cpus = tuple(",".join(str(cpu) for cpu in range(first, 96, 2)) for first in (0, 1))
    return _placed(cpus, "0,48", (0, 1), (0, 0, 0, 0, 1, 1, 1, 1), "NVIDIA L40S")


def alternating() -> Rows:
    """Eight cards without NVLink, every second one on the other socket."""
    return _placed(("0-23,48-71", "24-47,72-95"), "0,48", (0, 1), (0, 1, 0, 1, 0, 1, 0, 1), "NVIDIA L40S")


def adjacent() -> Rows:
    """Two sockets of 16 cores, the threads of a core next to each other."""
    return _placed(("0-31", "32-63"), "0,1", (0, 1), (0, 0, 0, 0, 1, 1, 1, 1), "NVIDIA L40S")


def single_thread() -> Rows:
    """Two sockets of 32 cores without hyperthreads."""
    return _placed(("0-31", "32-63"), "0", (0, 1), (1, 1, 1, 1, 0, 0, 0, 0), "NVIDIA H200")


def snc2_interleaved() -> Rows:
    """Two sockets in two parts each, processors dealt out in turn: nodes 0 and 2 are one socket, 1 and 3 the other."""
    cpus = tuple(",".join(str(cpu) for cpu in range(first, 64, 4)) for first in range(4))
    return _placed(cpus, "0,32", (0, 1, 0, 1), (0, 0, 2, 2, 1, 1, 3, 3), "NVIDIA H100 NVL")


def lost_and_split() -> Rows:
    """As h100x8, but the driver does not answer for GPU5, and GPU2 is split by MIG."""
    rows = h100x8()
    names = sorted(name for name in rows if name.startswith("gpu:"))
    kept = ("gpu_pci_path", "gpu_numa_node", "gpu_local_cpus")
    rows[names[5]] = {key: value for key, value in rows[names[5]].items() if key in kept} | {"gpu_up": 0}
    rows[names[2]] = {**rows[names[2]], "mig_mode": 1}
    for number, profile in ((1, "3g.40gb"), (2, "3g.40gb"), (9, "1g.10gb")):
        rows[SubjectId(f"mig:{names[2].partition(':')[2]}/{number}")] = {
            "mig_gpu_instance": number, "mig_profile": profile,
        }  # fmt: skip
    return rows


def _placed(cpus: tuple[str, ...], siblings: str, sockets: tuple[int, ...], of: tuple[int, ...], product: str) -> Rows:
    """h100x8 with other processors, and each GPU near the NUMA node that `of` tells."""
    rows = h100x8()
    there = tuple(part for n, socket in enumerate(sockets) for part in (str(n), socket))
    rows[SubjectId("node")] = {**node(cpus, siblings), "numa_sockets": there}
    for name, row in rows.items():
        index = row.get("gpu_index")
        if isinstance(index, int):
            near = {"gpu_numa_node": of[index], "gpu_local_cpus": cpus[of[index]], "gpu_name": product}
            rows[name] = {**row, **near}
    return rows
