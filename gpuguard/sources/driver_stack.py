"""The driver's modules and services on this host, and whether its kernel and user parts are of one version.

Reads     /proc/modules; /sys/module/nvidia/version, else /proc/driver/nvidia/version; where libnvidia-ml.so.1 leads;
          /proc/<pid>/stat of every process; what is to be loaded at boot in /etc/modules and modules-load.d
Emits     a Sweep with a row of the node
Source    proc(5); Linux kernel/module/procfs.c; the driver's README, chapters on installed components and nvidia-smi;
          modules-load.d(5)

Services are told by the names of processes: no service manager is asked, as that may hang and differs by system. In a
container, or where other users' processes are hidden, nothing can be said about them and their columns are absent.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import listed, read_bytes, read_text
from gpuguard.sweeping.processes import Processes, comm_of, sees_host, state_of
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "driver_stack"
# Columns by what they tell of; a module may be known under an older name as well.
MODULES: dict[str, tuple[str, ...]] = {
    "nvidia": ("nvidia",),
    "nvidia_uvm": ("nvidia_uvm",),
    "nvidia_peermem": ("nvidia_peermem", "nv_peer_mem"),
    "nvidia_fs": ("nvidia_fs",),
}
# The kernel cuts names off after 15 bytes.
SERVICES: dict[str, bytes] = {
    "fabric_manager": b"nv-fabricmanager"[:15],
    "persistenced": b"nvidia-persistenced"[:15],
    "imex": b"nvidia-imex"[:15],
}
LIBRARY = "libnvidia-ml.so"
# Where loaders look, in their order; the last two are where clouds and driver containers put it.
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu", "run/nvidia/driver/usr/lib64",
)  # fmt: skip
MODULE_LISTS = ("etc/modules", "etc/modules-load.d", "usr/lib/modules-load.d", "run/modules-load.d")
MODULES_BYTES = 64 * 1024  # some two hundred lines of eighty bytes

_VERSION = re.compile(r"\d{2,4}(?:\.\d{1,4}){1,3}", re.ASCII)
_NVRM = re.compile(r"^NVRM version:.*?\s(\d{2,4}(?:\.\d{1,4}){1,3})\s", re.ASCII | re.MULTILINE)

QUANTITIES: tuple[Quantity, ...] = (
    *(
        Quantity(
            name=f"module_{name}_loaded", of="node", unit="flag", low=0, high=1, metric="kernel_module_loaded",
            labels={"module": name}, help="1 where the module is loaded in the kernel.",
        )
        for name in MODULES
    ),
    *(
        Quantity(
            name=f"{name}_running", of="node", unit="flag", low=0, high=1, metric="service_running",
            labels={"service": name}, help="1 where a process of the service lives.",
        )
        for name in SERVICES
    ),
    *(
        Quantity(
            name=f"{name}_state", of="node", unit="text", kind="text", metric=None,
            help="The kernel's letter for the state of the service's process: S sleeps, D hangs, T is stopped.",
        )
        for name in SERVICES
    ),
    Quantity(
        name="driver_library_version", of="node", unit="text", kind="text", metric=None,
        help="The version of libnvidia-ml.so that programs find.",
    ),
    Quantity(
        name="peermem_configured", of="node", unit="flag", low=0, high=1, metric=None,
        help="1 where the host is set to load nvidia_peermem when it starts.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(60.0)  # one look costs some ten microseconds a process
    deadline: Seconds = Seconds(2.0)  # for all of it

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


def parse_modules(text: str) -> frozenset[str]:
    """The modules that are loaded and stay so.

    Reads   /proc/modules
    Shape   lines `name size uses by state address`; state Live, Loading or Unloading
    """
    rows = (line.split() for line in text.splitlines())
    return frozenset(row[0] for row in rows if len(row) >= 5 and row[4] != "Unloading")


def read_driver_version(root: Path) -> str | None:
    """The version of the kernel module that is loaded; None where it cannot be understood.

    Reads   /sys/module/nvidia/version, `570.124.06`; else /proc/driver/nvidia/version, whose first line is
            `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  <date>`, of the open one `... Open Kernel
            Module for x86_64  570.124.06  Release Build ...`
    Raises  Absent where no driver is loaded; ReadFailed
    """
    try:
        match = _VERSION.fullmatch(read_text(root / "sys/module/nvidia/version"))
        return match[0] if match else None
    except Absent:
        found = _NVRM.search(read_text(root / "proc/driver/nvidia/version") + " ")
        return found[1] if found else None


def read_library_version(root: Path) -> str | None:
    """The version of the library that a program finds; None where several lie there and no link tells which.

    Reads   where libnvidia-ml.so.1 leads, else the names libnvidia-ml.so.<version>, in the first folder that has any
    Raises  Absent where there is none
    """
    for folder in LIBRARY_FOLDERS:
        path = root / folder
        try:
            target = os.path.basename(os.readlink(path / f"{LIBRARY}.1"))
        except OSError:
            target = ""
        names = [target] if target else listed(path)
        versions = {name[len(LIBRARY) + 1 :] for name in names if name.startswith(f"{LIBRARY}.")}
        known = {version for version in versions if _VERSION.fullmatch(version)}
        if known:
            return known.pop() if len(known) == 1 else None
    raise Absent(f"no {LIBRARY} below {root}")


def is_listed(root: Path, names: tuple[str, ...]) -> bool:
    """Whether one of these modules is to be loaded when the host starts.

    Raises  ReadFailed where a folder of lists cannot be read
    Source  modules-load.d(5): a name a line, `#` and `;` begin comments, `-` and `_` are the same
    """
    for place in MODULE_LISTS:
        path = root / place
        files = [path / name for name in listed(path) if name.endswith(".conf")] if path.is_dir() else [path]
        for file in files:
            try:
                lines = read_text(file).splitlines()
            except (Absent, ReadFailed):
                continue
            if any(line.strip().replace("-", "_") in names for line in lines):
                return True
    return False


class DriverStack:
    """Modules, services and versions under a root."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Reads nothing yet."""
        self._root = root
        self._processes = Processes(root / "proc")
        self._others: set[int] = set()  # what was no service at the last look
        self._apart: Apart[Values] = Apart(NAME, settings.deadline)

    def sweep(self, now: Instant) -> Rows:
        """One row of the node; what could not be read in time is missing from it.

        Raises  Absent where there is neither a driver nor its library; ReadFailed where that cannot be told
        """
        jobs = {"driver": self._read_driver, "modules": self._read_modules, "services": self._read_services}
        found = self._apart.read(jobs)
        driver = found.get("driver", {})
        modules = found.get("modules", {})
        if not driver and not modules.get("module_nvidia_loaded") and not self._apart.hanging:
            if jobs.keys() - found.keys():
                raise ReadFailed("neither the driver's version nor the list of modules can be read")
            raise Absent("no NVIDIA driver on this machine; it is looked for again later")
        return {NODE: {**driver, **modules, **found.get("services", {})}}

    def _read_driver(self) -> Values:
        values: Values = {}
        for column, read in (("driver_version", read_driver_version), ("driver_library_version", read_library_version)):
            try:
                values[column] = read(self._root)
            except Absent:
                continue
            except ReadFailed:
                values[column] = None
        return values

    def _read_modules(self) -> Values:
        values: Values = {}
        try:
            values["peermem_configured"] = int(is_listed(self._root, MODULES["nvidia_peermem"]))
        except ReadFailed:
            values["peermem_configured"] = None
        try:
            text = read_bytes(self._root / "proc/modules", MODULES_BYTES).decode("ascii", "replace")
        except Absent:
            return {}  # a kernel without modules, or one that does not show them
        loaded = parse_modules(text)
        values.update({f"module_{name}_loaded": int(not loaded.isdisjoint(MODULES[name])) for name in MODULES})
        return values

    def _read_services(self) -> Values:
        """A zombie does not work any more: it is no service that runs.

        What was no service at two looks, a minute apart, is none: by then a program that a shell starts is itself.
        """
        if not sees_host(self._root / "proc"):
            return {}
        states = dict.fromkeys(SERVICES.values(), "")
        others = set()
        for stat in self._processes.stats():
            comm = comm_of(stat)
            if comm not in states:
                others.add(int(stat[: stat.find(b" ")]))
            elif (state := state_of(stat)) not in ("Z", "X", ""):
                states[comm] = state
        self._processes.ignore(others & self._others)
        self._others = others
        values: Values = {}
        for name, comm in SERVICES.items():
            values[f"{name}_running"] = int(bool(states[comm]))
            if states[comm]:
                values[f"{name}_state"] = states[comm]
        return values


def build(settings: Settings, root: Path, clock: Clock) -> Rounds:
    """The source for the machine under `root`."""
    return Rounds(NAME, DriverStack(settings, root).sweep, clock, every=settings.every)
