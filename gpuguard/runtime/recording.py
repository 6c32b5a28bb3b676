"""A machine as files that play: what NVML answers, and the small files that sources of the host read.

Shape   <folder>/{ORIGIN,nvml.json,dev/kmsg,proc/...,sys/...}, as `--root` plays it
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuguard import __version__
from gpuguard.errors import Absent, NotUnderstood
from gpuguard.model.ids import parse_pci_address
from gpuguard.model.readings import Rate
from gpuguard.runtime.redaction import SERVICES, Redaction
from gpuguard.sources.machine import serial as identity
from gpuguard.sources.nvml.library import Library
from gpuguard.sources.nvml.noted import Noted
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sources.nvml.readings import FABRIC_CALL
from gpuguard.sources.topology import LEARNED, cards, processors, registers, tree
from gpuguard.sweeping.files import PAGE, listed
from gpuguard.sweeping.gpus import DEVICES, VENDOR_NVIDIA
from gpuguard.sweeping.links import LINKS, Links

NVML = "nvml.json"
RATES: tuple[Rate, ...] = ("fast", "medium", "slow")
CONFIG_BYTES = 64  # of a PCI device: what any user may read
LOG_BYTES = 8 * 1024 * 1024
CHILDREN = 32  # of one process: the loaders of its data
RECORD_BYTES = 8192  # the most that one read of /dev/kmsg gives
# Files that are copied as they are but for names, below the root.
PLAIN = (
    "proc/driver/nvidia/version", "proc/driver/nvidia/params", "proc/driver/nvidia/gpus/*/information",
    "proc/driver/nvidia/capabilities/**/access", "proc/driver/nvidia/capabilities/mig/*", "sys/module/nvidia/version",
    "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name", "sys/class/infiniband/*/ports/*/state",
    "sys/class/infiniband/*/ports/*/phys_state", "sys/class/infiniband/*/ports/*/rate",
    "sys/class/infiniband/*/ports/*/link_layer", "sys/class/infiniband/*/ports/*/counters/*",
    "sys/class/infiniband/*/ports/*/hw_counters/*", "sys/devices/system/edac/mc/mc*/ce_count",
    "sys/devices/system/edac/mc/mc*/ue_count", "sys/devices/system/node/node*/cpulist",
    "sys/devices/system/node/node*/distance", "proc/pressure/io",
)  # fmt: skip
DEVICE_FILES = (
    "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node", "local_cpulist",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "aer_dev_correctable",
    "aer_dev_nonfatal", "aer_dev_fatal", "power/runtime_status",
)  # fmt: skip
VENDORS = (VENDOR_NVIDIA, "0x15b3")  # and Mellanox; of other vendors network cards and bridges
DEVICE_LINKS = ("driver", "iommu_group", "physfn")
CORE_FILES = ("physical_package_id", "thread_siblings_list", "core_cpus_list")
MODULES = re.compile(r"(nvidia|mlx5|ib_|rdma|gdrdrv|nv_peer|iw_|nvme)\w*", re.ASCII)
STATUS_LINES = ("Name", "State", "Tgid", "Pid", "PPid", "Uid", "Threads", "voluntary_ctxt_switches",
                "nonvoluntary_ctxt_switches")  # fmt: skip
LOG_WORDS = re.compile(r"NVRM|nvidia|nvswitch|nvlink|pcieport|AER:|DPC:|mlx5|EDAC|mce:|\[10de:", re.IGNORECASE)
NOT_LOGGED = re.compile(r"command line|audit", re.IGNORECASE)
_RECORD = re.compile(r"(\d+),\d+,(\d+),[^;]*;(.*)", re.DOTALL)
_SERIAL = re.compile(r"serial number(?: is|:) (\d+)", re.IGNORECASE | re.ASCII)
_UUID_LINE = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", re.MULTILINE | re.ASCII)


@dataclass(slots=True)
class Kept:
    """What a recording holds, and what it lacks with the reason."""

    files: int = 0
    gpus: int = 0
    passes: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often NVML is asked, and who waits meanwhile. Units: seconds."""

    passes: int
    every: float
    clock: Callable[[], float]
    rest: Callable[[float], None]


