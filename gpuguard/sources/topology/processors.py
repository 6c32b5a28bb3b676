"""NUMA nodes and processors, as the kernel lists them.

A node that has memory and no processors, as those of a GPU's own memory on GB200 are, has an empty list: known, none.

Reads   /sys/devices/system/node/node<N>/{cpulist,distance}, /sys/devices/system/cpu/cpu<N>/topology/
        {physical_package_id,thread_siblings_list,core_cpus_list}, the first processor of /proc/cpuinfo
Source  Linux Documentation/ABI/stable/sysfs-devices-node, Documentation/admin-guide/cputopology.rst;
        arch/x86/kernel/cpu/proc.c, arch/arm64/kernel/cpuinfo.c
"""

import re
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.readings import Value, Values
from gpuguard.sweeping.files import listed, read_text, take, whole

NODES, CPUS = "sys/devices/system/node", "sys/devices/system/cpu"
MOST_NODES = 1024  # MAX_NUMNODES of the largest configuration

_NODE = re.compile(r"node(\d{1,4})", re.ASCII)
_LIST = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)?", re.ASCII)


def parse_list(text: str) -> str | None:
    """A list of processors as the kernel prints it, `0-55,112-167` or nothing at all; None for anything else."""
    return text if _LIST.fullmatch(text) else None


def parse_distances(text: str) -> tuple[int | None, ...]:
    """How far each node is, in the order of the nodes; 10 is the node itself."""
    return tuple(whole(word) for word in text.split())


def first_of(cpus: Value) -> int | None:
    """The first processor of a list."""
    return int(re.split("[-,]", cpus)[0]) if isinstance(cpus, str) and cpus else None


def nodes(root: Path) -> Values:
    """Processors, socket and distances of each NUMA node; absent where the kernel has none.

    Raises  ReadFailed where the kernel's list of them cannot be read
    """
    names = listed(root / NODES)
    numbers = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))[:MOST_NODES]
    cpus: dict[int, Value] = {}
    for number in numbers:
        read: Values = {"cpus": None}
        take(read, "cpus", root / NODES / f"node{number}/cpulist", parse_list)
        cpus[number] = read["cpus"]
    values = {} if not numbers else _nodes(root, cpus)
    first = next((cpu for number in numbers if (cpu := first_of(cpus[number])) is not None), None if numbers else 0)
    if first is not None:
        for file in ("thread_siblings_list", "core_cpus_list"):
            read = {}
            take(read, "siblings", root / CPUS / f"cpu{first}/topology" / file, parse_list)
            if read.get("siblings"):
                values["cpu_siblings"] = read["siblings"]
                break
    return values


def _nodes(root: Path, cpus: dict[int, Value]) -> Values:
    sockets: list[int | float | str | None] = []
    distances: list[int | float | str | None] = []
    for number, text in cpus.items():
        if (cpu := first_of(text)) is not None:
            read: Values = {}
            take(read, "socket", root / CPUS / f"cpu{cpu}/topology/physical_package_id", whole)
            socket = read.get("socket")
            sockets += [str(number), socket if isinstance(socket, int) and socket >= 0 else None]
        read = {}
        take(read, "far", root / NODES / f"node{number}/distance", parse_distances)
        far = read.get("far")
        if isinstance(far, tuple) and len(far) == len(cpus):  # else a node came or went meanwhile
            for other, distance in zip(cpus, far, strict=True):
                distances += [f"{number}/{other}", distance]
    listed_cpus = tuple(part for number, text in cpus.items() for part in (str(number), _scalar(text)))
    return {"numa_cpus": listed_cpus, "numa_sockets": tuple(sockets), "numa_distances": tuple(distances)}


def _scalar(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def model(root: Path) -> Values:
    """What processor it is; absent what it does not tell. ARM tells no family and model, and its maker as a code.

    Raises  nothing: where it cannot be read, that is unknown
    """
    try:
        text = read_text(root / "proc/cpuinfo")
    except Absent:
        return {}
    except ReadFailed:
        return {"cpu_architecture": None}
    told: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), value.strip())
    values: Values = {}
    if "vendor_id" in told:
        values["cpu_architecture"] = "x86_64" if "lm" in told.get("flags", "lm").split() else "i686"
        values["cpu_vendor"] = told["vendor_id"]
        values |= {f"cpu_{name}": whole(told[key]) for name, key in (("family", "cpu family"), ("model", "model"))
                   if key in told}  # fmt: skip
    elif "CPU implementer" in told:
        values |= {"cpu_architecture": "aarch64", "cpu_vendor": told["CPU implementer"]}
    elif told.get("cpu", "").startswith("POWER"):
        values["cpu_architecture"] = "ppc64le"
    return values
