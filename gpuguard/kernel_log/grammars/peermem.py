"""Errors of nvidia-peermem, which lets network cards write into GPU memory.

Source  open-gpu-kernel-modules, kernel-open/nvidia-peermem/nvidia-peermem.c, peer_err
"""

import re
from typing import ClassVar

from gpuguard.model.events import Parsed

_LINE = re.compile(r"nvidia[-_]peermem:? (\w+):(\d+) ERROR:? (.{1,200})", re.ASCII)


class Peermem:
    """Understands its error lines; what it prints for information is not reported."""

    markers: ClassVar[tuple[bytes, ...]] = (b"nvidia-peermem ", b"nvidia_peermem ", b"nvidia-peermem:")

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        return Parsed(kind="peermem", detail={"function": match[1], "text": match[3].strip()})
