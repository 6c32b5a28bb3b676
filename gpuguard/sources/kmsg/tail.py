"""What to make of the ring's records: which are new, what is missing between them, which pieces are one line."""

from dataclasses import dataclass

from msgspec.structs import replace

from gpuguard.errors import ReadFailed
from gpuguard.kernel_log.assemble import Assembler, Report
from gpuguard.kernel_log.forms.kmsg import unescape
from gpuguard.kernel_log.reader import has_marker, parse_text
from gpuguard.model.events import AnyEvent, Cursor, LinesLost, LogLine, Parsed
from gpuguard.model.ids import BootId, EventId
from gpuguard.model.instants import Instant
from gpuguard.ports import Clock, Record

NAME = "kmsg"
PIECES_MAX = 16  # of one split line; the driver prints a line at once
KNOWN_TEXTS = 512  # parsed texts remembered, so that a flood of a few texts costs no parsing
GAP = "overwritten in the kernel's ring before they were read"


@dataclass(slots=True)
class Tally:
    """What a reader went through, for `status` and the support bundle. `newest` is the number of the last record."""

    records: int = 0
    malformed: int = 0
    repeated_sequence: int = 0
    overruns: int = 0
    too_large: int = 0
    distrusted: int = 0
    lost: int = 0
    newest: int | None = None


_Piece = tuple[int, int, bytes]  # number, microseconds, text as printed


