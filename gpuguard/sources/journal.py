"""journald's copy of the kernel log: the fallback when the ring cannot be read, and a second witness on demand.

Reads     `journalctl -o json _TRANSPORT=kernel`, as a child in a process group of its own that can be killed
Emits     LogLine for the line that was asked for, when the journal has it too; every report while it follows
Cursor    journald's own, with the boot that is running
Source    systemd Documentation: Journal Export Formats, JSON; systemd.journal-fields(7)

While kmsg watches, no child runs: an idle journalctl maps the whole journal. As stand-in it follows from the moment
that kmsg was last heard. Reports that both saw keep different ids; the core joins them by what they say and when.
"""

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuguard.errors import Absent, ReadFailed
from gpuguard.kernel_log.reader import has_marker, parse_text
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, LinesLost, LogLine
from gpuguard.model.ids import BootId, EventId
from gpuguard.model.instants import Instant
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock

NAME = "journal"
ENTRY_MAX = 1 << 20  # bytes of one entry; kernel messages are far smaller, other fields of a forged one may not be
FOLDERS = ("/run/log/journal", "/var/log/journal")
ENTRIES_PER_ANSWER = 20_000  # that many newer entries hide an old one: a flood is no reason to read for minutes
QUESTIONS_WAITING = 64
SHORTEST_PIECE = 32  # characters; less than this of a line could be any line of that driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds.

    `witness` answers questions and stands in for kmsg; `follow` reads all the time, for machines whose ring may not
    be read at all. `window` is how far from the report the same line may stand; a computed time gets `loose_window`.
    """

    mode: Literal["witness", "follow"] = "witness"  # witness: asked about single lines; follow: reads all of it
    journalctl: str = "journalctl"  # the program
    deadline: Seconds = Seconds(3.0)  # for one question to it
    # A line not found is asked for again after this: journald reads the same ring, a little later than we do.
    again_after: Seconds = Seconds(0.25)
    window: Seconds = Seconds(60.0)
    loose_window: Seconds = Seconds(900.0)
    sign_of_life: Seconds = Seconds(60.0)  # a quiet journal is told to be alive this often
    trust_user_records: bool = False  # for drills, as in [sources.kmsg]

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.deadline, self.again_after, self.sign_of_life) <= 0:
            raise ValueError("deadline, again_after and sign_of_life must be above 0")


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel message as journald keeps it. Units: `utc` seconds since 1970 when journald received it, `mono`
    seconds since boot by the same clock.
    """

    cursor: str
    boot: str
    text: str
    utc: float | None
    mono: float | None


def read_entry(line: bytes, *, trust_user_records: bool = False) -> Entry | None:
    """The kernel message on one line of `-o json`, None for anything else.

    Shape   one object; MESSAGE is a string, an array of byte values where it is no UTF-8, null where it is too long
    Source  systemd.journal-fields(7); src/journal/journald-kmsg.c: what a process wrote to /dev/kmsg has the transport
            kernel too, but never the facility kern
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT") != "kernel":
        return None
    if entry.get("SYSLOG_FACILITY", "0") != "0" and not trust_user_records:
        return None
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        try:
            message = bytes(message).decode("utf-8", "backslashreplace")
        except (TypeError, ValueError):
            return None
    if not isinstance(message, str):
        return None
    return Entry(
        cursor=str(entry.get("__CURSOR", "")),
        boot=str(entry.get("_BOOT_ID", "")),
        text=message,
        utc=_micros(entry.get("__REALTIME_TIMESTAMP")),
        mono=_micros(entry.get("__MONOTONIC_TIMESTAMP")),
    )


def same_line(one: str, other: str) -> bool:
    """Whether two logs print the same message: blanks and line ends apart, a piece of several lines counts."""
    a, b = " ".join(one.split()), " ".join(other.split())
    shorter, longer = sorted((a, b), key=len)
    return bool(shorter) and (a == b or (len(shorter) >= SHORTEST_PIECE and longer.startswith(shorter)))


def event_id(boot: BootId, entry: Entry) -> EventId:
    """The same for the same entry each time: journald's cursor names its sequence file and number."""
    fields = dict(part.split("=", 1) for part in entry.cursor.split(";") if "=" in part)
    number = fields.get("i") or entry.cursor[-32:]
    return EventId(f"{NAME}:{boot[:8]}:{fields.get('s', '')[:8]}-{number}")


