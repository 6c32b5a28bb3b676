"""Lines of RFC 5424: `<4>1 2026-08-31T20:29:49.123456+00:00 host kernel - - - text`.

Shape   priority, version, time, host, application, process, message id, structured data, text; `-` for none
Source  RFC 5424 section 6
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_iso, split_boot_stamp, unescape_octal
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"<(\d{1,3})>1 (\S+) \S+ (\S+) (\S+) \S+ (?:-|(?:\[(?:[^\]\"\\]|\\.|\"(?:[^\"\\]|\\.)*\")*\])+)(?: \ufeff?|$)",
    re.DOTALL,
)


class Syslog5424:
    """Reads lines with the structured header; another application or facility is not trusted."""

    name: ClassVar[str] = "syslog_5424"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        priority, stamp, application, process = match.groups()
        boot_seconds, text = split_boot_stamp(unescape_octal(line[match.end() :]))
        return Record(
            name=self.name,
            text=text,
            trusted=application == "kernel" and process == "-" and int(priority) >> 3 == 0,
            utc=parse_iso(stamp),
            boot_seconds=boot_seconds,
        )
