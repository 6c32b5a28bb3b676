"""Lines of a kernel log in, facts out. `scan`, `replay` and every source that reads logs come through here."""

import re

import msgspec

from gpuguard.kernel_log.assemble import Assembler, Report, raw_text
from gpuguard.kernel_log.forms.kmsg import parse_record
from gpuguard.kernel_log.forms.syslog import newest_moment
from gpuguard.kernel_log.matcher import build_test
from gpuguard.kernel_log.shelves import FORMS, GRAMMARS, all_markers
from gpuguard.kernel_log.stamps import strip_colours
from gpuguard.model.events import DetailValue, Parsed
from gpuguard.ports import Record

__all__ = [
    "Found",
    "LogReader",
    "has_marker",
    "is_indented",
    "marker_pattern",
    "parse_record",
    "parse_text",
    "read_line",
]

LONGEST_MESSAGE = 4_096  # characters; the kernel's limit is 1,024, a joined report is four of those
LONGEST_LINE = 65_536  # the kernel's limit is 1,024 bytes, journald's JSON adds a few thousand; the rest is cut off

_MARKERS = all_markers()
_test = build_test(_MARKERS)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One report: what it means, its line or lines without the log's own prefix, how its log printed the first, and
    where it begins (from 1).
    """

    parsed: Parsed
    raw: str
    record: Record
    line: int


def marker_pattern() -> bytes:
    """All markers as one extended regular expression, for `grep -E` and for matchers that take one."""
    return b"|".join(re.sub(rb"([][()|*+?.^${}\\])", rb"\\\1", marker) for marker in _MARKERS)


def has_marker(data: bytes) -> bool:
    """Whether a line or record can mean anything at all; costs some 3 microseconds."""
    return _test(data)


def parse_text(text: str) -> Parsed | None:
    """What one kernel message means, without any log's prefix; None for nothing that gpuguard reports."""
    text = text[:LONGEST_MESSAGE]  # a line of a hostile file must not cost what its length squared does
    for grammar in GRAMMARS:
        if (parsed := grammar.parse(text)) is not None:
            return parsed
    return None


def read_line(line: str) -> Record:
    """The record in one printed line; the last form takes any."""
    line = strip_colours(line.lstrip("\0\ufeff")).rstrip()
    for form in FORMS:
        if (record := form.read(line)) is not None:
            return record
    return Record(name="plain", text=line, continued=True)


def is_indented(line: str) -> bool:
    """Whether a line begins with a blank."""
    return line[:1] in (" ", "\t")


class LogReader:
    """Reads one log, in order.

    A record that the kernel did not write is passed over as if it were not there, unless `trust_user` is set for
    drills and tests; so are the indented lines below it, in which journalctl prints the rest of a program's message.
    A report comes out with the line after it, or with `flush`. `last_written` (UTC seconds) gives a year to the times
    of syslog that have none: the newest that is not later than a day after it.
    """

    def __init__(self, *, trust_user: bool = False, last_written: float | None = None) -> None:
        self._trust_user = trust_user
        self._last_written = last_written
        self._assembler = Assembler(parse_text)
        self._leader = ""

    @property
    def waiting(self) -> bool:
        """Whether the next line must be fed even if it has no marker."""
        return self._assembler.waiting

    def feed(self, line: str, number: int) -> list[Found]:
        """Takes one printed line and its number from 1; gives the reports that are complete now."""
        line = line[:LONGEST_LINE].rstrip("\r\n")
        record = read_line(line)
        if is_indented(line):
            if record.continued and self._leader and not self._takes_indented(read_line(self._leader)):
                return []
        elif line:
            self.lead(line)
        if self._last_written is not None and record.name == "syslog":
            record = msgspec.structs.replace(record, utc=newest_moment(line, self._last_written))
        if not (record.trusted or self._trust_user):
            return []
        return [_found(report) for report in self._assembler.add(record, record.text, number)]

    def lead(self, line: str) -> None:
        """Tells which line an indented one that is fed next would belong to; for callers that skip lines."""
        self._leader = line

    def _takes_indented(self, leader: Record) -> bool:
        """Below a record of kmsg stands its dictionary, below a program's message the rest of it."""
        return leader.name != "kmsg" and (leader.trusted or self._trust_user)

    def flush(self) -> list[Found]:
        """Gives what waited for a further line: at the end of a log, or when no more lines are there."""
        return [_found(report) for report in self._assembler.flush()]


def _found(report: Report) -> Found:
    parsed = report.parsed
    assert parsed is not None, "the assembler gives only reports that mean something"
    if report.record.repeated > 1:
        detail: dict[str, DetailValue] = {**parsed.detail, "repeated": report.record.repeated}
        parsed = msgspec.structs.replace(parsed, detail=detail)
    return Found(parsed=parsed, raw=raw_text(report.raw), record=report.record, line=report.line)
