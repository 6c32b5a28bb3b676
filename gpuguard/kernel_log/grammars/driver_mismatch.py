"""A program brought another version of the driver's libraries than the kernel has.

Shape   one message of four lines
Source  open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osapi.c, rm_perform_version_check
"""

import re
from typing import ClassVar

from gpuguard.model.events import Parsed

_LINE = re.compile(r"NVRM: API mismatch: ?(?:the client(?: '[^']*'| \S+)? has (?:the )?version ([\d.]+))?")
_KERNEL = re.compile(r"this kernel module has (?:the )?version ([\d.]+\d)")


class DriverMismatch:
    """Understands the message, whole or its first line."""

    markers: ClassVar[tuple[bytes, ...]] = (b"NVRM: API mismatch",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        kernel = _KERNEL.search(text)
        versions = {"client": match[1], "kernel": kernel[1] if kernel else None}
        return Parsed(kind="driver_mismatch", detail={name: value for name, value in versions.items() if value})
