"""The driver's own watchdog found the GPU locked.

Shape   long kernels and a sleeping display raise it too: no reason to act by itself
Source  open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc_watchdog.c
"""

import re
from typing import ClassVar

from gpuguard.model.events import Parsed

_LINE = re.compile(
    r"NVRM: (?:GPU\d+ )?(?:\w+: )?RC watchdog: GPU is (?:probably )?locked!?(?: +Notify Timeout Seconds: (\d+))?",
    re.ASCII,
)


class Watchdog:
    """Understands the line that says locked."""

    markers: ClassVar[tuple[bytes, ...]] = (b"RC watchdog: ",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        return Parsed(kind="watchdog", detail={"seconds": int(match[1])} if match[1] else {})
