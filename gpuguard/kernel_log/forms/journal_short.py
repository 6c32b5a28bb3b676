"""What `journalctl` prints with -o short-iso, short-full, short-unix, short-monotonic and short-delta.

Shape   `TIME host tag[pid]: text`; the default -o short is that of RFC 3164 and read by `syslog`. Further lines of
        one message are printed below it, indented, without a prefix
Source  systemd, src/shared/logs-show.c, output_short
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.senders import OWN_WORD
from gpuguard.kernel_log.stamps import ISO, parse_iso, split_boot_stamp
from gpuguard.ports import Record

_PREFIX = re.compile(
    rf"(?:(?:[^\W\d_]{{2,4}}\.? )?(?P<iso>{ISO})|(?P<unix>\d{{9,11}}\.\d{{6}})|"
    r"\[ *(?P<mono>\d{1,12}\.\d{6})(?: <[ +\d.]{0,20}>)?\])"
    r" (?P<host>[\w.-]+) (?P<tag>[^\s:\[\]]+)(?P<pid>\[\d+\])?: ?"
)


class JournalShort:
    """Reads the journal's one-line forms; a tag other than the kernel's is not trusted."""

    name: ClassVar[str] = "journal_short"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        tag, mono = match["tag"], match["mono"]
        if mono and tag != "kernel":
            return None  # as likely a dmesg line such as `[1.5] name of: something`; that form reads it as text
        iso = match["iso"]
        if iso and "," in iso:
            return None  # dmesg's
        boot_seconds, text = split_boot_stamp(line[match.end() :])
        if own := tag in OWN_WORD:
            text = f"{tag}: {text}"
        unix = match["unix"]
        return Record(
            name=self.name,
            text=text,
            trusted=own or (tag == "kernel" and match["pid"] is None),
            utc=parse_iso(iso) if iso else (float(unix) if unix else None),
            boot_seconds=float(mono) if mono else boot_seconds,
        )