class Tail:
    """Records in, events out: knows what was read, what was lost, and which pieces make one line.

    Split lines: up to Linux 4.8 `c` marks the first piece and `+` the others; since then `c` marks a piece that could
    not be appended to the record before it. Either way the pieces are consecutive, and the text that the grammars
    know may begin at any of them, because drivers also print whole lines with the continue flag.
    """

    def __init__(
        self,
        boot: BootId,
        cursor: Cursor | None,
        clock: Clock,
        *,
        trust_user_records: bool = False,
        newest_micros: int | None = None,
    ) -> None:
        """Continues behind `cursor`. What is fed until `caught_up` is backlog.

        Backlog stamps are computed from boot time; a recorded machine booted elsewhere, so with `newest_micros` its
        newest record is taken for written just now.

        Raises  ReadFailed for a cursor of ours that is no number
        """
        self.tally = Tally()
        self.events: list[AnyEvent] = []
        self.last: int | None = None
        self.backlog = True
        self._boot = boot
        self._clock = clock
        self._trust_user = trust_user_records
        self._opened = clock.now()
        self._offset = 0.0 if newest_micros is None else self._opened.mono - newest_micros / 1_000_000
        self._known: dict[str, Parsed | None] = {}
        self._assembler = Assembler(self._parse)
        self._held_from: int | None = None  # number of the first line that the assembler holds
        self._held_is_head = False
        self._pieces: list[_Piece] = []
        self._split = False
        self._first_reported = False
        self._accepted = False
        self._newest_skipped = -1
        self._first_gap = "overwritten in the kernel's ring while gpuguard was not reading"
        if cursor is not None and cursor.boot == boot:
            try:
                self.last = int(cursor.position)
            except ValueError as error:
                raise ReadFailed(f"the cursor {cursor.position!r} of {NAME} is no sequence number") from error
        elif cursor is not None:
            self.last = -1
            self._first_gap = "overwritten in the kernel's ring between boot and the start of gpuguard"

    def feed(self, data: bytes) -> None:
        """One record is accounted for, and its report, if it is one, stands in `events`.

        Shape  `priority,sequence,microseconds,flags[,key=value...];text`, then dictionary lines that begin with a blank
        """
        self.tally.records += 1
        head, separator, body = data.partition(b";")
        fields = head.split(b",", 4)
        try:
            priority, sequence, micros, flags = int(fields[0]), int(fields[1]), int(fields[2]), fields[3]
        except (ValueError, IndexError):
            self.tally.malformed += 1
            return
        if not separator or priority < 0 or sequence < 0 or micros < 0:
            self.tally.malformed += 1
            return
        if not self._follows(sequence, micros):
            return
        if priority >> 3 and not self._trust_user:
            self.tally.distrusted += 1
            self._join_pieces()
            self._pieces, self._first_reported = [], False
        elif flags == b"-":
            self._join_pieces()
            line = body.partition(b"\n")[0]
            wanted = self._held_from is not None or has_marker(line)
            self._first_reported = wanted and self._line(sequence, micros, line)
            self._pieces = [(sequence, micros, line)]
        else:
            self._pieces.append((sequence, micros, body.partition(b"\n")[0]))
            self._split = True
            if len(self._pieces) >= PIECES_MAX:
                self._join_pieces()

    @property
    def unfinished(self) -> bool:
        """Whether what was read last is known to be the beginning of more."""
        return self._split or (self._held_is_head and self._held_from is not None)

    def flush(self) -> None:
        """Nothing more will come of what is unfinished: all reports that there are stand in `events`."""
        self._join_pieces()
        self._held_from = None
        self._emit(self._assembler.flush())

    def position(self) -> int | None:
        """The number up to which every record is accounted for in `events` or in batches taken before."""
        position = self.last
        if self._split and position is not None:
            position = min(position, self._pieces[1 if self._first_reported else 0][0] - 1)
        if self._held_from is not None and position is not None:
            position = min(position, self._held_from - 1)
        return position

    def caught_up(self) -> None:
        """All that was there at the start is read. A cursor that lies beyond it is of another ring and is forgotten."""
        self.backlog = False
        if not self._accepted and self._newest_skipped >= 0:
            self.last = self._newest_skipped

    def take(self) -> tuple[AnyEvent, ...]:
        """The events so far, in order; the next ones begin anew."""
        events, self.events = tuple(self.events), []
        return events

    def _follows(self, sequence: int, micros: int) -> bool:
        last = self.last
        if last is not None and sequence != last + 1:
            if sequence <= last:
                self.tally.repeated_sequence += 1
                self._newest_skipped = max(self._newest_skipped, sequence)
                return False
            self.flush()
            self._pieces, self._first_reported = [], False
            missing = sequence - last - 1
            self.tally.lost += missing
            self.events.append(
                LinesLost(
                    id=EventId(f"{NAME}:{self._boot[:8]}:{last + 1}-{sequence - 1}"),
                    at=self._stamp(micros / 1_000_000),
                    source=NAME,
                    count=missing,
                    reason=GAP if self._accepted else self._first_gap,
                )
            )
        self._accepted = True
        self.last = self.tally.newest = sequence
        return True

    def _join_pieces(self) -> None:
        if not self._split:
            return
        pieces, self._pieces, self._split = self._pieces, [], False
        for start in range(self._first_reported, len(pieces)):
            sequence, micros, _ = pieces[start]
            line = b"".join(text for _, _, text in pieces[start:])
            if has_marker(line) and self._line(sequence, micros, line):
                break
        self._first_reported = False

    def _line(self, sequence: int, micros: int, line: bytes) -> bool:
        """Whether the line is a report; it stands in `events` now or with the line that completes it."""
        text = unescape(line.decode("utf-8", "backslashreplace"))
        record = Record(name=NAME, text=text, boot_seconds=micros / 1_000_000, sequence=sequence)
        done = self._assembler.add(record, text, sequence)
        means = self._parse(text) is not None
        if not self._assembler.waiting:
            self._held_from = None
        elif done or self._held_from is None:
            self._held_from = sequence
            self._held_is_head = not means
        elif means:
            self._held_is_head = False  # joined, or the head was given up: too low a number only reads twice
        self._emit(done)
        return means

    def _parse(self, text: str) -> Parsed | None:
        try:
            return self._known[text]
        except KeyError:
            if len(self._known) >= KNOWN_TEXTS:
                self._known.clear()
            parsed = self._known[text] = parse_text(text)
            return parsed

    def _emit(self, reports: list[Report]) -> None:
        for report in reports:
            parsed, raw, record = report.parsed, "\n".join(report.raw), report.record
            assert parsed is not None, "the assembler gives only reports that mean something"
            previous = self.events[-1] if self.events else None
            if isinstance(previous, LogLine) and previous.raw == raw and previous.backlog == self.backlog:
                self.events[-1] = replace(previous, repeated=previous.repeated + 1)
                continue
            self.events.append(
                LogLine(
                    id=EventId(f"{NAME}:{self._boot[:8]}:{report.line}"),
                    at=self._stamp(record.boot_seconds or 0.0),
                    source=NAME,
                    parsed=parsed,
                    raw=raw,
                    backlog=self.backlog,
                )
            )

    def _stamp(self, seconds: float) -> Instant:
        """When a record was written. printk's clock drifts from every other by hours in months, so live ones are
        stamped as they are read, and only what was there before is computed.
        """
        if not self.backlog:
            return replace(self._clock.now(), boot=self._boot)
        mono = min(seconds + self._offset, self._opened.mono)
        utc = None if self._opened.utc is None else self._opened.utc - (self._opened.mono - mono)
        return Instant(boot=self._boot, mono=mono, utc=utc, estimated=True)
