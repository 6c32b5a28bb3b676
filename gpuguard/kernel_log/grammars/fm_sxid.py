"""SXids as the fabric manager writes them in its own log: a program's word, not the kernel's.

Shape   the forms keep the program's name at the front of the text, so no kernel line can be taken for one of these
Source  NVIDIA Fabric Manager user guide, GPU and NVSwitch errors
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import ANY, read_address
from gpuguard.model.events import DetailValue, Parsed

_LINE = re.compile(
    rf"nv-fabricmanager: (?:\[[^\]]*\] )*detected NVSwitch (fatal|non-fatal) error (\d{{1,6}})"
    rf"(?:.*?pci bus id ({ANY}))?(?: physical id (\d+))?(?: port (\d+))?",
    re.ASCII,
)


class FmSxid:
    """Understands the line that names code and port."""

    markers: ClassVar[tuple[bytes, ...]] = (b"detected NVSwitch ",)

    def parse(self, text: str) -> Parsed | None:
        match = _LINE.match(text)
        if match is None:
            return None
        word, digits, address, physical, port = match.groups()
        detail: dict[str, DetailValue] = {"sxid": int(digits)}
        for name, value in (("port", port), ("switch_physical_id", physical)):
            if value is not None:
                detail[name] = int(value)
        return Parsed(
            kind="fm_sxid",
            xid=int(digits),
            pci=read_address(address) if address else None,
            fatal=word == "fatal",
            detail=detail,
        )
