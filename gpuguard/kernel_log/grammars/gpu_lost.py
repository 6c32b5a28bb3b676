"""A GPU that no longer answers, told without an Xid.

Shape   at run time one line; at probe time one message of three lines, which printed logs split; the same first line
        also begins messages about a wrong driver, which are no lost GPU
Source  open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c and src/nvidia/arch/nvalloc/unix/src/osinit.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import DetailValue, Parsed

_RUNTIME = re.compile(rf"NVRM: GPU (?:PCI:)?({ANY}): GPU has fallen off the bus")
_OLD = re.compile(rf"NVRM: GPU at (?:PCI:)?({ANY}):? (?:GPU )?has fallen off the bus")
_PROBE = re.compile(
    rf"NVRM: The NVIDIA (?:probe routine )?GPU (?:at )?({ANY}) (?:\(PCI ID: ([0-9a-f:]+)\) )?"
    r"(?:installed in this system )?has fallen off the bus"
)
_TAIL = re.compile(r"NVRM: (?:has )?fallen off the bus and is not responding")
_LINE_BREAK = re.compile(r"\s+(?:NVRM: +)?")


class GpuLost:
    """Understands the run-time, the old and the probe-time form; `form` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (b"fallen off the bus", b"The NVIDIA GPU")

    def parse(self, text: str) -> Parsed | None:
        if not text.startswith("NVRM: ") or "fallen off the bus" not in text:
            return None
        flat = _LINE_BREAK.sub(" ", text)
        for form, pattern in (("runtime", _RUNTIME), ("old", _OLD)):
            if match := pattern.match(flat):
                return Parsed(kind="gpu_lost", pci=read_address(match[1]), fatal=True, detail={"form": form})
        if match := _PROBE.match(flat):
            detail: dict[str, DetailValue] = {"form": "probe"}
            if match[2]:
                detail["pci_id"] = match[2]
            return Parsed(kind="gpu_lost", pci=read_address(match[1]), fatal=True, detail=detail)
        if _TAIL.match(flat):
            return Parsed(kind="gpu_lost", fatal=True, detail={"form": "probe"})
        return None
