"""Who wrote a line and whether to believe it: what several printed forms share."""

import re

from gpuguard.kernel_log.stamps import split_boot_stamp, unescape_octal
from gpuguard.ports import Record

# Their lines are read beside the kernel's, with the tag left in front of the text.
OWN_WORD = ("systemd-journald", "nv-fabricmanager")

_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$", re.DOTALL | re.ASCII)
_LEVEL = re.compile(r"(?:<(\d{1,4})>|([a-z0-9]{3,8}) *:[a-z]{3,7} *: ?)", re.ASCII)


def split_level(line: str) -> tuple[bool, bool, str]:
    """Whether the kernel wrote the line, whether it has dmesg's raw `<4>` in front, and the line without its level.

    Source  util-linux, sys-utils/dmesg.c: -r prints `<4>`, -x prints `kern  :warn  : `
    """
    level = _LEVEL.match(line)
    if level is None:
        return True, False, line
    trusted = int(level[1]) >> 3 == 0 if level[1] else level[2] == "kern"
    return trusted, level[1] is not None, line[level.end() :]


def read_rsyslog(form: str, prefix: re.Match[str], tag: str, utc: float | None = None) -> Record:
    """The record of a line in one of rsyslog's forms; a tag other than the kernel's is not trusted.

    Shape   `prefix` matched up to the text and has the groups `priority` and `pid`; folded repeats are unfolded
    """
    text, repeated = unescape_octal(prefix.string[prefix.end() :]), 1
    if folded := _REPEATED.match(text):
        repeated, text = int(folded[1]), folded[2]
    boot_seconds, text = split_boot_stamp(text)
    if own := tag in OWN_WORD:
        text = f"{tag}: {text}"
    facility_kern = prefix["priority"] is None or int(prefix["priority"]) >> 3 == 0
    return Record(
        name=form,
        text=text,
        trusted=own or (tag == "kernel" and prefix["pid"] is None and facility_kern),
        utc=utc,
        boot_seconds=boot_seconds,
        repeated=repeated,
    )
