"""Lines of rsyslog with an ISO time: `2026-08-31T20:29:49.123456+00:00 host kernel: [  12.345678] text`.

Shape   as `syslog`, with year and zone
Source  rsyslog, RSYSLOG_FileFormat
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.senders import read_rsyslog
from gpuguard.kernel_log.stamps import parse_iso
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?"
    r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) "
    r"(?:(?!kernel: )\S{1,255} )?(?P<tag>[^\s:\[\]]{1,64})(?P<pid>\[\d+\])?: ?"
)


class SyslogIso:
    """Reads rsyslog's file format; a tag other than the kernel's is not trusted."""

    name: ClassVar[str] = "syslog_iso"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        return None if match is None else read_rsyslog(self.name, match, match["tag"], parse_iso(match["iso"]))
