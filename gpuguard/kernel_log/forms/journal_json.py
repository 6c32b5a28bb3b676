"""What `journalctl -o json` prints: one object a line.

Shape   MESSAGE is a text, an array of bytes when it is no printable UTF-8, or null when it was too long; a program
        can send any field but those that begin with an underscore
Source  systemd.journal-fields(7), Journal Export Formats; journald-kmsg.c sets the facility of what a program wrote
"""

from typing import Any, ClassVar

import msgspec

from gpuguard.ports import Record

MICRO = 1_000_000


class JournalJson:
    """Reads journal entries; only those of the kernel itself are trusted."""

    name: ClassVar[str] = "journal_json"
    markers: ClassVar[tuple[bytes, ...]] = (b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : [')

    def read(self, line: str) -> Record | None:
        if not line.startswith("{") or '"MESSAGE"' not in line:
            return None
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None
        if not isinstance(entry, dict) or "MESSAGE" not in entry:
            return None
        text = _message(entry["MESSAGE"])
        if text is None:
            return None
        tag = entry.get("SYSLOG_IDENTIFIER")
        transport = entry.get("_TRANSPORT")
        journald_itself = transport == "driver" and tag == "systemd-journald"
        kernel = (transport == "kernel" or (transport is None and tag == "kernel")) and str(
            entry.get("SYSLOG_FACILITY", "0")
        ) == "0"
        monotonic = entry.get("_SOURCE_MONOTONIC_TIMESTAMP", entry.get("__MONOTONIC_TIMESTAMP"))
        realtime = entry.get("_SOURCE_REALTIME_TIMESTAMP", entry.get("__REALTIME_TIMESTAMP"))
        return Record(
            name=self.name,
            text=f"systemd-journald: {text}" if journald_itself else text,
            trusted=kernel or journald_itself,
            utc=_seconds(realtime),
            boot_seconds=_seconds(monotonic),
        )


def _message(value: Any) -> str | None:  # Any: whatever JSON holds
    match value:
        case str():
            return value
        case None:
            return ""
        case [str() as first, *_]:
            return first
        case [int(), *_] if all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
            return bytes(value).decode("utf-8", "backslashreplace")
    return None


def _seconds(value: Any) -> float | None:  # Any: whatever JSON holds
    text = str(value)
    return int(text) / MICRO if text.isascii() and text.isdigit() and len(text) < 20 else None
