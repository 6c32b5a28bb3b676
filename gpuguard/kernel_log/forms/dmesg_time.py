"""What `dmesg -T` prints: `[Mon Aug 31 20:29:49 2026] text`.

Shape   the names follow the locale and the year can be missing; then the record has no UTC. dmesg computes this time
        from the boot clock, which stops in suspend: it can be hours wrong
Source  util-linux, sys-utils/dmesg.c, ctime
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.senders import split_level
from gpuguard.kernel_log.stamps import parse_calendar, strip_caller
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"\[ ?[^\W\d_]{1,8}\.?,? +(?:([^\W\d_]{3,9})\.? +(\d{1,2})|(\d{1,2})\.? +([^\W\d_]{3,9})\.?) +"
    r"(\d\d:\d\d:\d\d)(?: +(\d{4}))?\] ?"
)


class DmesgTime:
    """Reads lines that begin with a date in brackets."""

    name: ClassVar[str] = "dmesg_time"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        trusted, _, rest = split_level(line)
        match = _PREFIX.match(rest)
        if match is None:
            return None
        month, day = match[1] or match[4], match[2] or match[3]
        return Record(
            name=self.name,
            text=strip_caller(rest[match.end() :]).removeprefix("kernel: "),
            trusted=trusted,
            utc=parse_calendar(match[6], month, day, match[5]),
        )
