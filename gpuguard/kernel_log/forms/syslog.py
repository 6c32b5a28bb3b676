"""Lines of RFC 3164: `[<4>]Nov  2 08:15:00 host kernel: [  12.345678] text`.

Shape   no year, so no UTC; date and host can be cut off, then `kernel: ` is left; rsyslog folds repeats into
        `message repeated N times: [ text]` and writes control characters as `#012`. journalctl prints the same
Source  RFC 3164, rsyslog's traditional file format
"""

import re
from datetime import UTC, datetime
from typing import ClassVar

from gpuguard.kernel_log.stamps import parse_calendar, split_boot_stamp, unescape_octal
from gpuguard.ports import Record

_PREFIX = re.compile(
    r"(?:<(?P<priority>\d{1,3})>)?"
    r"(?:(?:(?P<month>[^\W\d_]{2,5})\.? {1,2}(?P<day>\d{1,2})|\d{1,2}\.? [^\W\d_]{2,5}\.?) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?:\.\d{1,9})? "
    r"(?:(?!kernel: )\S{1,255} )?(?P<tag>[^\s:\[\]]{1,64})(?P<pid>\[\d+\])?:|(?P<bare>kernel):) ?"
)
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$", re.DOTALL | re.ASCII)
DAY = 86_400.0  # seconds; clocks of writer and file system differ, and zones are not printed
_OWN_WORD = ("systemd-journald", "nv-fabricmanager")


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
        if match is None:
            return None
        tag = match["tag"] or match["bare"]
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
            boot_seconds=boot_seconds,
            repeated=repeated,
        )
