"""Raw records of /dev/kmsg: `priority,sequence,microseconds,flags[,key=value...];text`.

Shape   one read(2) gives one record; the text may be followed by dictionary lines that begin with a blank; bytes
        outside printable ASCII and the backslash are written `\\xNN`
Source  Documentation/ABI/testing/dev-kmsg, kernel/printk/printk.c
"""

import re
from typing import ClassVar

from gpuguard.errors import NotUnderstood
from gpuguard.ports import Record

_PREFIX = re.compile(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),([-c+])((?:,[^;,]{0,64}){0,8});", re.ASCII)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
FACILITY_KERN = 0


def unescape(text: str) -> str:
    """The message as printk was given it; bytes that are no UTF-8 stay written as `\\xNN`."""
    if "\\" not in text:
        return text
    raw = text.encode("utf-8", "surrogateescape")
    return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), raw).decode("utf-8", "backslashreplace")


def parse_record(data: bytes) -> Record:
    """One record, as read(2) of /dev/kmsg returns it.

    Raises  NotUnderstood on anything that is not a record, with the text kept
    """
    text = data.decode("utf-8", "backslashreplace")
    record = Kmsg().read(text)
    if record is None:
        raise NotUnderstood(f"not a record of /dev/kmsg: {text[:60]!r}", text)
    return record


class Kmsg:
    """Reads a record, with or without its dictionary lines."""

    name: ClassVar[str] = "kmsg"
    markers: ClassVar[tuple[bytes, ...]] = (b",c;", b",+;", b",c,caller=", b",+,caller=")

    def read(self, line: str) -> Record | None:
        match = _PREFIX.match(line)
        if match is None:
            return None
        priority, sequence, stamp, flag, _ = match.groups()
        text = line[match.end() :].partition("\n")[0]
        return Record(
            name=self.name,
            text=unescape(text),
            trusted=int(priority) >> 3 == FACILITY_KERN,
            boot_seconds=int(stamp) / 1_000_000,
            sequence=int(sequence),
            fragment=flag != "-",
        )
