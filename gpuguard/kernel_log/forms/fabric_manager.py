"""The fabric manager's own log: `[Jul 09 2024 18:14:07] [ERROR] [tid 12727] text`.

Shape   the record's text begins with `nv-fabricmanager: `, so that no kernel grammar takes a program's word for the
        kernel's
Source  NVIDIA Fabric Manager user guide, logging
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_calendar
from gpuguard.ports import Record

_PREFIX = re.compile(r"\[([A-Z][a-z]{2}) (\d\d) (\d{4}) (\d\d:\d\d:\d\d)\] \[[A-Z]+\] (?:\[tid \d+\] )?", re.ASCII)


class FabricManager:
    """Reads lines of fabricmanager.log."""

    name: ClassVar[str] = "fabric_manager"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        month, day, year, clock = match.groups()
        text = f"nv-fabricmanager: {line[match.end() :]}"
        return Record(name=self.name, text=text, utc=parse_calendar(year, month, day, clock))
