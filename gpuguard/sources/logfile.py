"""Kernel messages in files that a syslog daemon writes: for machines that keep their log elsewhere. Off by default.

Reads     the files in `paths`, in any printed form; /var/log/kern.log on Debian, /var/log/messages on Red Hat
Emits     LogLine for each report, LinesLost for a file that shrank or was rotated away unread
Cursor    inode and offset of each file, as JSON
Source    syslog(3) daemons append whole lines; logrotate renames (`create`) or empties (`copytruncate`) the file

Without a cursor reading begins at the end: what stands in an old file is of who knows which boot, and a fault that
was repaired long ago must not drain a node. A line without its line end waits for the rest.
Such a file takes what any user gives to `logger -t kernel`, so alone it proves nothing: it is a second witness.
"""

import json
import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.kernel_log.reader import Found, LogReader, has_marker
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, LinesLost, LogLine
from gpuguard.model.ids import EventId
from gpuguard.model.instants import Instant
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock

NAME = "logfile"
CHUNK = 1 << 18
LINE_MAX = 65_536  # of a line that is kept; the rest of a longer one is passed over
CHUNKS_PER_PASS = 64  # of one file, so that a flooded one does not starve the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    paths: tuple[str, ...] = ()  # syslog files that hold kernel lines; the agent must be allowed to read them
    every: Seconds = Seconds(1.0)  # how often they are looked at
    sign_of_life: Seconds = Seconds(60.0)  # files without news are told to be alive this often
    trust_user_records: bool = False  # for drills, as in [sources.kmsg]

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.sign_of_life) <= 0:
            raise ValueError("every and sign_of_life must be above 0")


@dataclass(frozen=True, slots=True)
class Place:
    """How far a file was read: the number of its inode, and the offset of the first byte not yet read as a line."""

    inode: int
    offset: int