def ask_nvml(noted: Noted, root: Path, pace: Pace, tell: Callable[[str], None]) -> None:
    """Every question of the agent was answered `passes` times.

    Raises  NvmlError when NVML as a whole cannot be asked
    """
    noted.open()
    reader = Reader(noted, root)
    began = pace.clock()
    for n in range(pace.passes):
        if n:
            pace.rest(max(0.0, began + n * pace.every - pace.clock()))
            noted.next_pass()
        tell(f"pass {n + 1} of {pace.passes}")
        for rate in RATES:
            reader.sweep(rate)
    noted.ask_once()


def write_nvml(
    folder: Path, noted: Noted, root: Path, pace: Pace, names: Redaction, kept: Kept | None = None
) -> list[int]:
    """nvml.json lies in the folder; gives the processes on the GPUs. A GPU that nothing names is told as missing."""
    made = noted.recording(f"recorded by gpuguard {__version__}; names are invented", pace.every, _by_index(root))
    nameless = noted.gpus - len(made["devices"])
    if kept is not None and nameless > 0:
        kept.missing[NVML] = f"{nameless} of {noted.gpus} GPUs: NVML lists them and tells neither UUID nor address"
    told = made["system"].get("nvmlSystemGetProcessName")
    if isinstance(told, dict):
        made["system"]["nvmlSystemGetProcessName"] = {
            pid: names.process(os.path.basename(str(name))) for pid, name in told.items()
        }
    pids: set[int] = set()
    for device in made["devices"]:
        serial = device["calls"].get("nvmlDeviceGetSerial")
        if isinstance(serial, str):
            device["calls"]["nvmlDeviceGetSerial"] = names.serial(serial)
        if FABRIC_CALL in device["calls"]:
            device["calls"][FABRIC_CALL] = _renamed(device["calls"][FABRIC_CALL], names)
        for one in (device, *device.get("mig", ())):
            for call, answer in one["calls"].items():
                if call.endswith("RunningProcesses_v3"):
                    pids.update(_pids(answer))
    text = json.dumps(names.tree(made), indent=0, separators=(",", ":"))
    # Lines of one number each are as long as the rest: what has no brackets within goes onto one line.
    text = re.sub(r"\n([^\[\]{}\n]*)", r"\1", text)
    _write(folder / NVML, text + "\n")
    return sorted(pids)


def _renamed(answer: Any, names: Redaction) -> Any:
    """An answer whose only texts are UUIDs, with others in their place; all zeros mean none and stay. Any: JSON."""
    if isinstance(answer, str):
        return names.uuid(answer) if answer.strip("0-") else answer
    if isinstance(answer, dict):
        return {key: _renamed(value, names) for key, value in answer.items()}
    return [_renamed(value, names) for value in answer] if isinstance(answer, list) else answer


def _pids(answer: object) -> Iterator[int]:
    for one in answer if isinstance(answer, list) else answer.get("series", ()) if isinstance(answer, dict) else ():
        if isinstance(one, dict) and "pid" in one:
            yield int(one["pid"])
        elif isinstance(one, list):
            yield from _pids(one)


def _by_index(root: Path) -> dict[int, tuple[str, str]]:
    """UUID and address of each GPU as the driver's files list them: what NVML does not tell of one that is lost."""
    found = {}
    folder = root / "proc/driver/nvidia/gpus"
    for index, address in enumerate(listed(folder)):
        try:
            text = (folder / address / "information").read_text(errors="replace")
            match = _UUID_LINE.search(text)
            if match is not None:
                found[index] = (match[1], f"0000{parse_pci_address(address)}".upper())
        except (OSError, NotUnderstood):
            continue
    return found


