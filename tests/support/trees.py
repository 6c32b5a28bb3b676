"""Small machines on disk: a few files of /proc and /sys with what the kernel would say in them."""

import os
from pathlib import Path


def put(root: Path, files: dict[str, str]) -> Path:
    """The files exist below `root`, each with a line end as the kernel gives it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


def process(
    root: Path, pid: int, comm: str | bytes, state: str = "S", *, parent: int = 1, started: int = 1000, cpu: int = 5,
    wchan: str = "0", switches: int = 7,
) -> Path:  # fmt: skip
    """A process below `root`/proc as proc_pid_stat(5) has it; the folder of it."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    name = comm if isinstance(comm, bytes) else comm.encode()
    rest = f" {state} {parent} 1 1 0 -1 4194304 100 0 0 0 {cpu} 0 0 0 20 0 1 0 {started} 1000 100 18446744073709551615"
    (folder / "stat").write_bytes(f"{pid} (".encode() + name + f"){rest}\n".encode())
    (folder / "status").write_text(f"Name:\tx\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n")
    (folder / "wchan").write_text(wchan)
    return folder


def host(root: Path) -> Path:
    """All processes of the host can be seen."""
    process(root, 2, "kthreadd", parent=0)
    return root


def gpu_device(root: Path, pci: str, *, port: str | None = None) -> Path:
    """A GPU on the bus, below a port where one is given; the folder of it."""
    files = {
        "vendor": "0x10de", "class": "0x030200", "current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "numa_node": "1",
        "power/runtime_status": "active",
        "aer_dev_correctable": "RxErr 2\nBadTLP 1\nTOTAL_ERR_COR 3",
        "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0", "aer_dev_fatal": "DLP 1\nTOTAL_ERR_FATAL 1",
    }  # fmt: skip
    listed = root / "sys/bus/pci/devices" / pci
    if port is None:
        put(listed, files)
        return listed
    real = root / "sys/devices/pci0000:16" / port
    put(real, {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "power/runtime_status": "active"})
    put(real / pci, files)
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.symlink_to(real / pci)
    if not listed.with_name(port).exists():
        listed.with_name(port).symlink_to(real)
    return listed


def pci_function(root: Path, address: str, above: tuple[str, ...], files: dict[str, str]) -> Path:
    """A function on the bus below a root complex and bridges, as the kernel lays it out; its folder on the bus."""
    real = root / "/".join(("sys/devices", *above, address))
    real.mkdir(parents=True, exist_ok=True)
    put(real, files)
    listed = root / "sys/bus/pci/devices" / address
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.symlink_to(os.path.relpath(real, listed.parent))
    return listed


def pci_bridge(root: Path, address: str, above: tuple[str, ...], **files: str) -> tuple[str, ...]:
    """A bridge there; gives the path of what is below it."""
    pci_function(
        root, address, above,
        {
            "vendor": "0x1000", "device": "0xc030", "class": "0x060400", "current_link_width": "16",
            "max_link_width": "16", "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe",
            **files,
        },
    )  # fmt: skip
    return (*above, address)


def link(root: Path, path: str, target: str) -> None:
    """A relative link below `root`, as sysfs has them; what it leads to is a folder."""
    (root / target).mkdir(parents=True, exist_ok=True)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(os.path.relpath((root / target).resolve(), (root / path).parent.resolve()))
