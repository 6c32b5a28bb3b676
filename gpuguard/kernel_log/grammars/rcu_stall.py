"""A CPU or task that held up read-copy-update.

Source  kernel 3.10 to 6.12, kernel/rcu/tree_stall.h
"""

import re
from typing import ClassVar

from gpuguard.model.events import Parsed

_LINE = re.compile(
    r"(?:rcu: )?INFO: (rcu_\w+) (?:(self-)?detected (?:expedited )?stalls? on|detected expedited stalls)", re.ASCII
)


class RcuStall:
    """Understands the first line of a stall's report."""

    markers: ClassVar[tuple[bytes, ...]] = (b"INFO: rcu_",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        return Parsed(kind="rcu_stall", detail={"flavour": match[1], "self_detected": match[2] is not None})
