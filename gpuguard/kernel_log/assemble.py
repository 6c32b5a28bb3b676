"""Joins the lines that are one report.

What belongs together, and how it is known:
  fragments    kmsg flags `c` and `+`: put together without a break when the later piece means nothing by itself
  wrapped      a line without a prefix of its own goes to the report before it when both together tell more than
               the first alone and take nothing back
  one message  the driver's messages of several lines (GPU lost at probe time, API mismatch), printed with a prefix
               on each line; other lines may stand between, none that means something
  follow-ups   the second line of a failed initialisation and the serial number behind a UUID stay reports of their
               own, told which GPU they are about
Nothing is held back for longer than `PATIENCE` lines; `flush` gives up at once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gpuguard.model.events import DetailValue, Parsed
from gpuguard.ports import Record

PATIENCE = 8  # lines that may stand between the lines of one message; kernel lines of other CPUs, other programs
LONGEST_REPORT = 16  # pieces; the driver's longest message has four lines, a terminal wraps an Xid into five
LONGEST_TEXT = 4_096  # characters a report can grow to; the kernel's own limit for a record is 1,024

_HEADS = ("NVRM: The NVIDIA GPU ", "NVRM: API mismatch")
_MIDDLES = ("NVRM: (PCI ID: ", "(PCI ID: ", "NVRM: installed in this system")


class Report(NamedTuple):
    """One or more lines that are one report; `line` is the number of the first."""

    record: Record
    parsed: Parsed | None
    raw: tuple[str, ...]
    line: int


def is_fuller(before: Parsed | None, after: Parsed | None) -> bool:
    """Whether `after` tells all that `before` did, and more."""
    if after is None:
        return False
    if before is None:
        return True
    same = (before.kind, before.xid, before.pci, before.pid, before.process)
    if same != (after.kind, after.xid, after.pci, after.pid, after.process):
        return False
    if before.fatal is not None and before.fatal != after.fatal:
        return False
    if not all(name in after.detail and _kept(value, after.detail[name]) for name, value in before.detail.items()):
        return False
    return after.detail != before.detail or after.fatal != before.fatal


def _kept(before: DetailValue, after: DetailValue) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return after[: len(before)] == before
    if isinstance(before, dict) and isinstance(after, dict):
        return before.items() <= after.items()
    return before == after


class Assembler:
    """Holds at most one unfinished report.

    `parse` is the meaning of one message. A report comes out when the next line shows that it is complete.
    """

    def __init__(self, parse: Callable[[str], Parsed | None]) -> None:
        self._parse = parse
        self._open: Report | None = None
        self._patience = 0
        self._last: Parsed | None = None

    @property
    def waiting(self) -> bool:
        """Whether the next line could still belong to a report."""
        return self._open is not None

    def add(self, record: Record, raw: str, line: int) -> list[Report]:
        """Takes one line; gives the reports that it shows to be complete."""
        parsed = self._parse(record.text)
        held = self._open
        if held is not None:
            joined = self._join(held, record, parsed, raw)
            if joined is not None:
                self._open = joined
                return []
            if parsed is None and held.parsed is None and not held.record.fragment and not record.fragment:
                self._patience -= 1
                if self._patience > 0:
                    return []
        done = self.flush()
        if parsed is not None or record.fragment or record.text.startswith(_HEADS):
            self._open = Report(record, parsed, (raw,), line)
            self._patience = PATIENCE
        return done

    def flush(self) -> list[Report]:
        """Gives the unfinished report as it stands, if it means anything."""
        held, self._open = self._open, None
        if held is None or held.parsed is None:
            return []
        parsed = self._told_by_the_line_before(held.parsed)
        self._last = parsed
        return [held._replace(parsed=parsed)]

    def _join(self, held: Report, record: Record, parsed: Parsed | None, raw: str) -> Report | None:
        """The held report with this line in it, or None when they do not belong together."""
        if len(held.raw) >= LONGEST_REPORT or len(held.record.text) + len(record.text) > LONGEST_TEXT:
            return None
        if held.record.text.startswith(_HEADS):
            # The last line alone means a lost GPU of unknown address: only the head knows which.
            if parsed is not None and parsed.pci is not None:
                return None
            whole = f"{held.record.text} {record.text.strip()}"
            after = self._parse(whole)
            middle = held.parsed is None and record.text.lstrip().startswith(_MIDDLES)
            joins = middle or is_fuller(held.parsed, after)
        elif record.fragment and held.record.name == record.name and parsed is None:
            # A piece that adds nothing may still stand before one that does; only meaning must not be lost.
            whole = held.record.text + record.text
            after = self._parse(whole)
            joins = after is not None or held.parsed is None
        elif record.continued and parsed is None:
            whole = f"{held.record.text} {record.text}"
            after = self._parse(whole)
            joins = is_fuller(held.parsed, after)
        else:
            return None
        if not joins:
            return None
        return Report(msgspec.structs.replace(held.record, text=whole), after, (*held.raw, raw), held.line)

    def _told_by_the_line_before(self, parsed: Parsed) -> Parsed:
        last = self._last
        if last is None or last.kind != parsed.kind:
            return parsed
        if parsed.kind == "gpu_identity" and parsed.pci is None and last.detail.get("sub") == "uuid":
            return msgspec.structs.replace(parsed, pci=last.pci)
        second = parsed.kind == "rm_init_failed" and parsed.detail.get("form") == "rm_init_adapter"
        if second and last.detail.get("form") == "RmInitAdapter" and parsed.pci in (None, last.pci):
            detail = {**parsed.detail, "part": "follow_up"}
            return msgspec.structs.replace(parsed, pci=parsed.pci or last.pci, detail=detail)
        return parsed


def raw_text(lines: Sequence[str]) -> str:
    """All lines of a report."""
    return "\n".join(lines)
