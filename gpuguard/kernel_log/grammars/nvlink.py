"""The NVLink wedge of B200 and B300: receiver detection fails in a flood, nvidia-smi hangs, no Xid comes.

Source  open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/nvlink/kernel_nvlinkcorelib.c; seen after 66 days of uptime
"""

import re
from typing import ClassVar

from gpuguard.model.events import DetailValue, Parsed

_LINE = re.compile(
    r"NVRM: (?:GPU(\d+) )?(knvlink\w*): (?:Getting peer(\d+)'s postRxDetLinkMask failed|"
    r"Failed to (?:update|get) (?:Rx Detect Link mask|postRxDetLinkMask))",
    re.ASCII,
)


class Nvlink:
    """Understands the two lines of the flood."""

    markers: ClassVar[tuple[bytes, ...]] = (b"postRxDetLinkMask", b"Rx Detect Link mask")

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        detail: dict[str, DetailValue] = {"sub": "rx_detect", "function": match[2]}
        if match[3] is not None:
            detail["peer"] = int(match[3])
        return Parsed(kind="nvlink", detail=detail)