def copy_host(root: Path, folder: Path, pids: Iterable[int], names: Redaction, kept: Kept) -> None:
    """What the host's sources read of the machine under `root` lies in the folder."""
    _copy_serials(root, folder, names, kept)
    for pattern in PLAIN:
        for path in sorted(root.glob(pattern)):
            _copy(path, root, folder, names, kept)
    copied = _copy_bus(root, folder, names, kept)
    _copy_names(root, folder, copied, names, kept)
    _copy_processors(root, folder, names, kept)
    _copy_modules(root, folder, kept)
    _copy_processes(root, folder, pids, names, kept)
    boot = root / "proc/sys/kernel/random/boot_id"
    if (text := _text(boot, kept, root)) is not None:
        _write(folder / "proc/sys/kernel/random/boot_id", names.uuid(text.strip()) + "\n", kept)
    _copy_log(root, folder, names, kept)


def _copy_serials(root: Path, folder: Path, names: Redaction, kept: Kept) -> None:
    """By what the machine is known, invented. First of all, so that no other file has it as it was."""
    for file in (*(f"{identity.DMI}/{name}" for name in identity.SERIALS), identity.MACHINE_ID):
        if (text := _text(root / file, kept, root)) is not None:
            old = text.strip()
            # Words instead of a number are nobody's.
            _write(folder / file, (names.machine(old) if identity.is_serial(old) else old) + "\n", kept)


def _copy_bus(root: Path, folder: Path, names: Redaction, kept: Kept) -> dict[str, str]:
    """GPUs, cards and the bridges above them lie in the folder; gives their links."""
    links, found = Links(root), tree.look(root)
    ours = {address for address in listed(root / DEVICES) if _vendor(root, address, kept) in VENDORS}
    devices = {*ours, *found.networks, *(card.pci for card in cards.find(root, links, found.networks))}
    bridges = {bridge for address in devices for bridge in tree.bridges_of(tree.path_of(links, address) or ())}
    copied: dict[str, str] = {}
    for address in sorted({*devices, *bridges}):
        device = root / DEVICES / address
        if _vendor(root, address, kept) is None:
            continue  # unplugged meanwhile
        for name in DEVICE_FILES:
            _copy(device / name, root, folder, names, kept)
        for link in (f"{DEVICES}/{address}", *(f"{DEVICES}/{address}/{name}" for name in DEVICE_LINKS)):
            if (target := links.target(link)) is not None:
                copied[link] = target
        try:
            space = registers.shortened(device / "config") if address in bridges else None
            if space is None:
                with (device / "config").open("rb", buffering=0) as file:
                    space = file.read(CONFIG_BYTES)
        except OSError as error:
            kept.missing[f"{DEVICES}/{address}/config"] = error.strerror or str(error)
            continue
        _write(folder / DEVICES / address / "config", space, kept)
    return copied


def _vendor(root: Path, address: str, kept: Kept) -> str | None:
    text = _text(root / DEVICES / address / "vendor", kept, root)
    return None if text is None else text.strip()


def _copy_names(root: Path, folder: Path, copied: dict[str, str], names: Redaction, kept: Kept) -> None:
    """By which names RDMA and the network know the cards, and the file with all links."""
    links = Links(root)
    there = {target for link, target in copied.items() if link.count("/") == DEVICES.count("/") + 1}
    for kind, files in ((cards.RDMA, ("node_guid",)), (cards.NET, ("speed", "phys_port_name"))):
        for name in listed(root / kind):
            target = links.target(f"{kind}/{name}/device")
            if target is None or not any(target == one or target.startswith(f"{one}/") for one in there):
                continue  # not of a card: only software, or on another bus
            instead = names.interface(name) if kind == cards.NET else name
            copied[f"{kind}/{instead}/device"] = target
            for file in files:
                text = _text(root / kind / name / file, None, root)
                if text is not None:
                    text = f"{names.guid(text.strip())}\n" if file == "node_guid" else text
                    _write(folder / kind / instead / file, text, kept)
    if copied:
        _write(folder / LINKS, "".join(f"{link} {target}\n" for link, target in sorted(copied.items())), kept)


