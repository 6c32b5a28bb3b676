"""The hot-plug controller of a slot saw its card or link go or come.

Source  kernel 4.19 to 6.12, drivers/pci/hotplug/pciehp_ctrl.c and pciehp_hpc.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import read_address
from gpuguard.model.events import Parsed

_LINE = re.compile(
    r"([\w.-]{1,40}) ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?::pcie\d+)?: "
    r"pciehp: Slot\(([^)]{1,32})\): (.{1,120})",
    re.ASCII,
)


class PcieHotplug:
    """Understands every line that names a slot; `text` is what happened there."""

    markers: ClassVar[tuple[bytes, ...]] = (b"pciehp: Slot(",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        driver, address, slot, words = match.groups()
        detail = {"driver": driver, "slot": slot, "text": words.strip()}
        return Parsed(kind="pcie_hotplug", pci=read_address(address), detail={**detail})
