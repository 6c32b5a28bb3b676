"""A task that has waited for too long without running.

Shape   `INFO: task NAME:PID blocked for more than N seconds.`; newer kernels add who holds the lock. The name can hold
        colons and the line's own words: the last `:digits` before the words is the pid
Source  kernel 3.10 to 6.16, kernel/hung_task.c
"""

import re
from typing import ClassVar

from gpuguard.model.events import Parsed

_BLOCKED = re.compile(
    r"INFO: task (.{1,64}):(\d+) blocked (?:in I/O wait )?for more than (\d+) seconds", re.DOTALL | re.ASCII
)
_OWNER = re.compile(
    r"INFO: task (.{1,64}):(\d+)(?: <\w+>)? (?:is )?blocked on an? ([\w-]+)"
    r"(?:,? (?:likely |last )?(?:owned|held) by task (.{1,64}):(\d+)|, but|$)",
    re.DOTALL | re.ASCII,
)


class HungTask:
    """Understands the report and the line that names the lock's owner."""

    markers: ClassVar[tuple[bytes, ...]] = (b" blocked for more than ", b" blocked in I/O wait ", b" blocked on a")

    def parse(self, text: str) -> Parsed | None:
        if not text.startswith("INFO: task "):
            return None
        if match := _BLOCKED.match(text):
            return Parsed(kind="hung_task", process=match[1], pid=int(match[2]), detail={"seconds": int(match[3])})
        if match := _OWNER.match(text):
            name, pid, lock, owner, owner_pid = match.groups()
            owned = {"owner": owner, "owner_pid": int(owner_pid)} if owner else {}
            return Parsed(kind="hung_task", process=name, pid=int(pid), detail={"blocked_on": lock} | owned)
        return None