def _copy_processors(root: Path, folder: Path, names: Redaction, kept: Kept) -> None:
    """The first core of each NUMA node, and what processor it is."""
    told = [_text(path, kept, root) for path in sorted(root.glob(f"{processors.NODES}/node*/cpulist"))] or ["0"]
    for cpu in sorted({cpu for text in told if (cpu := processors.first_of((text or "").strip())) is not None}):
        for name in CORE_FILES:
            _copy(root / processors.CPUS / f"cpu{cpu}/topology/{name}", root, folder, names, kept)
    if (text := _text(root / "proc/cpuinfo", kept, root)) is not None:
        _write(folder / "proc/cpuinfo", names.text(text.partition("\n\n")[0]) + "\n", kept)
    if root != Path("/"):
        _copy(root / LEARNED, root, folder, names, kept)


def _copy_modules(root: Path, folder: Path, kept: Kept) -> None:
    """Modules of the GPU stack and of the network; addresses in the kernel are left out."""
    try:
        lines = (root / "proc/modules").read_text().splitlines()
    except OSError as error:
        kept.missing["proc/modules"] = error.strerror or str(error)
        return
    chosen = [
        re.sub(r"0x[0-9a-f]+", "0x0000000000000000", line) for line in lines if MODULES.fullmatch(line.split(" ")[0])
    ]
    _write(folder / "proc/modules", "".join(f"{line}\n" for line in chosen), kept)


def _copy_processes(root: Path, folder: Path, pids: Iterable[int], names: Redaction, kept: Kept) -> None:
    chosen = {str(pid) for pid in pids}
    children: dict[str, list[str]] = {pid: [] for pid in chosen}
    for name in listed(root / "proc"):
        if name.isascii() and name.isdigit() and name not in chosen:
            stat = _text(root / "proc" / name / "stat", None, root) or ""
            if stat[stat.find("(") + 1 : stat.rfind(")")] in SERVICES:
                chosen.add(name)
            children.get(stat[stat.rfind(")") + 4 :].partition(" ")[0], []).append(name)
    for some in children.values():
        chosen.update(some[:CHILDREN])
    for pid in sorted(chosen, key=int):
        _copy_process(root, folder, pid, names, kept)


def _copy_process(root: Path, folder: Path, pid: str, names: Redaction, kept: Kept) -> None:
    """What is read of one process, but for its environment: nothing of that may be known."""
    place, target = root / "proc" / pid, folder / "proc" / pid
    stat = _text(place / "stat", None, root)
    if stat is None:
        return  # it ended meanwhile
    comm = stat[stat.find("(") + 1 : stat.rfind(")")]
    instead = names.process(comm)
    _write(target / "stat", f"{pid} ({instead}){stat[stat.rfind(')') + 1 :]}", kept)
    _write(target / "comm", instead + "\n", kept)
    if (status := _text(place / "status", None, root)) is not None:
        _write(target / "status", _status(status, instead, names), kept)
    for name in ("wchan", "io"):  # functions of the kernel, and numbers
        if (text := _text(place / name, None, root)) is not None:
            _write(target / name, text, kept)
    if (groups := _text(place / "cgroup", None, root)) is None:
        return
    lines = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    _write(target / "cgroup", "".join(f"{number}:{kinds}:{names.group(path)}\n" for number, kinds, path in lines), kept)
    for number, _, path in lines:
        if number == "0" and path != "/" and ".." not in path.split("/"):
            pressure = _text(root / f"sys/fs/cgroup{path}/io.pressure", None, root)
            if pressure is not None:
                _write(folder / f"sys/fs/cgroup{names.group(path)}/io.pressure", pressure, kept)


