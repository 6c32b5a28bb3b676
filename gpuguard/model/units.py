"""Base units as types. Seconds, never milliseconds; bytes, never mebibytes."""

from typing import Annotated, NewType

import msgspec

Seconds = NewType("Seconds", float)
Celsius = NewType("Celsius", float)
Bytes = NewType("Bytes", int)
# A number that comes from a file of somebody else: JSON alone knows no bound, and what is longer cannot be shown.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# What must not be shown: no table of settings, complaint or log has it.
Secret = NewType("Secret", str)
