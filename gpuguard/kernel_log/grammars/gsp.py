"""The GPU's system processor, told without an Xid: heartbeat lost, crash report, the calls it left unanswered.

Source  open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c and kernel_crashcat_engine.c
"""

import re
from typing import ClassVar

from gpuguard.model.events import DetailValue, Parsed

_LINE = re.compile(
    r"NVRM: +(?:GPU(\d+) )?(?:\w+: )?(?:"
    r"(?P<heartbeat>(?:GPU\d+ )?(?:GSP RM )?[Hh]eartbeat timed out)|"
    r"(?P<crashcat>\*+ GSP-CrashCat Report|Reported by libos)|"
    r"(?P<rpc_buffer>GSP RPC buffer contains function (?P<function>\d+))|"
    r"(?P<rpc_history>(?:GSP )?RPC (?:event )?history \())",
    re.ASCII,
)


class Gsp:
    """Understands one line a fact; `sub` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b"eartbeat timed out",
        b"GSP-CrashCat Report",
        b"Reported by libos",
        b"GSP RPC buffer",
        b"RPC history (",
        b"RPC event history (",
    )

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        sub = next(name for name in ("heartbeat", "crashcat", "rpc_buffer", "rpc_history") if match[name])
        detail: dict[str, DetailValue] = {"sub": sub}
        if match[1]:
            detail["gsp_gpu"] = int(match[1])
        if match["function"]:
            detail["function"] = int(match["function"])
        return Parsed(kind="gsp", detail=detail)
