"""What the host's sources read of a recorded machine: the small files of sysfs and proc, made from the machine itself.

Form    as the kernel prints them: Linux 6.8, drivers/pci/pci-sysfs.c and pcie/aer.c, drivers/infiniband/core/sysfs.c,
        kernel/module/procfs.c, fs/proc/array.c, drivers/edac/edac_mc_sysfs.c, drivers/firmware/dmi-id.c; and of the
        driver's proc/driver/nvidia/params
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.machines import gpus

AER = {
    "correctable": (
        "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR",
    ),
    **{
        kind: (
            "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC",
            "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr",
            "PoisonTLPBlocked", f"TOTAL_ERR_{kind.upper()}",
        )
        for kind in ("nonfatal", "fatal")
    },
}  # fmt: skip
PORT_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
TRANSPORT_ERRORS = ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "rx_icrc_encapsulated")
SPEEDS = {4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
NDR, HDR = "400 Gb/sec (4X NDR)", "200 Gb/sec (4X HDR)"
# Names as the kernel cuts them off, with the pid that they have on every machine.
FABRIC_MANAGER, PERSISTENCED = (2411, "nv-fabricmanage"), (2207, "nvidia-persiste")
JOB_USER, ROOT_USER = 20417, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is not known from the machine's own folder."""

    pcie: int
    ports: int = 0
    rate: str = NDR
    services: tuple[tuple[int, str], ...] = (PERSISTENCED,)
    modules: tuple[str, ...] = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
    comm: str = "pt_main_thread"
    lost: str = ""  # the address of a GPU that reads as all ones


SWITCHED = (PERSISTENCED, FABRIC_MANAGER)
NETWORKED = (
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia_uvm",
    "nvidia_peermem",
    "nvidia",
    "mlx5_ib",
    "ib_core",
    "mlx5_core",
)
HOSTS = {
    "a100x8": Host(pcie=4, ports=8, rate=HDR, services=SWITCHED, modules=NETWORKED),
    "h100x8": Host(pcie=5, ports=8, services=SWITCHED, modules=NETWORKED),
    "b200x8": Host(pcie=5, ports=8, services=SWITCHED, modules=NETWORKED),
    "l40sx4": Host(pcie=4, comm="python3"),
    "h100x8-mig": Host(pcie=5, ports=8, services=SWITCHED, modules=NETWORKED, comm="notebook"),
    "h100x8-lost": Host(pcie=5, ports=8, services=SWITCHED, modules=NETWORKED, lost="0000:9d:00.0"),
}


def write_host(root: Path, host: Host, pids: list[int], driver: str) -> None:
    """All files of the host sources lie below `root`; those of processes and ports of an earlier time are gone."""
    log = (root / "dev/kmsg").read_text()
    _bus(root, host, int(_found(r"Allowing (\d+) CPUs", log)))
    _ports(root, host)
    _processes(root, host, pids)
    vendor, product = _found(r"DMI: (\S+ .*?)/", log).split(" ", 1)
    _write(root / "sys/class/dmi/id/sys_vendor", vendor)
    _write(root / "sys/class/dmi/id/product_name", product)
    _write(root / "sys/module/nvidia/version", driver)
    users = {"nvidia": len(host.modules) - 1, "nvidia_uvm": 2, "ib_core": 1, "mlx5_core": 1}
    lines = [
        f"{name} {MODULES[name]} {users.get(name, 0)} - Live 0x0000000000000000"
        f"{' (OE)' if name.startswith('nvidia') else ''}"
        for name in host.modules
    ]
    _write(root / "proc/modules", "\n".join(lines))
    _write(root / "proc/driver/nvidia/params", "\n".join(PARAMS))
    for controller in range(4):
        for count in ("ce_count", "ue_count"):
            _write(root / f"sys/devices/system/edac/mc/mc{controller}/{count}", "0")


MODULES = {
    "nvidia_drm": 131072, "nvidia_modeset": 1814528, "nvidia_uvm": 4931584, "nvidia_peermem": 16384,
    "nvidia": 14381056, "mlx5_ib": 516096, "ib_core": 581632, "mlx5_core": 2588672,
}  # fmt: skip
PARAMS = (
    "ResmanDebugLevel: 4294967295", "RmLogonRC: 1", "ModifyDeviceFiles: 1", "DeviceFileUID: 0", "DeviceFileGID: 0",
    "DeviceFileMode: 438", "InitializeSystemMemoryAllocations: 1", "UsePageAttributeTable: 4294967295",
    "EnableMSI: 1", "EnablePCIeGen3: 0", "MemoryPoolSize: 0", "KMallocHeapMaxSize: 0", "VMallocHeapMaxSize: 0",
    "IgnoreMMIOCheck: 0", "EnableStreamMemOPs: 0", "EnableUserNUMAManagement: 1", "NvLinkDisable: 0",
    "RmProfilingAdminOnly: 1", "PreserveVideoMemoryAllocations: 0", "EnableS0ixPowerManagement: 0",
    "DynamicPowerManagement: 3", "RegisterPCIDriver: 1", "EnablePCIERelaxedOrderingMode: 0",
    "EnableResizableBar: 0", "EnableGpuFirmware: 18", "EnableGpuFirmwareLogs: 2", "OpenRmEnableUnsupportedGpus: 1",
    'RegistryDwords: ""', 'RegistryDwordsPerDevice: ""', 'RmMsg: ""', 'GpuBlacklist: ""', 'TemporaryFilePath: ""',
    'ExcludedGpus: ""',
)  # fmt: skip


