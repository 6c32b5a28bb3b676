"""Heartbeats: how far each rank of a job is, told by the job itself.

Reads     datagrams at a Unix socket, and the pages of memory that came with them: see gpuguard/progress/wire.py
Emits     a Sweep with a row of each rank that beats, or has ended lately, and one of the node
Cursor    none: ranks announce themselves again within seconds when the agent was started anew
Source    unix(7); proc(5)

Messages are read in batches: the source rests between them, and while nobody beats it sleeps until somebody does. A
rank whose page is known costs two reads of memory a round, however often it gets on.
"""

import contextlib
import os
import resource
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import Batch, Cursor, Sweep
from gpuguard.model.ids import EventId
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import RANK
from gpuguard.model.readings import Quantity
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.progress import wire
from gpuguard.sources.heartbeats.door import Door, Received
from gpuguard.sources.heartbeats.register import Limits, Register
from gpuguard.sources.heartbeats.senders import OwnerOf, Senders
from gpuguard.sweeping.files import read_bytes, whole
from gpuguard.sweeping.owners import owner_of
from gpuguard.sweeping.rounds import SIGN_OF_LIFE

NAME = "heartbeats"
QUEUE = "proc/sys/net/unix/max_dgram_qlen"
QUEUE_AT_LEAST = 10  # the kernel's default; systemd makes it 512
BATCH = 1024  # datagrams read in one go
PAGES_AT_ONCE = 32  # so many files that came are open before it is known whose they are
# Somebody sends faster than is read: so long a rest keeps the price at a tenth of a core, and the queue has room for
# others often enough. Units: seconds.
FLOODED = 0.03
FULL_READS = 20  # so many more reads found the queue full than did not, and whoever sends most is shut out
FLOOD = 1000  # if so many messages of that user were refused meanwhile
CROWDED = 100  # from so many of one process on its send buffer is full: what it says next is lost until they are read
SHORTEST, LONGEST = 0.025, 0.4  # rest between two reads while ranks tell by messages alone
QUIET = 10.0  # between sweeps while all ranks have ended: nothing changes but their age
VALID = 10.0  # a sweep holds at least so long