class Follower:
    """One file, followed over rotation and truncation. Holds at most one line and one report."""

    def __init__(self, path: Path, place: Place | None, *, trust_user: bool = False) -> None:
        """Continues at `place`, or at the present end of the file without one."""
        self._path = path
        self._place = place
        self._reader = LogReader(trust_user=trust_user)
        self._fd: int | None = None
        self._offset = 0
        self._rest = b""
        self._passed_over = 0  # bytes of an overlong line that are not in `_rest`
        self.losses: list[str] = []

    def place(self) -> Place | None:
        """Where to continue after a restart."""
        if self._fd is None:
            return self._place
        return Place(os.fstat(self._fd).st_ino, self._offset)

    def read(self) -> list[tuple[EventId, Found]]:
        """The reports in what was added since the last time, each with the id that its place gives it.

        Raises  ReadFailed when the file is there and cannot be read
        """
        found: list[tuple[EventId, Found]] = []
        if self._fd is None and not self._open():
            return found
        found += self._read_on()
        if self._is_rotated():
            found += self._read_on()  # what was written between the last read and the rotation
            found += self._flush()
            self._close()
            self._place = Place(0, 0)
            if self._open():
                found += self._read_on()
        return found

    def close(self) -> None:
        """The file is closed; `place` still tells where to continue."""
        self._place = self.place()
        self._close()

    def _open(self) -> bool:
        """Whether the file is there; it is then open at the right place."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ReadFailed(
                f"{self._path} cannot be read: {error.strerror}; add the agent's user to the group that may (adm)"
            ) from error
        status = os.fstat(fd)
        place = self._place
        if place is None:
            self._offset = status.st_size
        elif place.inode in (0, status.st_ino) and place.offset <= status.st_size:
            self._offset = place.offset
        elif place.inode in (0, status.st_ino):
            self._offset = 0
            self.losses.append(f"{self._path} shrank while it was not read")
        elif (older := self._renamed(place)) is not None:
            os.close(fd)
            fd, self._offset = older, place.offset
        else:
            self._offset = 0
            self.losses.append(f"{self._path} was rotated away while it was not read")
        self._fd = fd
        self._rest, self._passed_over = b"", 0
        os.lseek(fd, self._offset, os.SEEK_SET)
        return True

    def _renamed(self, place: Place) -> int | None:
        """The file that had this name before, open, when it still lies beside under another name."""
        for entry in sorted(os.scandir(self._path.parent), key=lambda entry: entry.name):
            if entry.name.startswith(self._path.name) and entry.inode() == place.inode and entry.is_file():
                try:
                    return os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                except OSError:
                    return None  # counted as lost by the caller
        return None

    def _is_rotated(self) -> bool:
        assert self._fd is not None
        try:
            return os.stat(self._path).st_ino != os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False  # renamed, and the new one is not there yet: the old one may still be written to

    def _read_on(self) -> list[tuple[EventId, Found]]:
        assert self._fd is not None
        status = os.fstat(self._fd)
        if status.st_size < self._offset + len(self._rest) + self._passed_over:
            self.losses.append(f"{self._path} shrank")
            os.lseek(self._fd, 0, os.SEEK_SET)
            self._offset, self._rest, self._passed_over = 0, b"", 0
        found: list[tuple[EventId, Found]] = []
        for _ in range(CHUNKS_PER_PASS):
            try:
                chunk = os.read(self._fd, CHUNK)
            except OSError as error:
                raise ReadFailed(f"{self._path} cannot be read: {error.strerror}") from error
            if not chunk:
                break
            found += self._lines(chunk, status.st_ino)
        return found + self._flush()

    def _lines(self, chunk: bytes, inode: int) -> list[tuple[EventId, Found]]:
        found: list[tuple[EventId, Found]] = []
        *whole, rest = chunk.split(b"\n")
        for end in whole:
            line = self._rest + end
            length = len(line) + self._passed_over + 1
            if self._reader.waiting or has_marker(line[:LINE_MAX]):
                text = line[:LINE_MAX].decode("utf-8", "backslashreplace")
                found += self._named(self._reader.feed(text, self._offset), inode)
            self._offset += length
            self._rest, self._passed_over = b"", 0
        self._rest += rest
        if len(self._rest) > LINE_MAX:
            self._passed_over += len(self._rest) - LINE_MAX
            self._rest = self._rest[:LINE_MAX]
        return found

    def _flush(self) -> list[tuple[EventId, Found]]:
        assert self._fd is not None
        return self._named(self._reader.flush(), os.fstat(self._fd).st_ino)

    def _named(self, found: list[Found], inode: int) -> list[tuple[EventId, Found]]:
        return [(EventId(f"{NAME}:{inode}:{report.line}"), report) for report in found]

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class LogFile:
    """The source."""

    name = NAME

    def __init__(self, settings: Settings, root: Path, clock: Clock) -> None:
        """Opens nothing yet."""
        self._settings = settings
        self._clock = clock
        self._root = root
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self.of_an_earlier_boot = 0

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Every line that was added to the files was read, until told to stop.

        Raises  Absent when no paths are set; ReadFailed
        """
        if not self._settings.paths:
            raise Absent("[sources.logfile] paths is empty; name the files that syslog writes kernel messages to")
        places = read_position(cursor.position) if cursor is not None and cursor.source == NAME else {}
        followers = {
            path: Follower(
                self._root / path.lstrip("/"), places.get(path), trust_user=self._settings.trust_user_records
            )
            for path in self._settings.paths
        }
        try:
            self._follow(emit, followers)
        finally:
            for follower in followers.values():
                follower.close()

    def stop(self) -> None:
        """`run` returns soon."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """Nothing to do: every line is reported anyway."""

    def _follow(self, emit: Callable[[Batch], None], followers: dict[str, Follower]) -> None:
        backlog = True
        position = ""
        signed = self._clock.now().mono
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            events: list[AnyEvent] = []
            for path, follower in followers.items():
                for event_id, found in follower.read():
                    event = self._event(event_id, found, path, backlog=backlog)
                    events += [event] if event is not None else []
                events += [self._lost(reason) for reason in follower.losses]
                follower.losses.clear()
            before, position = position, write_position({path: f.place() for path, f in followers.items()})
            now = self._clock.now()
            # The first position is kept at once: without it, a restart would begin at the end again.
            if events or (backlog and position != before):
                cursor = Cursor(source=NAME, boot=now.boot, position=position)
                emit(Batch(source=NAME, events=tuple(events), cursor=cursor))
                signed = now.mono
            if backlog or now.mono - signed >= self._settings.sign_of_life:
                emit(Batch(source=NAME, events=()))
                signed = now.mono
            backlog = False
            poll.poll(self._settings.every * 1000)
        now = self._clock.now()
        emit(Batch(source=NAME, events=(), cursor=Cursor(source=NAME, boot=now.boot, position=position)))

    def _event(self, event_id: EventId, found: Found, path: str, *, backlog: bool) -> LogLine | None:
        """None for a line that was written before this boot."""
        now = self._clock.now()
        at = now
        if backlog and found.record.utc is not None and now.utc is not None:
            mono = now.mono - (now.utc - found.record.utc)
            if mono < 0:
                self.of_an_earlier_boot += 1
                return None
            at = Instant(boot=now.boot, mono=min(mono, now.mono), utc=found.record.utc)
        return LogLine(
            id=event_id, at=at, source=NAME, parsed=found.parsed, raw=found.record.text, file=path, backlog=backlog
        )

    def _lost(self, reason: str) -> LinesLost:
        """How many lines went nobody can tell: counted as one."""
        now = self._clock.now()
        return LinesLost(
            id=EventId(f"{NAME}:{now.boot[:8]}:lost-{now.mono:.6f}"), at=now, source=NAME, count=1, reason=reason
        )


def write_position(places: dict[str, Place | None]) -> str:
    """The cursor's text.

    Shape   a JSON object, path to [inode, offset]
    """
    return json.dumps({path: [p.inode, p.offset] for path, p in places.items() if p is not None}, sort_keys=True)


def read_position(text: str) -> dict[str, Place]:
    """The places in a cursor.

    Raises  ReadFailed for a text that `write_position` does not write
    """
    try:
        return {path: Place(int(inode), int(offset)) for path, (inode, offset) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ReadFailed(f"the cursor of {NAME} is not understood: {text[:60]!r}") from error


def build(settings: Settings, root: Path, clock: Clock) -> LogFile:
    """The source for the machine under `root`."""
    return LogFile(settings, root, clock)