def _bus(root: Path, host: Host, cpus: int) -> None:
    quarter = cpus // 4
    for address in gpus(root):
        folder = root / "sys/bus/pci/devices" / address
        node = int(int(address[5:7], 16) >= 0x80)
        header = (folder / "config").read_bytes()
        if header == b"\xff" * 64:
            other = next(one for one in gpus(root) if one != address)
            header = (root / "sys/bus/pci/devices" / other / "config").read_bytes()
        _write(folder / "subsystem_vendor", f"0x{int.from_bytes(header[44:46], 'little'):04x}")
        _write(folder / "subsystem_device", f"0x{int.from_bytes(header[46:48], 'little'):04x}")
        _write(folder / "numa_node", str(node))
        first = node * quarter
        _write(
            folder / "local_cpulist",
            f"{first}-{first + quarter - 1},{first + 2 * quarter}-{first + 3 * quarter - 1}",
        )
        # A device that does not answer gives all ones: six bits of width, and a speed that is none.
        gone = address == host.lost
        for kind in ("current", "max"):
            _write(folder / f"{kind}_link_speed", "Unknown" if gone else SPEEDS[host.pcie])
            _write(folder / f"{kind}_link_width", "63" if gone else "16")
        for kind, names in AER.items():
            _write(folder / f"aer_dev_{kind}", "\n".join(f"{name} 0" for name in names))


def _ports(root: Path, host: Host) -> None:
    shutil.rmtree(root / "sys/class/infiniband", ignore_errors=True)
    for n in range(host.ports):
        port = root / f"sys/class/infiniband/mlx5_{n}/ports/1"
        for name, text in (
            ("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", host.rate), ("link_layer", "InfiniBand")
        ):  # fmt: skip
            _write(port / name, text)
        for name in PORT_ERRORS:
            _write(port / "counters" / name, "0")
        for m, name in enumerate(("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")):
            _write(port / "counters" / name, str(81_204_117_733_120 // (1 if m < 2 else 1024) + n * 97 + m))
        for name in TRANSPORT_ERRORS:
            _write(port / "hw_counters" / name, "0")


def _processes(root: Path, host: Host, pids: list[int]) -> None:
    for folder in (root / "proc").iterdir():
        if folder.name.isdigit():
            shutil.rmtree(folder)
    _process(root, 2, "kthreadd", "S", 0, ROOT_USER, "/")
    _write(root / "proc/pressure/io", "\n".join(f"{kind} {AVERAGES} total={us}" for kind, us in IO_STALLS))
    for pid, comm in host.services:
        _process(root, pid, comm, "S", 1, ROOT_USER, f"/system.slice/{UNITS[comm]}.service")
    for rank, pid in enumerate(pids):
        group = f"/system.slice/slurmstepd.scope/job_8123/step_0/user/task_{rank}"
        _process(root, pid, host.comm, "R", pids[0] - 12, JOB_USER, group)


# As on a host whose data lies on a fast disk: a minute in which all waited since boot.
AVERAGES, IO_STALLS = "avg10=0.00 avg60=0.00 avg300=0.00", (("some", 91_404_117), ("full", 60_218_340))
UNITS = {FABRIC_MANAGER[1]: "nvidia-fabricmanager", PERSISTENCED[1]: "nvidia-persistenced"}


def _process(root: Path, pid: int, comm: str, state: str, parent: int, user: int, group: str) -> None:
    folder = root / "proc" / str(pid)
    started = 1800 + pid * 37
    threads = 1 if user == ROOT_USER else 96
    used = 0 if user == ROOT_USER else 812_345
    _write(folder / "comm", comm)
    _write(folder / "cgroup", f"0::{group}")
    _write(
        folder / "stat",
        f"{pid} ({comm}) {state} {parent} {pid} {pid} 0 -1 4194304 9120 0 12 0 {used} {used // 9} 0 0 20 0 {threads} 0 "
        f"{started} 91268055040 2097152 18446744073709551615 0 0 0 0 0 0 0 16781312 1088 0 0 0 17 8 0 0 0 0 0 0 0 0 0 "
        "0 0 0 0",
    )
    word = {"R": "R (running)", "S": "S (sleeping)"}[state]
    _write(
        folder / "status",
        f"Name:\t{comm}\nState:\t{word}\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{user}\t{user}\t{user}\t"
        f"{user}\nThreads:\t{threads}\nvoluntary_ctxt_switches:\t40211\nnonvoluntary_ctxt_switches:\t1907",
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, pattern
    return match.group(1)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
