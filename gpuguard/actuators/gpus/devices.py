"""The GPUs that the driver has, and who holds them open.

Reads   /proc/driver/nvidia/gpus/<address>/information; /proc/<pid>/fd, which needs CAP_SYS_PTRACE for others' processes
Source  the driver's README, chapter on /proc; kernel-open/nvidia/nv-procfs.c; proc_pid_fd(5)
"""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from gpuguard.errors import Absent, ActionRefused, NotUnderstood, ReadFailed
from gpuguard.model.ids import PciAddress, parse_pci_address
from gpuguard.sweeping.files import listed, read_text
from gpuguard.sweeping.processes import Processes, parse_stat, sees_host

_MINOR = re.compile(r"^Device Minor:\s*(\d{1,3})\s*$", re.MULTILINE | re.ASCII)
_MODEL = re.compile(r"^Model:\s*(\S.{0,80}?)\s*$", re.MULTILINE)
_NODE = re.compile(r"(?:.*/)?nvidia(?P<minor>\d{1,3})(?: \(deleted\))?", re.ASCII)
_UVM = re.compile(r"(?:.*/)?nvidia-uvm(?: \(deleted\))?", re.ASCII)
DROP_IN: Final = "systemd/gpuguard-actuator.service.d/gpus.conf opens what it needs, see docs/way-back.md"


class Device(NamedTuple):
    """One GPU as the driver lists it: its device file is /dev/nvidia<minor>."""

    pci: PciAddress
    minor: int
    model: str


class Holder(NamedTuple):
    """A process that has a GPU's device file open; `computes` if it has nvidia-uvm open too, as all of CUDA has."""

    pid: int
    comm: str
    computes: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.comm[:32]})"


def devices(proc: Path) -> dict[PciAddress, Device]:
    """The GPUs by address.

    Raises  ActionRefused where the driver is not loaded, or what it says cannot be read
    """
    folder = proc / "driver" / "nvidia" / "gpus"
    found: dict[PciAddress, Device] = {}
    try:
        for name in listed(folder):
            text = read_text(folder / name / "information")
            minor, model = _MINOR.search(text), _MODEL.search(text)
            if minor is None:
                raise NotUnderstood(f"{folder}/{name}/information names no Device Minor", text)
            pci = parse_pci_address(name)
            found[pci] = Device(pci, int(minor[1]), model[1] if model else "")
    except (Absent, ReadFailed, NotUnderstood) as error:
        raise ActionRefused(f"it cannot be told which GPUs the driver has ({error}); {DROP_IN}") from error
    if not found:
        raise ActionRefused(f"{folder} lists no GPU: NVIDIA's driver is not loaded, or it is hidden here; {DROP_IN}")
    return found


def has_switches(proc: Path) -> bool:
    """Whether NVSwitches join the GPUs.

    Raises  ActionRefused where that cannot be told
    """
    try:
        return bool(listed(proc / "driver" / "nvidia-nvswitch" / "devices"))
    except ReadFailed as error:
        raise ActionRefused(f"it cannot be told whether there are NVSwitches ({error}); {DROP_IN}") from error


def runs(proc: Path, comm: str) -> bool:
    """Whether a process of this name runs; the kernel keeps 15 bytes of a name.

    Raises  ActionRefused where the processes cannot be listed
    """
    try:
        stats = list(map(parse_stat, Processes(proc).stats()))
    except ReadFailed as error:
        raise ActionRefused(f"it cannot be told what runs here ({error}); {DROP_IN}") from error
    return any(process is not None and process.comm == comm[:15] for process in stats)


def holders(proc: Path, minors: Collection[int]) -> list[Holder]:
    """Who has the device file of one of these GPUs open.

    Raises  ActionRefused where one process cannot be looked into: that nobody is seen would not say that nobody is
            there
    """
    found = []
    try:
        if not sees_host(proc):
            raise ActionRefused(f"the processes of this machine cannot all be seen from here; {DROP_IN}")
        for text in Processes(proc).stats():
            process = parse_stat(text)
            if process is None or process.state in "ZX":
                continue
            holds, computes = _open_files(proc / str(process.pid) / "fd", minors)
            if holds:
                found.append(Holder(process.pid, process.comm, computes))
    except (ReadFailed, PermissionError) as error:
        raise ActionRefused(f"it cannot be told who uses the GPU ({error}); {DROP_IN}") from error
    return sorted(found)


def _open_files(folder: Path, minors: Collection[int]) -> tuple[bool, bool]:
    """Whether one of the device files is open there, and whether nvidia-uvm is.

    Raises  PermissionError
    """
    holds = computes = False
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return False, False  # it ended since it was listed
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            continue
        if "nvidia" not in target:
            continue
        match = _NODE.fullmatch(target)
        holds = holds or (match is not None and int(match["minor"]) in minors)
        computes = computes or _UVM.fullmatch(target) is not None
    return holds, computes
