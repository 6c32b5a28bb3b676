"""What dmesg prints by default, and with -r, -x, -d: `[<4>|kern  :warn  : ][  12.345678] text`.

Shape   the bracket may also be `[...]` where a person cut it out; a `kernel: ` behind it comes from copies
Source  util-linux, sys-utils/dmesg.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.senders import split_level
from gpuguard.kernel_log.stamps import split_boot_stamp, strip_caller
from gpuguard.ports import Record

_NO_TIME = re.compile(r"\[(?:\.\.\.|…|<[ +\d.]{0,20}>| *\+\d+\.\d+|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] ", re.ASCII)


class Dmesg:
    """Reads lines that begin with the kernel's own clock."""

    name: ClassVar[str] = "dmesg"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        trusted, raw, rest = split_level(line)
        boot_seconds, text = split_boot_stamp(rest)
        if boot_seconds is None:
            if no_time := _NO_TIME.match(rest):
                text = strip_caller(rest[no_time.end() :])
            elif not raw:
                return None
        return Record(name=self.name, text=text.removeprefix("kernel: "), trusted=trusted, boot_seconds=boot_seconds)
