"""The kernel's out-of-memory killer: who asked, under which limit, who was killed, when its memory was back.

Shape   a task's name can hold any text; the pid beside it is the kernel's
Source  kernel 3.10 to 6.12, mm/oom_kill.c and mm/memcontrol.c
"""

import re
from typing import ClassVar

from gpuguard.model.events import DetailValue, Parsed

_INVOKED = re.compile(r"(.{1,16}?) invoked oom-killer: ", re.DOTALL)
_CONSTRAINT = re.compile(r"oom-kill:constraint=(\w+)(?:.*,task=(.+),pid=(\d+)(?:,uid=\d+)?)?", re.DOTALL | re.ASCII)
_KILLED = re.compile(
    r"(?:(Memory cgroup )?([Oo]ut of memory)(?: \([^)]*\))?: )?Kill(?:ed)? process (\d+)(?:, UID \d+,)?,? "
    r"\((.+)\)(?:,? (?:score|total-vm)\b|,? UID\b|\.?$)",
    re.DOTALL | re.ASCII,
)
_SIMPLE = re.compile(r"(Memory cgroup )?([Oo]ut of memory)(?: \([^)]*\))?: Kill(?:ed)? process (\d+)", re.ASCII)
_REAPED = re.compile(r"oom_reaper: reaped process (\d+) \((.+)\), now anon-rss", re.DOTALL | re.ASCII)
_SCOPES = {"CONSTRAINT_MEMCG": "memcg", "CONSTRAINT_NONE": "global"}


class Oom:
    """Understands four lines; `sub` says which. The process is the one that was killed."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b" invoked oom-killer: ",
        b"oom-kill:constraint=",
        b"ut of memory",
        b"Killed process ",
        b"oom_reaper: reaped",
    )

    def parse(self, text: str) -> Parsed | None:
        if match := _INVOKED.match(text):
            return Parsed(kind="oom", detail={"sub": "invoked", "invoker": match[1]})
        if match := _CONSTRAINT.match(text):
            constraint, task, pid = match.groups()
            detail: dict[str, DetailValue] = {"sub": "constraint", "constraint": constraint}
            if constraint in _SCOPES:
                detail["scope"] = _SCOPES[constraint]
            return Parsed(kind="oom", pid=int(pid) if pid else None, process=task, detail=detail)
        if match := _KILLED.match(text) or _SIMPLE.match(text):
            detail = {"sub": "killed"}
            if match[2]:  # before 5.0 the kill had a line of its own, without the scope
                detail["scope"] = "memcg" if match[1] else "global"
            name = match[4] if match.re is _KILLED else None
            return Parsed(kind="oom", pid=int(match[3]), process=name, detail=detail)
        if match := _REAPED.match(text):
            return Parsed(kind="oom", pid=int(match[1]), process=match[2], detail={"sub": "reaped"})
        return None
