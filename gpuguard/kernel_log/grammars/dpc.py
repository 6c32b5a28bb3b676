"""Downstream Port Containment: a port cut its link off after an error.

Source  kernel 4.10 to 6.12, drivers/pci/pcie/dpc.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import read_address
from gpuguard.model.events import DetailValue, Parsed

# `error containment capabilities` and `enabled with IRQ` come at every boot and report nothing.
_LINE = re.compile(
    r"([\w.-]{1,40}) ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): DPC: "
    r"(containment event|(?:.* )?detected|ERR_\w+ received|RP PIO|.*timed out)"
    r"(?:.*status:(0x[0-9a-f]+) source:(0x[0-9a-f]+))?",
    re.ASCII,
)


class Dpc:
    """Understands the event and the reason that follows it."""

    markers: ClassVar[tuple[bytes, ...]] = (b": DPC: ",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        driver, address, words, status, source = match.groups()
        detail: dict[str, DetailValue] = {"driver": driver, "text": words}
        if status:
            detail |= {"status": status, "source": source}
        return Parsed(kind="dpc", pci=read_address(address), detail=detail)
