"""The NVIDIA driver did not take a GPU when it was loaded.

Source  kernel drivers/base/dd.c; open-gpu-kernel-modules, kernel-open/nvidia/nv.c and nv-pci.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import Parsed

_LINE = re.compile(
    rf"nvidia ({ANY}): probe with driver nvidia failed with error (-?\d+)"
    rf"|nvidia: probe of ({ANY}) failed with error (-?\d+)"
    r"|NVRM: The NVIDIA probe routine (?:failed for|was not called for) (\d+) device"
    r"|NVRM: (?:None of the NVIDIA (?:graphics )?(?:devices|adapters)|No NVIDIA (?:GPU|devices))"
    r".*(?:initialized|probed|found)",
    re.ASCII,
)


class DriverProbeFailed:
    """Understands the kernel's line of one GPU and the driver's summary."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b"probe with driver nvidia failed",
        b"nvidia: probe of ",
        b"The NVIDIA probe routine",
        b"None of the NVIDIA ",
    )

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        address, error = match[1] or match[3], match[2] or match[4]
        counts = {"devices": int(match[5])} if match[5] else {}
        return Parsed(
            kind="driver_probe_failed",
            pci=read_address(address) if address else None,
            detail={"error": int(error)} if error else {**counts},
        )
