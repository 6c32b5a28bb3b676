"""What `talosctl dmesg` prints: `192.0.2.1: kern: warning: [2026-04-22T21:25:20.458998481Z]: text`.

Source  siderolabs/talos, internal/app/machined, Dmesg
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_iso
from gpuguard.ports import Record

_PREFIX = re.compile(r"(?:\S{1,255}: +)?([a-z0-9]{3,8}): +[a-z]{3,8}: \[([0-9TZ:.+-]{10,40})\]: ?", re.ASCII)


class Talos:
    """Reads Talos Linux's own print of the ring."""

    name: ClassVar[str] = "talos"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        facility, stamp = match.groups()
        return Record(name=self.name, text=line[match.end() :], trusted=facility == "kern", utc=parse_iso(stamp))
