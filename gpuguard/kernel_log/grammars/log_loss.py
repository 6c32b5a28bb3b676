"""The log says itself that it is not complete: counts taken from it are too low.

Source  kernel/printk/printk.c, lib/ratelimit.c; systemd journald-kmsg.c; the driver's kernel_gsp.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import Parsed

_SUPPRESSED = re.compile(r"([\w.:/ -]{1,60}?): (\d+) callbacks suppressed", re.ASCII)
_DROPPED = re.compile(r"(?:printk: )?\*\* (\d+) printk messages? dropped", re.ASCII)
_MISSED = re.compile(r"systemd-journald(?:\[\d+\])?: Missed (\d+) kernel messages", re.ASCII)
_OVERRUN = re.compile(r"systemd-journald(?:\[\d+\])?: /dev/kmsg buffer overrun", re.ASCII)
_GSP = re.compile(
    rf"NVRM: Rate limiting GSP RPC error prints(?: for GPU at (?:PCI:)?({ANY}))?(?: \(printing 1 of every (\d+)\))?"
)


class LogLoss:
    """Understands what was suppressed, dropped, missed, overrun or rate-limited; `sub` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b" callbacks suppressed",
        b" printk message",
        b" kernel messages",
        b"/dev/kmsg buffer overrun",
        b"Rate limiting GSP RPC",
    )

    def parse(self, text: str) -> Parsed | None:
        if match := _SUPPRESSED.match(text):
            detail = {"sub": "suppressed", "count": int(match[2]), "source": match[1]}
            return Parsed(kind="log_loss", detail={**detail})
        if match := _DROPPED.match(text):
            return Parsed(kind="log_loss", detail={"sub": "dropped", "count": int(match[1])})
        if match := _MISSED.match(text):
            return Parsed(kind="log_loss", detail={"sub": "missed", "count": int(match[1])})
        if _OVERRUN.match(text):
            return Parsed(kind="log_loss", detail={"sub": "overrun"})
        if match := _GSP.match(text):
            every = {"every": int(match[2])} if match[2] else {}
            pci = read_address(match[1]) if match[1] else None
            return Parsed(kind="log_loss", pci=pci, detail={"sub": "gsp_rate_limit", **every})
        return None
