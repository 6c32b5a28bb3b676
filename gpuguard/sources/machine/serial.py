"""By what a machine is known over the years: its maker's serial number, else the id of its installation."""

import hashlib
import hmac
import re
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.readings import Values
from gpuguard.sweeping.files import read_text

COLUMN = "node_serial"
DMI = "sys/class/dmi/id"
# The whole machine's comes first. Both are for root alone (0400).
SERIALS = ("product_serial", "board_serial")
MACHINE_ID = "etc/machine-id"
# man machine-id: the id itself is confidential; what a keyed hash makes of it may be shown.
_PURPOSE = b"gpuguard node_serial 1"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_SERIAL = re.compile(r"[0-9A-Za-z][0-9A-Za-z ._:/+-]{2,63}", re.ASCII)
# What makers leave there who wrote none.
_NONE = re.compile(
    r"(to be filled.*|default.*|not (specified|applicable|available|provided|settable|present).*|system serial.*|"
    r"base ?board serial.*|none|n/?a|null|unknown|invalid|empty|serial|0?123456789[0-9]{0,3}|(?P<one>.)(?P=one)*)",
    re.IGNORECASE | re.ASCII,
)


def fill(values: Values, root: Path) -> None:
    """The column holds the serial; it is absent where the machine has none, unknown where all there is may not be read.

    Reads   /sys/class/dmi/id/{product_serial,board_serial}, /etc/machine-id
    Shape   the maker's text; `id-` and 16 hexadecimal digits for what is made of the id of the installation
    Source  Linux drivers/firmware/dmi-id.c; man machine-id
    """
    unread = False
    for place in (*(f"{DMI}/{name}" for name in SERIALS), MACHINE_ID):
        try:
            text = read_text(root / place)
        except Absent:
            continue
        except ReadFailed:
            unread = True
            continue
        serial = _of_installation(text) if place == MACHINE_ID else text if is_serial(text) else None
        if serial is not None:
            values[COLUMN] = serial
            return
    if unread:
        values[COLUMN] = None


def is_serial(text: str) -> bool:
    """Whether a maker wrote a serial number, and not that there is none."""
    return _SERIAL.fullmatch(text) is not None and _NONE.fullmatch(text) is None


def _of_installation(text: str) -> str | None:
    """What may be shown of /etc/machine-id; None where it holds none (`uninitialized` before the first boot)."""
    if _ID.fullmatch(text) is None:
        return None
    return f"id-{hmac.new(bytes.fromhex(text), _PURPOSE, hashlib.sha256).hexdigest()[:16]}"
