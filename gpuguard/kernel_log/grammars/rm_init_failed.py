"""The driver could not initialise a GPU.

Shape   a pair: `RmInitAdapter failed! (a:b:c)` and `rm_init_adapter failed, device minor number N`. The third number
        is a line of the driver's source and differs by build; old forms have no address
Source  open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osinit.c; kernel-open/nvidia/nv.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import DetailValue, Parsed

_INIT = re.compile(
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?({ANY}):? )?(?:RmInitAdapter failed!?(?: \(([0-9a-fx:]+)\)?)?"
    r"|rm_init_adapter(?:\((\d+)\))? failed(?:,? (?:for device bearing|device) minor(?: number)? (\d+))?)"
)


class RmInitFailed:
    """Understands both lines of the pair; `form` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (b"RmInitAdapter failed", b"rm_init_adapter")

    def parse(self, text: str) -> Parsed | None:
        match = _INIT.match(text)
        if match is None:
            return None
        address, code, call, minor = match.groups()
        first = "RmInitAdapter" in match[0]
        detail: dict[str, DetailValue] = {"form": "RmInitAdapter" if first else "rm_init_adapter"}
        if code:
            detail["code"] = code
        if call or minor:
            detail["minor"] = int(call or minor)
        return Parsed(kind="rm_init_failed", pci=read_address(address) if address else None, detail=detail)
