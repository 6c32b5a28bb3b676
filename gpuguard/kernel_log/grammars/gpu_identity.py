"""Who a GPU is: its UUID and its board's serial number, in the driver's own words.

Shape   printed before the first Xid of a GPU since the driver was loaded: the UUID with the address, then the serial
        without one; `assemble` gives the second the address of the first. When a GPU is lost its serial comes again
Source  open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/gpu.c, gpuLogOemSerial; osinit.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import Parsed

_UUID = re.compile(rf"NVRM: GPU at PCI:({ANY}): (GPU-[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})")
_SERIAL = re.compile(r"NVRM: GPU Board Serial Number: *([0-9A-Za-z]{4,32})", re.ASCII)
_AT_LOSS = re.compile(rf"NVRM: GPU ({ANY}): GPU serial number is ([0-9A-Za-z]{{4,32}})", re.ASCII)


class GpuIdentity:
    """Understands three lines; `sub` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (b"GPU at PCI:", b"GPU Board Serial Number: ", b"GPU serial number is ")

    def parse(self, text: str) -> Parsed | None:
        if match := _UUID.match(text):
            return Parsed(kind="gpu_identity", pci=read_address(match[1]), detail={"sub": "uuid", "uuid": match[2]})
        if match := _SERIAL.match(text):
            return Parsed(kind="gpu_identity", detail={"sub": "serial", "serial": match[1]})
        if match := _AT_LOSS.match(text):
            detail = {"sub": "serial_at_loss", "serial": match[2]}
            return Parsed(kind="gpu_identity", pci=read_address(match[1]), detail={**detail})
        return None