def _status(text: str, comm: str, names: Redaction) -> str:
    """The lines of a status file that say how a process does; its users are other numbers."""
    lines = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            value = f"\t{comm}"
        elif key == "Uid":
            value = "".join(f"\t{names.user(user)}" for user in value.split())
        if key in STATUS_LINES:
            lines.append(f"{key}:{value}\n")
    return "".join(lines)


def _copy_log(root: Path, folder: Path, names: Redaction, kept: Kept) -> None:
    """The kernel's own lines about the GPU stack, PCIe and memory, numbered anew from 0."""
    try:
        records = list(_records(root / "dev/kmsg"))
    except OSError as error:
        kept.missing["dev/kmsg"] = error.strerror or str(error)
        return
    lines: list[str] = []
    for record in records:
        match = _RECORD.match(record.partition("\n")[0])
        if match is None or int(match[1]) >> 3 or not LOG_WORDS.search(match[3]) or NOT_LOGGED.search(match[3]):
            continue
        for serial in _SERIAL.findall(match[3]):
            names.serial(serial)  # of a GPU that NVML does not reach any more
        lines.append(f"{match[1]},{len(lines)},{match[2]},-;{names.text(match[3])}\n")
    _write(folder / "dev/kmsg", "".join(lines), kept)


def _records(path: Path) -> Iterator[str]:
    """Every record in the kernel's ring, or in a file of such records, at most LOG_BYTES of them."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if path.is_file():
            for line in os.read(file, LOG_BYTES).decode("utf-8", "replace").splitlines():
                if not line.startswith("#"):
                    yield line
            return
        left = LOG_BYTES
        while left > 0:
            try:
                record = os.read(file, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # what was next is overwritten; the one after it comes
            left -= len(record)
            yield record.decode("utf-8", "replace")
    finally:
        os.close(file)


def write_origin(folder: Path, kept: Kept, root: Path, pace: Pace) -> None:
    """ORIGIN says where the files come from and what was changed."""
    of = "this machine" if root == Path("/") else "another recorded machine"
    lines = [
        f"A recorded machine: `gpuguard record` {__version__} of {of}, {kept.gpus} GPUs, {kept.passes} passes "
        f"{pace.every:g} s apart.",
        "Numbers and states are as they were read. UUIDs, GUIDs, serial numbers, the boot id, names of hosts, "
        "processes and control",
        "groups and numbers of users are invented, the same in every file. dev/kmsg holds the kernel's lines about the "
        "GPU",
        "stack, PCIe and memory, numbered anew.",
        *(f"Missing: {name}: {why}" for name, why in kept.missing.items()),
    ]
    _write(folder / "ORIGIN", "".join(f"{line}\n" for line in lines))


def _copy(path: Path, root: Path, folder: Path, names: Redaction, kept: Kept) -> None:
    text = _text(path, kept, root)
    if text is not None:
        _write(folder / path.relative_to(root), names.text(text), kept)


def _text(path: Path, kept: Kept | None, root: Path) -> str | None:
    """What a small file says; None where it does not exist or gives nothing, which is noted where `kept` is given."""
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(PAGE).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError, IsADirectoryError):
        return None
    except OSError as error:
        if kept is not None:
            kept.missing[str(path.relative_to(root))] = error.strerror or str(error)
        return None


def _write(path: Path, content: str | bytes, kept: Kept | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if kept is not None:
        kept.files += 1


def library_of(root: Path) -> Library:
    """Whoever answers for NVML: the player for a recorded machine, the driver's library for this one.

    Raises  Absent where another machine's NVML was not recorded
    """
    if (root / NVML).exists():
        import time

        from gpuguard.sources.nvml.played import Player, load

        return Player(load(root / NVML), time.monotonic)
    if root != Path("/"):
        raise Absent(f"{root / NVML} does not exist; NVML of this machine was not recorded")
    from gpuguard.sources.nvml.live import Live

    return Live()
