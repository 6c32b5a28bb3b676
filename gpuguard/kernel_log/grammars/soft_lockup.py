"""A CPU that has run in the kernel for too long without scheduling.

Source  kernel 3.10 to 6.12, kernel/watchdog.c
"""

import re
from typing import ClassVar

from gpuguard.model.events import DetailValue, Parsed

_LINE = re.compile(
    r"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#(\d+) stuck for (\d+)s!(?: \[(.{0,64}):(\d+)\])?",
    re.DOTALL | re.ASCII,
)


class SoftLockup:
    """Understands which CPU was stuck, for how long, and in which task."""

    markers: ClassVar[tuple[bytes, ...]] = (b"BUG: soft lockup",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        cpu, seconds, name, pid = match.groups()
        detail: dict[str, DetailValue] = {"cpu": int(cpu), "seconds": int(seconds)}
        return Parsed(kind="soft_lockup", pid=int(pid) if pid else None, process=name or None, detail=detail)
