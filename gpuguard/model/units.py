"""Base units as types. Seconds, never milliseconds; bytes, never mebibytes."""

from typing import NewType

Seconds = NewType("Seconds", float)
Celsius = NewType("Celsius", float)
Bytes = NewType("Bytes", int)
