"""Finds the dumps of ranks that others told of, and has each read once, by a process of its own.

A rank is known while some source tells of it. Of each a look takes a few stats; where there is no dump, that is all.
A dump that is new, and did not change since the look before, is handed to a child; what came of it stands until the
file changes. One file that two ranks might have written is nobody's: it cannot be told whose it is.
"""

import math
import os
import pwd
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

import gpuguard
from gpuguard.child.process import Child, Ended
from gpuguard.errors import ReadFailed
from gpuguard.model.events import Sweep
from gpuguard.model.flight import FlightSummary, held_up, waits_in, whole_group
from gpuguard.model.ids import NODE, SubjectId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import FLIGHT
from gpuguard.model.readings import Quantity, Row, Values
from gpuguard.model.units import Bytes, Seconds
from gpuguard.ports import Clock
from gpuguard.sources.flight_recorder.child import identify
from gpuguard.sources.flight_recorder.protocol import ANSWERS, File, Read
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.processes import Processes
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "flight_recorder"
CHILD = "gpuguard.sources.flight_recorder.child"
QUANTITIES: tuple[Quantity, ...] = FLIGHT
RANKS = 1024  # of one node: a rank a GPU makes 16, and a hostile job may tell of any number
FORGOTTEN_AFTER = 300.0  # seconds without a word of a rank
PREFIX_LIMIT = 1024
CLOCKS_DIFFER = 5.0  # seconds by which a file server's clock may be behind ours
READ_FOR = 15.0  # seconds in which children are begun in one look; the rest comes with the next
ENDS_WITHIN = 0.5  # seconds for a child that has answered
TICKS = float(os.sysconf("SC_CLK_TCK"))
_COLUMNS = tuple(quantity.name for quantity in FLIGHT if quantity.of == "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where dumps are, and how much reading one may cost. Units: seconds, bytes."""

    every: Seconds = Seconds(10.0)  # between two looks; a dump is read when two looks in a row found it the same
    deadline: Seconds = Seconds(3.0)  # for a look at all files; one on a file server that hangs is left out
    read_deadline: Seconds = Seconds(10.0)  # for one dump; 2,000 calls with their lines take 0.3 s, with the start
    # Paths less the rank's number, of ranks that do not tell their own; ~ is the home of the rank's user. A job's /tmp
    # may be hidden from the agent (PrivateTmp): a site sets TORCH_FR_DUMP_TEMP_FILE to a shared folder, and names it.
    prefixes: tuple[str, ...] = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")
    largest: Bytes = Bytes(256 * 2**20)  # of one file; a dump of 2,000 calls has 300 KB
    memory: Bytes = Bytes(64 * 2**20)  # address space of the process that reads one; Python itself takes half of it

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin, and for prefixes that are no paths."""
        if not 1.0 <= self.every <= 60.0:
            raise ValueError("every: must be at least 1 and at most 60")
        if not 0.0 < self.deadline <= 10.0 or not 0.0 < self.read_deadline <= 20.0:
            raise ValueError("deadline: must be above 0 and at most 10; read_deadline at most 20")
        if min(self.largest, self.memory) < 2**20:
            raise ValueError("largest and memory must be at least 1 MiB")
        if wrong := [prefix for prefix in self.prefixes if not _is_prefix(prefix)]:
            raise ValueError(f"prefixes: {wrong[0]!r} begins with neither / nor ~/")


class Talk(Protocol):
    """A child as the source needs it; `child.process.Child` is one."""

    def send(self, message: bytes) -> None: ...

    def receive(self, timeout: float, *wakes: int) -> bytes | None: ...

    def gone(self) -> bool: ...

    def stop(self, within: float) -> bool: ...

    def abandon(self) -> None: ...


@dataclass(slots=True)
class _Rank:
    """A rank as others told of it, and what came of its dump. `born` is when its process began, in seconds since
    boot; `seen` when it was first told of, `told` when last."""

    number: int
    seen: Instant
    told: Instant
    pid: int | None = None
    owner: int | None = None
    prefix: str | None = None
    born: float | None = None
    last: File | None = None  # as the look before found it
    read: File | None = None  # what `summary` or `problem` is of
    summary: FlightSummary | None = None
    problem: str = ""


@dataclass(slots=True)
class _Look:
    """What one look at a rank's paths found: its newest dump, and when its process began."""

    file: File | None = None
    born: float | None = None


@dataclass(slots=True)
class _Homes:
    """Homes of users, each looked up once: that may ask a server."""

    known: dict[int, str] = field(default_factory=dict)

    def of(self, user: int) -> str | None:
        if user not in self.known:
            if len(self.known) >= RANKS:
                self.known.clear()
            try:
                self.known[user] = pwd.getpwuid(user).pw_dir
            except KeyError:
                return None
        return self.known[user]


class FlightRecorder(Rounds):
    """The source. `start` gives a new child; tests hand in their own."""

    onlooks = ("rank_number",)

    def __init__(
        self, settings: Settings, root: Path, clock: Clock, *, start: Callable[[], Talk] | None = None
    ) -> None:
        """Reads nothing yet."""
        super().__init__(NAME, self.look, clock, every=settings.every)
        self._settings, self._root, self._time = settings, root, clock
        self._start = start or self._start_child
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended = False
        self._lock = threading.Lock()
        self._ranks: dict[SubjectId, _Rank] = {}
        self._apart: Apart[_Look] = Apart(NAME, settings.deadline)
        self._processes = Processes(root / "proc")
        self._homes = _Homes()
        self._left: list[Talk] = []
        self._failed = 0

    def stop(self) -> None:
        """`run` returns at once; a child that reads is left behind."""
        self._ended = True
        super().stop()
        os.eventfd_write(self._wake, 1)

    def onlook(self, sweep: Sweep) -> None:
        """The ranks in the sweep are known, with where they write."""
        for subject, values in sweep.rows.items():
            if kind_of(subject) == "rank" and "rank_number" in values:
                self._hear(subject, Row(subject=subject, at=sweep.at, source=sweep.source, values=values))

    def _hear(self, subject: SubjectId, row: Row) -> None:
        number, pid, owner = (row.bits(column) for column in ("rank_number", "rank_pid", "rank_uid"))
        if number is None:
            return
        with self._lock:
            rank = self._ranks.get(subject)
            if rank is None:
                if len(self._ranks) >= RANKS:
                    return
                rank = self._ranks[subject] = _Rank(number=number, seen=row.at, told=row.at)
            if pid is not None and pid != rank.pid:
                rank.pid, rank.born = pid, None
                rank.seen = row.at
            rank.owner = owner if owner is not None else rank.owner
            prefix = row.text("rank_flight")
            rank.prefix = prefix if prefix and _is_prefix(prefix) else rank.prefix
            rank.told = row.at

    # --- one look ----------------------------------------------------------------------------------------------------

    def look(self, now: Instant) -> Rows:
        """A row of each rank that has a dump; no rows where none has."""
        with self._lock:
            self._ranks = {s: r for s, r in self._ranks.items() if now.mono - r.told.mono <= FORGOTTEN_AFTER}
            ranks = dict(self._ranks)
            asked: dict[str, Callable[[], _Look]] = {
                subject: self._asked(rank, now) for subject, rank in ranks.items() if rank.owner is not None
            }
        found = self._apart.read(asked)
        claimed = Counter((one.file.device, one.file.inode) for one in found.values() if one.file is not None)
        self._left = [child for child in self._left if not child.gone()]
        for subject, rank in ranks.items():
            if subject in found:  # one that hangs is as it was
                rank.born = rank.born or found[subject].born
                file = found[subject].file
                is_its_own = file is not None and claimed[file.device, file.inode] == 1
                self._consider(rank, file if is_its_own else None, now)
        rows: Rows = {subject: _row(rank, now) for subject, rank in ranks.items() if rank.read is not None}
        if rows:
            rows[NODE] = {"flight_dumps_failed_total": self._failed}
        return rows

    def _consider(self, rank: _Rank, file: File | None, now: Instant) -> None:
        """The file was read if it is new and has come to rest; what an older one said stands no longer once it is gone
        or has changed."""
        before, rank.last = rank.last, file
        if file is not None and file.is_same(rank.read):
            return
        if file is None or not file.is_same(before):
            rank.read = rank.summary = None
            return
        if self._time.now().mono - now.mono > READ_FOR or self._ended:
            return  # it is new at the next look as well
        rank.read, rank.summary, rank.problem = file, None, ""
        try:
            rank.summary = self._summary(file)
        except ReadFailed as error:
            rank.problem = str(error)[:200]
            self._failed += 1

    def _summary(self, file: File) -> FlightSummary:
        """Raises ReadFailed."""
        if file.size > self._settings.largest:
            raise ReadFailed(f"it has {file.size} bytes; [sources.flight_recorder] largest = {self._settings.largest}")
        if len(self._left) > 1:
            raise ReadFailed("two processes that read dumps hang and cannot be ended; no other one is started")
        child = self._start()
        try:
            child.send(msgspec.json.encode(file))
            message = child.receive(self._settings.read_deadline, self._wake)
        except Ended as error:
            self._part_with(child)
            raise ReadFailed(f"the process that read it failed: {error}") from error
        if message is None:
            child.abandon()
            self._left.append(child)
            raise ReadFailed(f"it was not read within {self._settings.read_deadline:g} s")
        self._part_with(child)
        try:
            answer = ANSWERS.decode(message)
        except msgspec.MsgspecError as error:
            raise ReadFailed("the process that read it does not keep to its protocol") from error
        if isinstance(answer, Read):
            return answer.summary
        raise ReadFailed(answer.why)

    def _part_with(self, child: Talk) -> None:
        if not child.stop(ENDS_WITHIN):
            self._left.append(child)

    def _start_child(self) -> Child:
        settings = self._settings
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        home = Path(gpuguard.__file__).parents[1]
        if home.name not in ("site-packages", "dist-packages"):  # a checkout: the child is to be of the same
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(home), environment.get("PYTHONPATH"))))
        seconds = math.ceil(settings.read_deadline) + 1
        return Child((sys.executable, "-m", CHILD, str(settings.memory), str(seconds)), environment=environment)

    # --- apart -------------------------------------------------------------------------------------------------------

    def _asked(self, rank: _Rank, now: Instant) -> Callable[[], _Look]:
        """What is to be looked at, with all that another thread may change meanwhile taken now."""
        number, pid, owner, prefix, born, seen = rank.number, rank.pid, rank.owner, rank.prefix, rank.born, rank.seen
        boot = None if now.utc is None else now.utc - now.mono

        def ask() -> _Look:
            process = self._processes.stat(pid) if pid is not None and born is None else None
            began = born if process is None else process.started / TICKS
            oldest = None if boot is None else boot + (seen.mono if began is None else began) - CLOCKS_DIFFER
            files = [
                file for path in self._paths(number, pid, owner, prefix)
                if (file := _identified(path)) is not None and file.owner == owner
                and (oldest is None or file.modified / 1e9 >= oldest)
            ]  # fmt: skip
            return _Look(file=max(files, key=lambda file: file.modified, default=None), born=began)

        return ask

    def _paths(self, number: int, pid: int | None, owner: int | None, prefix: str | None) -> Iterator[str]:
        for begin in (prefix,) if prefix is not None else self._settings.prefixes:
            expanded = begin
            if begin.startswith("~/"):
                home = self._homes.of(owner) if owner is not None else None
                if not home:
                    continue
                expanded = f"{home.rstrip('/')}/{begin[2:]}"
            path = f"{expanded}{number}"
            root = str(self._root).rstrip("/")
            if pid is not None:
                yield f"{root}/proc/{pid}/root{path}"
            yield f"{root}{path}"


