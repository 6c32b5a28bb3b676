"""The driver kept a dump of a crashed GPU and asks for a bug report.

Source  open-gpu-kernel-modules, src/nvidia/arch/nvalloc/unix/src/osinit.c
"""

from typing import ClassVar

from gpuguard.model.events import Parsed


class CrashDump:
    """Understands the one line there is."""

    markers: ClassVar[tuple[bytes, ...]] = (b"A GPU crash dump has been created",)

    def parse(self, text: str) -> Parsed | None:
        return Parsed(kind="crash_dump") if text.startswith("NVRM: A GPU crash dump has been created") else None
