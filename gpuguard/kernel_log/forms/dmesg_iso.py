"""What `dmesg --time-format iso` prints: `2026-08-31T20:29:49,123456+00:00 text`, with -x behind `kern  :warn  : `.

Shape   the fraction stands behind a comma, which tells it from rsyslog's; no host, no tag; some tools add brackets
Source  util-linux, sys-utils/dmesg.c, iso_8601_time
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_iso, strip_caller
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"(?:<(\d{1,4})>|([a-z0-9]{3,8}) *:[a-z]{3,7} *: ?)?"
    r"(?:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{1,9}(?:Z|[+-]\d\d:?\d\d)?) "
    r"|\[(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\] ?)",
    re.ASCII,
)


class DmesgIso:
    """Reads lines that begin with an ISO time with a comma."""

    name: ClassVar[str] = "dmesg_iso"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        priority, facility, stamp, bracketed = match.groups()
        trusted = (priority is None or int(priority) >> 3 == 0) and facility in (None, "kern")
        text = strip_caller(line[match.end() :]).removeprefix("kernel: ")
        return Record(name=self.name, text=text, trusted=trusted, utc=parse_iso(stamp or bracketed))