def _micros(value: object) -> float | None:
    return int(value) / 1_000_000 if isinstance(value, str) and value.isascii() and value[:20].isdigit() else None


class Child:
    """A running journalctl, read line by line with a limit on time and length.

    Raises  Absent where there is no such program; ReadFailed where it cannot be started
    """

    def __init__(self, command: list[str], wake: int) -> None:
        """Started. `wake` becomes readable when waiting must end."""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
            )
        except FileNotFoundError as error:
            raise Absent(f"{command[0]} does not exist; without systemd there is no journal") from error
        except OSError as error:
            raise ReadFailed(f"{command[0]} cannot be started: {error.strerror}") from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = self._process.stdout.fileno()
        self._errors = self._process.stderr.fileno()
        os.set_blocking(self._out, False)
        os.set_blocking(self._errors, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(wake, select.POLLIN)
        self._rest = b""
        self.ended = False
        self.too_long = 0

    def lines(self, timeout: float) -> list[bytes]:
        """The whole lines that came; waits at most `timeout` seconds for the first. `ended` once the child is done."""
        self._poll.poll(max(timeout, 0.0) * 1000)
        lines: list[bytes] = []
        while len(lines) < 4096:
            try:
                chunk = os.read(self._out, 65_536)
            except BlockingIOError:
                break
            if not chunk:
                self.ended = True
                break
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            lines += whole
            if len(self._rest) > ENTRY_MAX:
                self._rest = self._rest[:64]  # no JSON any more: the line is dropped as a whole when its end comes
                self.too_long += 1
        return lines

    def close(self) -> tuple[int, str]:
        """The child and all its own children are gone; its exit status and what it said on standard error."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        said = b""
        with contextlib.suppress(BlockingIOError):  # it said nothing, and a child of its own may hold the pipe
            said = os.read(self._errors, 4096)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return status, said.decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True)
class _StandIn:
    active: bool
    since: Instant | None


class Journal:
    """The source. It sleeps until it is asked, or until it must stand in for kmsg."""

    name = NAME

    def __init__(self, settings: Settings, root: Path, clock: Clock) -> None:
        """Starts nothing."""
        self._settings = settings
        self._clock = clock
        self._root = root
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._orders: queue.Queue[Question | _StandIn] = queue.Queue(QUESTIONS_WAITING)
        self._follow = settings.mode == "follow"
        self._since: Instant | None = None
        self.unasked = 0  # questions that found the queue full

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Questions were answered, and the journal followed where wanted, until told to stop.

        Raises  Absent, ReadFailed
        """
        self._command()
        emit(Batch(source=NAME, events=()))
        while not self._stopping:
            for order in self._taken_orders():
                if isinstance(order, _StandIn):
                    self._follow, self._since = order.active or self._settings.mode == "follow", order.since
                else:
                    self._answer(order, emit)
            if self._stopping:
                return
            if self._follow:
                cursor = self._follow_until_woken(emit, cursor)
            else:
                self._nap(self._settings.sign_of_life)
                emit(Batch(source=NAME, events=()))

    def stop(self) -> None:
        """`run` returns soon; a query under way is killed."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """The question waits for its turn. A full queue drops it, counted: the core asks again while it matters."""
        if question.raw:
            self._order(question)

    def stand_in(self, active: bool, since: Instant | None) -> None:
        """From now on the journal is followed from `since`, or no longer."""
        self._order(_StandIn(active, since))

    def _order(self, order: Question | _StandIn) -> None:
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            self.unasked += 1
        os.eventfd_write(self._wake, 1)

    def _taken_orders(self) -> Iterator[Question | _StandIn]:
        while not self._stopping:
            try:
                yield self._orders.get_nowait()
            except queue.Empty:
                return

    def _nap(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll(seconds * 1000)
        self._woken()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody woke us: the time was up
            os.eventfd_read(self._wake)

    def _command(self) -> list[str]:
        program = shutil.which(self._settings.journalctl)
        if program is None:
            raise Absent(f"{self._settings.journalctl} is not installed; without systemd there is no journal")
        command = [program, "--output=json", "--no-pager", "--quiet", "_TRANSPORT=kernel"]
        own = os.sep not in self._settings.journalctl  # the system's, which finds its files by itself
        if self._root == Path("/") and own and not any(Path(folder).is_dir() for folder in FOLDERS):
            raise Absent(f"no journal in {' or '.join(FOLDERS)}: journald does not run here")
        if self._root == Path("/"):
            return [*command, "--boot"]
        folder = self._root / "var/log/journal"
        if not folder.is_dir():
            raise Absent(f"{folder} does not exist; this recorded machine has no journal")
        return [*command, f"--directory={folder}"]

    def _answer(self, question: Question, emit: Callable[[Batch], None]) -> None:
        """The line was looked for until found or the deadline was over; emitted if it is there."""
        at = question.at
        command = [*self._command(), "--reverse"]
        if at.utc is not None:
            window = self._settings.loose_window if at.estimated else self._settings.window
            command += [f"--since=@{at.utc - window:.0f}", f"--until=@{at.utc + window + 1:.0f}"]
        ends = time.monotonic() + self._settings.deadline
        while not self._stopping:
            entry = self._search(command, question.raw, ends)
            if entry is not None:
                event = self._event(entry, backlog=False)
                if event is not None:
                    emit(Batch(source=NAME, events=(event,)))
                return
            left = ends - time.monotonic()
            if left <= self._settings.again_after:
                return
            self._nap(self._settings.again_after)  # another order may end it early: then we look once more, no harm

    def _search(self, command: list[str], raw: str, ends: float) -> Entry | None:
        child = Child(command, self._wake)
        seen = 0
        try:
            while not self._stopping and not child.ended and seen < ENTRIES_PER_ANSWER:
                left = ends - time.monotonic()
                if left <= 0:
                    break
                for line in child.lines(left):
                    seen += 1
                    entry = read_entry(line, trust_user_records=self._settings.trust_user_records)
                    if entry is not None and same_line(entry.text, raw):
                        return entry
                self._woken()
        finally:
            child.close()
        return None

    def _event(self, entry: Entry, *, backlog: bool) -> LogLine | None:
        parsed = parse_text(entry.text)
        if parsed is None:
            return None
        now = self._clock.now()
        mono = entry.mono if entry.mono is not None and self._root == Path("/") else now.mono
        return LogLine(
            id=event_id(now.boot, entry),
            at=Instant(boot=now.boot, mono=mono, utc=entry.utc),
            source=NAME,
            parsed=parsed,
            raw=entry.text,
            backlog=backlog,
        )

    def _follow_until_woken(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> Cursor | None:
        """The cursor of the last entry read. Returns when an order waits or it is time to stop.

        Raises  ReadFailed when the child ends by itself
        """
        now = self._clock.now()
        command = [*self._command(), "--follow"]
        if cursor is not None and cursor.source == NAME and cursor.boot == now.boot:
            command += [f"--after-cursor={cursor.position}", "--no-tail"]
        elif self._since is not None and self._since.utc is not None:
            command += [f"--since=@{self._since.utc:.0f}", "--no-tail"]
        else:
            command += ["--no-tail"]
        child = Child(command, self._wake)
        backlog_until = now.utc or 0.0
        failure: str | None = None
        too_long = 0
        try:
            while not self._stopping and self._orders.empty():
                events: list[AnyEvent] = []
                for line in child.lines(self._settings.sign_of_life):
                    entry = read_entry(line, trust_user_records=self._settings.trust_user_records)
                    if entry is None:
                        continue
                    cursor = Cursor(source=NAME, boot=now.boot, position=entry.cursor)
                    if has_marker(entry.text.encode("utf-8", "replace")):
                        backlog = entry.utc is not None and entry.utc < backlog_until
                        event = self._event(entry, backlog=backlog)
                        events += [event] if event is not None else []
                if child.too_long > too_long:
                    events.append(self._too_long(child.too_long - too_long))
                    too_long = child.too_long
                emit(Batch(source=NAME, events=tuple(events), cursor=cursor if events else None))
                self._woken()
                if child.ended:
                    failure = "it ended by itself"
                    break
        finally:
            status, said = child.close()
        if failure is not None:
            raise ReadFailed(f"journalctl --follow: {failure} with status {status}: {said or 'it said nothing'}")
        return cursor

    def _too_long(self, count: int) -> LinesLost:
        now = self._clock.now()
        return LinesLost(
            id=EventId(f"{NAME}:{now.boot[:8]}:long-{now.mono:.6f}"),
            at=now,
            source=NAME,
            count=count,
            reason=f"entries of more than {ENTRY_MAX} bytes",
        )


def build(settings: Settings, root: Path, clock: Clock) -> Journal:
    """The source for the machine under `root`."""
    return Journal(settings, root, clock)