QUANTITIES: tuple[Quantity, ...] = (
    *RANK,
    Quantity(
        name="heartbeats_total", of="node", unit="count", kind="counter", low=0, high=float(2**63),
        help="Messages that came from ranks, taken or refused.",
    ),
    Quantity(
        name="heartbeats_refused_total", of="node", unit="count", kind="counter", low=0, high=float(2**63),
        keyed=True, each="reason", help="Messages from ranks, or files with them, that were not taken, by reason.",
    ),
    Quantity(
        name="heartbeat_ranks", of="node", unit="count", low=0, high=1e6, help="Ranks that beat and live.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    # Where to listen; empty is where jobs look by themselves, /run/gpuguard/progress.sock. Jobs find another place by
    # GPUGUARD_SOCKET.
    socket: str = ""
    every: Seconds = Seconds(0.8)  # pages are read this often: the newest step is known within a second
    linger: Seconds = Seconds(600.0)  # a rank whose process has ended is shown for so long
    ranks: int = 1024  # so many on this node; of as many as half of the agent's open files the pages are read
    ranks_per_user: int = 256  # so many of one user

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin or could not work."""
        if self.every < 0.1:
            raise ValueError("every: must be 0.1 or more")
        if self.linger < 0:
            raise ValueError("linger: must be 0 or more")
        if self.ranks < 1:
            raise ValueError("ranks: must be 1 or more")
        if self.ranks_per_user < 1:
            raise ValueError("ranks_per_user: must be 1 or more")


def pace(came: float, queue: int) -> float:
    """How long to rest between two reads when so many messages come a second: no more than half of the queue may come
    meanwhile. Units: seconds."""
    return min(LONGEST, max(SHORTEST, 0.5 * queue / came)) if came > 0 else LONGEST


class Heartbeats:
    """The source: one socket, one register."""

    name = NAME

    def __init__(
        self, settings: Settings, root: Path, clock: Clock, *, owner_of: OwnerOf = owner_of, here: Path | None = None
    ) -> None:
        """Listens to nobody yet. `here` is where /proc tells of who sends, where that is not the root."""
        self._settings, self._root, self._clock = settings, root, clock
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limits = Limits(
            ranks=settings.ranks, ranks_of_user=settings.ranks_per_user, linger=settings.linger, pages=files // 2
        )  # fmt: skip
        self.register = Register(Senders(root if here is None else here, owner_of), limits)
        self._stopping = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._queue = QUEUE_AT_LEAST
        self._came = 0.0  # messages a second, lately
        self._waiting: list[Received] = []  # taken from the queue and not looked at yet
        self._crowded = False
        self._full = 0  # reads that found the queue full, less those that did not
        self._read_at: float | None = None

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Everything that ranks tell was taken in, until told to stop.

        Raises  Absent under a recorded machine, or where there is no folder for the socket; ReadFailed when somebody
                else listens there
        """
        with contextlib.closing(Door(self._path())) as door:
            with contextlib.suppress(Absent, ReadFailed):
                text = read_bytes(self._root / QUEUE).decode("ascii", "replace").strip()
                self._queue = max(QUEUE_AT_LEAST, whole(text) or 0)
            swept: float | None = None
            while not self._stopping.is_set():
                now = self._clock.now()
                came = self._read(door, now.mono, due=swept is None or now.mono >= swept + self._period())
                if swept is None or now.mono >= swept + self._period():
                    door.let_in(now.mono)
                    if not door.stands():
                        raise ReadFailed(f"{door.path} was removed or replaced; it is made again")
                    emit(Batch(source=self.name, events=(self._sweep(now),)))
                    if swept is None:
                        emit(Batch(source=self.name, events=()))
                    swept = now.mono
                self._rest(door, came, swept + self._period())

    def _path(self) -> Path:
        if self._settings.socket:
            return Path(self._settings.socket)
        if self._root != Path("/"):
            raise Absent(f"no job runs on the recorded machine {self._root}; set [sources.heartbeats] socket to listen")
        return Path(wire.SOCKET)

    def _read(self, door: Door, now: float, *, due: bool) -> int:
        """How many messages waited. What they say is looked at when a sweep is due, or nobody was known before: between
        them they are only taken from the queue, and most of them are made superfluous meanwhile."""
        count = pages = 0
        senders: dict[int, int] = {}
        while count < BATCH and (one := door.receive(now)) is not None:
            self._waiting.append(one)
            count += 1
            senders[one.pid] = senders.get(one.pid, 0) + 1
            pages += one.page is not None
            if pages >= PAGES_AT_ONCE:
                self._hear(now)
                pages = 0
        full = count >= min(BATCH, self._queue)
        self._crowded = max(senders.values(), default=0) >= CROWDED
        if due or full or pages or len(self._waiting) >= BATCH or not self.register.living:
            self._hear(now)
        self._end_flood(door, full, now)
        if self._read_at is not None and now > self._read_at:
            share = min(1.0, now - self._read_at)
            self._came += share * (count / (now - self._read_at) - self._came)
        self._read_at = now
        return count

    def _hear(self, now: float) -> None:
        self.register.hear(self._waiting, now)
        self._waiting = []

    def _end_flood(self, door: Door, full: bool, now: float) -> None:
        """Who has sent more than can be read for long enough to silence others is shut out."""
        self._full = max(0, self._full + (1 if full else -1))
        if 0 < self._full < FULL_READS:
            return
        flooding = self.register.flooding
        most = max(flooding, key=lambda uid: flooding[uid], default=0)
        if self._full and flooding.get(most, 0) >= FLOOD:
            door.shut_out(most, now)
        self._full = 0
        flooding.clear()

    def _period(self) -> float:
        """Seconds from one sweep to the next."""
        if self.register.living:
            return self._settings.every
        return QUIET if self.register.lingering else SIGN_OF_LIFE

    def _rest(self, door: Door, came: int, due: float) -> None:
        """Time went by: until there is something to do, or it is worth while."""
        left = max(0.0, due - self._clock.now().mono)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if came >= min(BATCH, self._queue):
            left = min(left, FLOODED)
        elif self.register.by_datagram:
            left = min(left, SHORTEST if self._crowded else pace(self._came, self._queue))
        elif came and not self.register.living:
            left = min(left, LONGEST)  # what comes was refused: it is not worth more
        elif not self.register.living:
            poll.register(door.fileno(), select.POLLIN)
        poll.poll(left * 1000.0)

    def _sweep(self, now: Instant) -> Sweep:
        self.register.look(now.mono)
        return Sweep(
            id=EventId(f"{self.name}/fast:{now.boot[:8]}:{now.mono:.3f}"), at=now, source=self.name, rate="fast",
            valid_for=max(VALID, 3.0 * self._period()), rows=self.register.rows(now.mono),
        )  # fmt: skip

    def stop(self) -> None:
        """`run` returns at once."""
        self._stopping.set()
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """It knows nothing of faults."""


def build(settings: Settings, root: Path, clock: Clock) -> Heartbeats:
    """The source for the jobs on the machine under `root`."""
    # Who sends to a socket runs on this machine, whichever recorded one is played.
    return Heartbeats(settings, root, clock, here=Path("/"))
