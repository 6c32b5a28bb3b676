"""Lines of RFC 3164: `[<4>]Nov  2 08:15:00 host kernel: [  12.345678] text`.

Shape   no year, so no UTC; date and host can be cut off, then `kernel: ` is left; rsyslog folds repeats into
        `message repeated N times: [ text]` and writes control characters as `#012`. journalctl prints the same
Source  RFC 3164, rsyslog's traditional file format
"""

import re
from datetime import UTC, datetime
from typing import ClassVar

from gpuguard.kernel_log.senders import read_rsyslog
from gpuguard.kernel_log.stamps import parse_calendar
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?"
    r"(?:(?:(?P<month>[^\W\d_]{2,5})\.? {1,2}(?P<day>\d{1,2})|\d{1,2}\.? [^\W\d_]{2,5}\.?) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?:\.\d{1,9})? "
    r"(?:(?!kernel: )\S{1,255} )?(?P<tag>[^\s:\[\]]{1,64})(?P<pid>\[\d+\])?:|(?P<bare>kernel):) ?"
)
DAY = 86_400.0  # seconds; clocks of writer and file system differ, and zones are not printed


def newest_moment(line: str, limit: float) -> float | None:
    """The newest UTC that the line's month, day and clock can mean, at most a day after `limit`."""
    match = _PREFIX.match(line)
    if match is None or match["month"] is None:
        return None
    year = datetime.fromtimestamp(limit + DAY, UTC).year
    for candidate in (year, year - 1):
        moment = parse_calendar(str(candidate), match["month"], match["day"], match["clock"])
        if moment is not None and moment <= limit + DAY:
            return moment
    return None


class Syslog:
    """Reads syslog lines; a tag other than the kernel's is not trusted."""

    name: ClassVar[str] = "syslog"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        return None if match is None else read_rsyslog(self.name, match, match["tag"] or match["bare"])
