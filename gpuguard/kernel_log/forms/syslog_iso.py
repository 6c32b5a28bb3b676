"""Lines of rsyslog with an ISO time: `2026-08-31T20:29:49.123456+00:00 host kernel: [  12.345678] text`.

Shape   as `syslog`, with year and zone
Source  rsyslog, RSYSLOG_FileFormat
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_iso, split_boot_stamp, unescape_octal
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?"
    r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) "
    r"(?:(?!kernel: )\S{1,255} )?(?P<tag>[^\s:\[\]]{1,64})(?P<pid>\[\d+\])?: ?"
)
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$", re.DOTALL | re.ASCII)
_OWN_WORD = ("systemd-journald", "nv-fabricmanager")


class SyslogIso:
    """Reads rsyslog's file format; a tag other than the kernel's is not trusted."""

    name: ClassVar[str] = "syslog_iso"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        tag = match["tag"]
        text, repeated = unescape_octal(line[match.end() :]), 1
        if folded := _REPEATED.match(text):
            repeated, text = int(folded[1]), folded[2]
        boot_seconds, text = split_boot_stamp(text)
        if own := tag in _OWN_WORD:
            text = f"{tag}: {text}"
        facility_kern = match["priority"] is None or int(match["priority"]) >> 3 == 0
        return Record(
            name=self.name,
            text=text,
            trusted=own or (tag == "kernel" and match["pid"] is None and facility_kern),
            utc=parse_iso(match["iso"]),
            boot_seconds=boot_seconds,
            repeated=repeated,
        )