def _identified(path: str) -> File | None:
    try:
        return identify(path)
    except (OSError, ReadFailed):
        return None  # most ranks have no dump, and this is how that looks


def _is_prefix(text: str) -> bool:
    return text.startswith(("/", "~/")) and len(text) <= PREFIX_LIMIT and text.isprintable()


def _row(rank: _Rank, now: Instant) -> Values:
    """What the dump says; all of it unknown where it could not be read."""
    row: Values = dict.fromkeys(_COLUMNS)
    row["flight_problem"] = rank.problem
    if rank.read is not None and now.utc is not None:
        row["flight_age_seconds"] = max(0.0, now.utc - rank.read.modified / 1e9)
    if rank.summary is None:
        return row
    row["flight_groups"] = msgspec.json.encode(rank.summary).decode()
    row["flight_waits_in"] = waits_in(rank.summary)
    wait = held_up(rank.summary)
    row["flight_waits_state"] = wait[1].state if wait is not None else ""
    group = whole_group(rank.summary)
    if group is not None:
        row["flight_completed"], row["flight_enqueued"] = group.completed, group.enqueued
    return row


def build(settings: Settings, root: Path, clock: Clock) -> FlightRecorder:
    """The source for the machine under `root`."""
    return FlightRecorder(settings, root, clock)
