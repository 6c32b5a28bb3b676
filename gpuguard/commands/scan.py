"""Which events are in these kernel logs?

PATH is a file, plain or gzip, in any printed form of a kernel log (/dev/kmsg,
dmesg with and without -T, -x or --time-format iso, journalctl short and JSON,
syslog, no prefix at all), told line by line; `-` reads standard input. Times
without a zone are read as UTC. What a process wrote into it is not reported.

Exit code 0: no events, 1: events, 2: a PATH could not be read.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from typing import TYPE_CHECKING

from gpuguard.errors import ReadFailed
from gpuguard.runtime.printed_log import opened, printable, rfc3339

if TYPE_CHECKING:
    from gpuguard.kernel_log.matcher import Matcher
    from gpuguard.kernel_log.reader import Found
    from gpuguard.model.events import Parsed

EXAMPLE = "gpuguard scan /var/log/kern.log*"

WIDTH = 80
SMALL = 1 << 20  # bytes; below, loading the fast matcher costs more than it saves
PROGRESS_EVERY = 0.5  # seconds


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", nargs="+", metavar="PATH", help="a kernel log, `-` for standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object an event")
    parser.add_argument(
        "--trust-user", action="store_true", help="also report what a process wrote into the log (for drills)"
    )


def run(args: Namespace) -> int:
    """Prints the events in the order of the input."""
    scan = Scan(as_json=args.json, trust_user=args.trust_user, several=len(args.path) > 1)
    for path in args.path:
        scan.read(path)
    scan.end()
    return 2 if scan.unread else int(scan.events > 0)


class Scan:
    """One run over all paths: what was found, and what could not be read."""

    def __init__(self, *, as_json: bool, trust_user: bool, several: bool) -> None:
        self._as_json = as_json
        self._trust_user = trust_user
        self._several = several
        self._fast: Matcher | None = None
        self._headline = ""
        self.events = self.lines = self.files = self.unread = 0

    def read(self, path: str) -> None:
        """Scans one path; what cannot be read is told on standard error and counted."""
        try:
            with opened(path) as file:
                self._read_file(path, file)
        except ReadFailed as error:
            self._tell(path, str(error))

    def end(self) -> None:
        """Prints the closing line, for people only."""
        if not self._as_json:
            count = "no events" if not self.events else f"{self.events} event{'s' if self.events != 1 else ''}"
            files = f"{self.files} file{'s' if self.files != 1 else ''}"
            sys.stdout.write(f"{count} in {self.lines} lines of {files}\n")

    def _tell(self, path: str, why: str) -> None:
        self.unread += 1
        sys.stderr.write(f"gpuguard scan: {path}: {why}\n")

    def _read_file(self, path: str, file: BufferedIOBase) -> None:
        from gpuguard.kernel_log.stream import LogStream

        stream = LogStream(trust_user=self._trust_user, matcher=self._matcher_by_size())
        self.files += 1
        self._headline = path
        try:
            for chunk in _watched(path, _chunks(file)):
                self._print(path, stream.feed(chunk))
        finally:  # a damaged file still tells what stands before the damage
            self._print(path, stream.finish())
            self.lines += stream.lines

    def _matcher_by_size(self) -> "Matcher":
        """A matcher that asks for the fast one as soon as the input proves to be large."""
        from gpuguard.kernel_log.matcher import build_finder, build_matcher
        from gpuguard.kernel_log.shelves import all_markers

        finder, done = build_finder(all_markers()), 0

        def find(block: bytes) -> "Sequence[int]":
            nonlocal done
            done += len(block)
            if done < SMALL:
                return finder(block)
            if self._fast is None:
                self._fast = build_matcher(all_markers())
            return self._fast(block)

        return find

    def _print(self, path: str, found: "list[Found]") -> None:
        if not found:
            return
        self.events += len(found)
        if self._as_json:
            import msgspec

            encode = msgspec.json.encode
            sys.stdout.write("".join(encode(event_row(path, one)).decode() + "\n" for one in found))
            return
        if self._several and self._headline:
            sys.stdout.write(f"{self._headline}\n")
            self._headline = ""
        sys.stdout.write("".join(f"{text_row(one)}\n" for one in found))


def _chunks(file: BufferedIOBase) -> Iterator[bytes]:
    from gpuguard.kernel_log.stream import CHUNK

    while chunk := file.read1(CHUNK):  # a damaged gzip gives nothing at all to `read`
        yield chunk


def _watched(path: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, with the progress shown to a person who watches."""
    if not sys.stderr.isatty():
        yield from chunks
        return
    import time

    shown, done = time.monotonic(), 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        if time.monotonic() - shown >= PROGRESS_EVERY:
            shown = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{path}: {done / 1e6:.0f} MB")
            sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")


def event_row(path: str, found: "Found") -> dict[str, object]:
    """The object of `scan --json`, with the keys of the contract in their order."""
    parsed = found.parsed
    return {
        "file": path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        "line": found.line,
        "kind": parsed.kind,
        "xid": parsed.xid,
        "pci": parsed.pci,
        "pid": parsed.pid,
        "process": parsed.process,
        "fatal": parsed.fatal,
        "at": rfc3339(found.record.utc),
        "boot_seconds": found.record.boot_seconds,
        "detail": parsed.detail,
        "raw": found.raw,
    }


def text_row(found: "Found") -> str:
    """One line for people: number, time, what, which GPU, who, how bad."""
    parsed, record = found.parsed, found.record
    when = rfc3339(record.utc, digits=0) or (f"[{record.boot_seconds:.3f}]" if record.boot_seconds is not None else "")
    what = parsed.kind if parsed.xid is None else f"{parsed.kind} {parsed.xid}"
    row = f"{found.line:>8}  {when:<20}  {what:<14}  {parsed.pci or '':<12}{_facts(parsed)}"
    return printable(row.rstrip())[:WIDTH]


def _facts(parsed: "Parsed") -> str:
    facts = [{True: "fatal", False: "not fatal", None: ""}[parsed.fatal]]
    facts += [f"pid {parsed.pid}" if parsed.pid is not None else "", parsed.process or ""]
    return "  " + " ".join(fact for fact in facts if fact)
