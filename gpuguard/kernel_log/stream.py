"""Kernel logs as streams of bytes: chunks of any size in, facts out, memory flat.

Only lines with a marker are decoded, and the few behind them that may belong to the same report. Where the chunks
end makes no difference to what is found. Of a line longer than `LONGEST_LINE` the rest is passed over.
"""

from gpuguard.kernel_log.matcher import Matcher, build_finder
from gpuguard.kernel_log.reader import LONGEST_LINE, Found, LogReader
from gpuguard.kernel_log.shelves import all_markers

CHUNK = 1 << 20  # bytes; fits into the second-level cache and keeps the cost of a chunk's own Python below 1 %

_BLANKS = b" \t"
_NOT_LEADING = b" \t\r\n"

_FINDER = build_finder(all_markers())


class LogStream:
    """Reads one log, chunk by chunk; lines end with a newline and are counted from 1."""

    def __init__(
        self, *, trust_user: bool = False, last_written: float | None = None, matcher: Matcher | None = None
    ) -> None:
        self._reader = LogReader(trust_user=trust_user, last_written=last_written)
        self._matcher = matcher or _FINDER
        self._rest = b""
        self._number = 1  # of the line that `_rest` begins
        self._cut = False  # the line in `_rest` is longer than it may be, and what comes of it is dropped

    @property
    def lines(self) -> int:
        """How many whole lines have been read."""
        return self._number - 1

    def feed(self, chunk: bytes) -> list[Found]:
        """Takes the next bytes; gives the reports that are complete now."""
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep(chunk)
            return []
        if self._cut:
            # What stands in `_rest` is all that is kept of the long line.
            newline = chunk.find(b"\n")
            found = self._read(self._rest + b"\n") + self._read(chunk[newline + 1 : end + 1])
        else:
            found = self._read(self._rest + chunk[: end + 1] if self._rest else chunk[: end + 1])
        self._rest, self._cut = b"", False
        self._keep(chunk[end + 1 :])
        return found

    def finish(self) -> list[Found]:
        """Takes what stands behind the last newline and ends the log."""
        found = self._read(self._rest + b"\n") if self._rest else []
        self._rest, self._cut = b"", False
        return found + self._reader.flush()

    def flush(self) -> list[Found]:
        """Gives what waited for a further line, when a growing log stands still; half a line stays held."""
        return self._reader.flush()

    def _keep(self, part: bytes) -> None:
        if self._cut:
            return
        self._rest += part
        if len(self._rest) > LONGEST_LINE:
            self._rest, self._cut = self._rest[:LONGEST_LINE], True

    def _read(self, block: bytes) -> list[Found]:
        """Reads whole lines."""
        found: list[Found] = []
        at = counted = 0  # start of the first unread line; how far newlines are counted
        reader = self._reader
        at = self._read_on(block, at, found)
        counted = at
        for hit in self._matcher(block):
            if hit < at:
                continue
            start = block.rfind(b"\n", at, hit) + 1 or at
            if block[start] in _BLANKS:
                self._find_leader(block, at, start)
            self._number += block.count(b"\n", counted, start)
            stop = block.find(b"\n", hit)
            found += reader.feed(_decode(block[start : min(stop, start + LONGEST_LINE)]), self._number)
            self._number += 1
            at = counted = self._read_on(block, stop + 1, found)
        self._find_leader(block, at, len(block))
        self._number += block.count(b"\n", counted)
        return found

    def _find_leader(self, block: bytes, low: int, high: int) -> None:
        """Tells the reader the last line of a stretch that is neither indented nor empty; it may be none."""
        while high > low:
            start = block.rfind(b"\n", low, high - 1) + 1 or low
            if block[start] not in _NOT_LEADING:
                self._reader.lead(_decode(block[start : min(high - 1, start + LONGEST_LINE)]))
                return
            high = start

    def _read_on(self, block: bytes, at: int, found: list[Found]) -> int:
        """Reads lines for as long as one could still belong to a report."""
        while self._reader.waiting and at < len(block):
            stop = block.find(b"\n", at)
            found += self._reader.feed(_decode(block[at : min(stop, at + LONGEST_LINE)]), self._number)
            self._number += 1
            at = stop + 1
        return at


def _decode(line: bytes) -> str:
    """The line as text; bytes that are no UTF-8 stay readable as `\\xNN`, so that the text can be written anywhere."""
    return line.decode("utf-8", "backslashreplace")
