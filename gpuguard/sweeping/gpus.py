"""The NVIDIA GPUs that the kernel lists on the PCI bus. Nothing here reaches the device itself.

Reads   /sys/bus/pci/devices/<address>/{vendor,class,power/runtime_status}
Source  Linux drivers/pci/pci-sysfs.c: vendor and class are the kernel's copy, made when the device was found
"""

from pathlib import Path

from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.ids import PciAddress, parse_pci_address
from gpuguard.sweeping.files import listed, read_text

DEVICES = "sys/bus/pci/devices"
VENDOR_NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")  # VGA controller, 3D controller


def is_gpu(device: Path) -> bool:
    """Whether sysfs shows an NVIDIA GPU here. Its vendor and class are the kernel's copy: no access to the device.

    Raises  ReadFailed where it cannot be told
    """
    try:
        return read_text(device / "vendor") == VENDOR_NVIDIA and read_text(device / "class").startswith(GPU_CLASSES)
    except Absent:
        return False


def is_asleep(device: Path) -> bool:
    """Whether the device is suspended at run time; reading its config space would wake it."""
    try:
        return read_text(device / "power/runtime_status") == "suspended"
    except (Absent, ReadFailed):
        return False


class Bus:
    """The bus under a root, looked at again and again: a server has hundreds of devices and eight GPUs."""

    def __init__(self, root: Path) -> None:
        self._devices = root / DEVICES
        self._others: set[str] = set()  # names that are no GPU; what is unplugged is forgotten

    def gpus(self) -> dict[PciAddress, Path]:
        """The folder of each GPU by its address.

        Raises  ReadFailed where the bus cannot be read: a GPU that was not seen once must not be taken for none
        """
        names = listed(self._devices)
        self._others.intersection_update(names)
        found = {}
        for name in names:
            if name in self._others:
                continue
            try:
                pci = parse_pci_address(name)
            except NotUnderstood:
                pci = None  # bridges of odd firmware are listed here too; they are no GPU
            if pci is not None and is_gpu(self._devices / name):
                found[pci] = self._devices / name
            else:
                self._others.add(name)
        return found
