"""The kernel's own ring of messages, /dev/kmsg: the first source, and the one that floods cannot blind.

Reads     /dev/kmsg; with a recorded machine as root a regular file of such records, one a line, followed as it grows
Emits     LogLine for each report the grammars know, LinesLost with exact counts
Cursor    the sequence number of the last record read, with the boot it belongs to
Source    Linux Documentation/ABI/testing/dev-kmsg, kernel/printk/printk.c (devkmsg_read, msg_print_ext_header)

One thread reads and does nothing else. It reads with the interpreter's lock held: a read that never blocks takes
about 1 us, while giving the lock away for it lets a busy loop elsewhere in the process hold the reader up for 5 ms
each time. Measured beside one busy thread: 1,600 records/s with os.read, 490,000 with the lock held; a flood
brings 20,000.

A record is known by boot and sequence number, so it is reported once over restarts and reboots. Numbers have no
holes: a jump is exactly what was overwritten before it was read, whether EPIPE announced it or not.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import Batch, Cursor
from gpuguard.model.ids import BootId
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.kmsg.ring import DeviceRing, FileRing, Ring
from gpuguard.sources.kmsg.tail import NAME, Tail, Tally

DEVICE = "dev/kmsg"
BOOT_ID = "proc/sys/kernel/random/boot_id"
FUTILE_READS = 64  # reads that fail one after another before the device counts as broken
LIVE_RECORDS_PER_BATCH = 64  # a report waits for no more records than these to be handed over


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds.

    `trust_user_records` also believes records that a process wrote to /dev/kmsg: for drills and tests only, since
    whoever may write there could then fake a lost GPU.
    """

    trust_user_records: bool = False
    sign_of_life: Seconds = Seconds(60.0)  # a quiet log is told to be alive this often
    events_per_batch: int = 256  # handed over together at most
    records_per_cursor: int = 4096  # where no event comes the place is kept this often: each costs a commit
    breather: Seconds = Seconds(
        0.002
    )  # rest after news of no interest: a flood wakes us 500 times a second, not 20,000
    fragment_wait: Seconds = Seconds(0.02)  # how long the rest of a split line may take
    poll_file: Seconds = Seconds(0.1)  # how often a recorded machine's file is looked at; the real ring wakes us

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin or never report."""
        if min(self.events_per_batch, self.records_per_cursor) < 1:
            raise ValueError("events_per_batch and records_per_cursor must be at least 1")
        if min(self.sign_of_life, self.poll_file, self.fragment_wait) <= 0:
            raise ValueError("sign_of_life, poll_file and fragment_wait must be above 0")


class Kmsg:
    """The source. `run` reads in the thread that calls it; `stop` may be called from any other."""

    name = NAME

    def __init__(
        self, settings: Settings, root: Path, clock: Clock, *, open_ring: Callable[[int], Ring] | None = None
    ) -> None:
        """Reads nothing yet. `open_ring(stop)` opens another ring than the machine's; tests do."""
        self._settings = settings
        self._clock = clock
        self._root = root
        self._open_ring = open_ring
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self.tally = Tally()

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Every record behind `cursor` was read, until told to stop; what was read is handed over even on failure.

        Raises  Absent, ReadFailed
        """
        ring, newest_micros = self._open()
        try:
            boot = self._boot()
            tail = Tail(
                boot,
                cursor if cursor is not None and cursor.source == NAME else None,
                self._clock,
                trust_user_records=self._settings.trust_user_records,
                newest_micros=newest_micros,
            )
            self.tally = tail.tally
            _Reading(ring, tail, boot, emit, self._clock, self._settings).go(lambda: self._stopping)
        finally:
            ring.close()

    def stop(self) -> None:
        """`run` returns soon, and at once when called again."""
        self._stopping = True
        os.eventfd_write(self._stop, 1)

    def ask(self, question: Question) -> None:
        """Nothing to do: every record of the ring is reported anyway."""

    def _boot(self) -> BootId:
        try:
            text = (self._root / BOOT_ID).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = ""
        return BootId(text) if text else self._clock.now().boot

    def _open(self) -> tuple[Ring, int | None]:
        if self._open_ring is not None:
            return self._open_ring(self._stop), None
        path = self._root / DEVICE
        if path.is_file():
            file = FileRing(path, self._stop, self._settings.poll_file)
            return file, file.newest_micros()
        return DeviceRing(path, self._stop), None


class _Reading:
    """One run from open to close."""

    def __init__(
        self, ring: Ring, tail: Tail, boot: BootId, emit: Callable[[Batch], None], clock: Clock, settings: Settings
    ) -> None:
        self._ring = ring
        self._tail = tail
        self._boot = boot
        self._emit_batch = emit
        self._clock = clock
        self._settings = settings
        self._emitted_position = tail.last
        self._emitted_mono = clock.now().mono
        self._futile = 0

    def go(self, stopping: Callable[[], bool]) -> None:
        """Returns once stopping; hands over all that was read, whatever ends it.

        Raises  ReadFailed
        """
        try:
            while not stopping():
                busy = self._drain(stopping)
                if stopping():
                    break
                self._idle(busy)
        finally:
            self._tail.flush()
            self._emit(with_cursor=True)

    def _drain(self, stopping: Callable[[], bool]) -> bool:
        """All records that are there now were fed; whether they were of no interest, many of them perhaps."""
        tail, settings = self._tail, self._settings
        since_emit = 0
        while not stopping():
            data = self._read()
            if data is None:
                break
            tail.feed(data)
            since_emit += 1
            if (
                tail.events
                and (
                    len(tail.events) >= settings.events_per_batch
                    or (since_emit >= LIVE_RECORDS_PER_BATCH and not tail.backlog)
                )
            ) or since_emit >= settings.records_per_cursor:
                self._emit(with_cursor=True)
                since_emit = 0
        if not tail.unfinished:
            tail.flush()
        if tail.events:
            self._emit(with_cursor=True)
            return False
        return since_emit > 0

    def _idle(self, busy: bool) -> None:
        """There was nothing more to read: waits for more, and keeps the signs of life going."""
        tail, settings = self._tail, self._settings
        if tail.backlog and not tail.unfinished:
            tail.caught_up()
            self._sign_of_life()
        if tail.unfinished:
            self._ring.pause(settings.fragment_wait)
            before = tail.tally.records
            data = self._read()
            if data is not None:
                tail.feed(data)
            if tail.tally.records == before:
                tail.flush()
            return
        if busy:
            self._ring.pause(settings.breather)
            return
        left = self._emitted_mono + settings.sign_of_life - self._clock.now().mono
        if left <= 0:
            self._sign_of_life()
            left = settings.sign_of_life
        self._ring.wait(left)

    def _read(self) -> bytes | None:
        """The next record that can be read, None when there is none now."""
        while True:
            try:
                data = self._ring.read()
            except InterruptedError:
                continue
            except OSError as error:
                self._futile += 1
                if error.errno == errno.EPIPE:
                    self._tail.tally.overruns += 1
                elif error.errno == errno.EINVAL:
                    self._tail.tally.too_large += 1
                else:
                    raise ReadFailed(f"reading the kernel's ring failed: {error.strerror or error}") from error
                if self._futile > FUTILE_READS:
                    raise ReadFailed(
                        f"{self._futile} reads of the kernel's ring failed one after another, the last with "
                        f"{error.strerror or error}"
                    ) from error
                continue
            self._futile = 0
            return data

    def _emit(self, *, with_cursor: bool) -> None:
        position = self._tail.position()
        cursor = None
        if with_cursor and position is not None and position >= 0 and position != self._emitted_position:
            cursor = Cursor(source=NAME, boot=self._boot, position=str(position))
            self._emitted_position = position
        events = self._tail.take()
        if events or cursor is not None:
            self._emit_batch(Batch(source=NAME, events=events, cursor=cursor))
            self._emitted_mono = self._clock.now().mono

    def _sign_of_life(self) -> None:
        self._emit_batch(Batch(source=NAME, events=()))
        self._emitted_mono = self._clock.now().mono


def build(settings: Settings, root: Path, clock: Clock) -> Kmsg:
    """The source for the machine under `root`."""
    return Kmsg(settings, root, clock)
