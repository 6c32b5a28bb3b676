"""What the processes do that are on a GPU or take part in a training, and whose they are.

Reads     /proc/<pid>/{stat,status,cgroup}, wchan of those that sleep, io, and once of each process its environ;
          /proc/<pid>/stat of every process for the children of these; io.pressure of their control groups;
          /proc/pressure/io
Emits     a Sweep with a row for each such process and one of the node
Source    proc_pid_stat(5), proc_pid_status(5), proc_pid_io(5), proc_pid_environ(5); Linux fs/proc/array.c,
          Documentation/accounting/psi.rst (`total` is in microseconds), Documentation/admin-guide/cgroup-v2.rst

Which processes these are other sources say: NVML those on a GPU, whoever knows ranks those of the ranks. NVML's pids
are those of the host, so where not all of the host can be seen (in a container, with hidepid) they name somebody else
or nobody and are left out; a rank's pid is as the agent sees it.

What may hang in the kernel (environ locks the memory of the process, io waits for an exec) is read apart from the rest,
and asked once more only when it has come back. Of an environment nothing is kept but the few variables named here.
"""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.events import Batch, Cursor, Sweep
from gpuguard.model.ids import NODE, kind_of, task
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import NODE as OF_NODE
from gpuguard.model.jobs import TASK, Owner
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import read_bytes, whole
from gpuguard.sweeping.gpus import Bus
from gpuguard.sweeping.owners import VARIABLES, leaves_open, owner_of
from gpuguard.sweeping.processes import STAT_BYTES, Process, Processes, parse_stat, sees_host
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "tasks"
STALL = "io_stall_seconds_total"
QUANTITIES: tuple[Quantity, ...] = (*TASK, *(quantity for quantity in OF_NODE if quantity.name == STALL))

DEVICES = "CUDA_VISIBLE_DEVICES"
# The number of a rank, by who started it: torchrun, mpirun, Slurm's own.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
ALLOWED = frozenset({DEVICES, *RANKS, *VARIABLES})  # nothing else of an environment leaves this file
ENVIRON_BYTES = 256 * 1024  # Linux gives all of it up to what is asked for; launchers write some 20 KiB
GROUPS_BYTES = 16 * 1024  # some 13 lines of v1, a node that is a container makes each as long as 300
STATUS_BYTES = 64 * 1024  # who is in thousands of Unix groups has them all listed
_NUMBERS = re.compile(r"[0-9A-Za-z,:/_.-]{0,1024}", re.ASCII)  # sixteen MIG instances by UUID have some 800
_RANK = re.compile(r"[0-9]{1,9}", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z0-9_.]{1,64}", re.ASCII)
_TOTAL = re.compile(rb"^full .*\btotal=(\d{1,19})$", re.MULTILINE)
_UID = re.compile(rb"^Uid:\s(\d{1,10})\s", re.MULTILINE)
_SWITCHES = re.compile(rb"^voluntary_ctxt_switches:\s(\d{1,19})$", re.MULTILINE)
_IO = {name: re.compile(rf"^{name}: (\d{{1,19}})$".encode(), re.MULTILINE) for name in ("rchar", "wchar")}
SLEEPS = ("S", "D")
# What stays true of a process as long as it lives, and of whom something is still named after it.
IDENTITY = ("task_name", "task_job", "task_part", "task_job_claimed", "task_uid", "task_parent", "task_started_seconds")
WITHOUT_GPU = 0.5  # seconds that a start waits for ranks alone: no child process must be started for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(10.0)  # one look costs some 140 microseconds a process
    with_ranks: Seconds = Seconds(5.0)  # the same while ranks are known: a hang is judged within a minute
    children: Seconds = Seconds(10.0)  # all processes are looked at this often for children: ten microseconds each
    deadline: Seconds = Seconds(2.0)  # for all reads of one look together
    patience: Seconds = Seconds(3.0)  # how long a start waits for NVML to name processes: it takes a second
    most: int = 512  # so many processes at most, ranks first

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.with_ranks, self.deadline) <= 0 or min(self.children, self.patience, self.most) < 0:
            raise ValueError("every, with_ranks and deadline must be above 0, the others not below")


class _Named(NamedTuple):
    """Whom one source named last, and until when that holds."""

    until: float
    processes: frozenset[int]
    ranks: frozenset[int]


class _Seen(NamedTuple):
    """What was read of one process."""

    started: int
    groups: str | None
    values: Values


class _Children(NamedTuple):
    """Those that live, and processor ticks of all that ever did."""

    living: int
    ticks: int


class Tasks:
    """The processes of interest below a root."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Reads nothing yet."""
        self._settings, self._proc = settings, root / "proc"
        self._groups = root / "sys/fs/cgroup"
        self._processes = Processes(self._proc)
        self._apart: Apart[object] = Apart(NAME, settings.deadline)
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._lock = threading.Lock()
        self._named: dict[tuple[str, str], _Named] = {}
        self._last: dict[int, tuple[int, Values]] = {}  # by pid: when it was started, and who it is
        self._variables: dict[int, tuple[int, Mapping[str, str] | None]] = {}
        self._owners: dict[int, tuple[str, Mapping[str, str] | None, Owner]] = {}
        self._children: Mapping[int, _Children] | None = {}
        self._children_at = -1e9
        self.ranked = False

    def name(self, sweep: Sweep) -> None:
        """The processes that the sweep names are those of its source from now on."""
        processes: set[int] = set()
        ranks: set[int] = set()
        for subject, values in sweep.rows.items():
            kind = kind_of(subject)
            if kind == "process":
                processes.add(whole(subject.rpartition("/")[2]) or 0)
            elif kind == "rank" and isinstance(pid := values.get("rank_pid"), int):
                ranks.add(pid)
        with self._lock:
            self._named[sweep.source, sweep.rate] = _Named(
                sweep.at.mono + sweep.valid_for, frozenset(self._possible(processes)), frozenset(self._possible(ranks))
            )

    def _possible(self, pids: Iterable[int]) -> list[int]:
        return sorted(pid for pid in pids if 0 < pid < 2**31)[: self._settings.most]

    def sweep(self, now: Instant) -> Rows:
        """A row for each process that is named and can be seen, or was and is gone; one of the node.

        Raises  ReadFailed where it cannot be told whether the host's processes can be seen
        """
        with self._lock:
            self._named = {key: named for key, named in self._named.items() if named.until >= now.mono}
            ranks = {pid for named in self._named.values() for pid in named.ranks}
            processes = {pid for named in self._named.values() for pid in named.processes}
        sees = sees_host(self._proc)
        pids = (sorted(ranks) + sorted(processes - ranks if sees else ()))[: self._settings.most]
        self.ranked = bool(ranks)
        self._forget(pids)
        jobs = self._jobs(pids, now)
        found = self._apart.read(jobs)
        if "children" in jobs:
            children = found.get("children")
            self._children = children if isinstance(children, dict) else None
        rows: Rows = {}
        for pid in pids:
            if (values := self._row(pid, found, sees=sees, on_gpu=pid in processes)) is not None:
                rows[task(pid)] = values
        stall = found.get("node", {STALL: None})
        if isinstance(stall, dict) and stall:
            rows[NODE] = stall
        return rows

    def _forget(self, pids: Iterable[int]) -> None:
        keep = set(pids)
        self._last = {pid: known for pid, known in self._last.items() if pid in keep}
        self._variables = {pid: known for pid, known in self._variables.items() if pid in keep}
        self._owners = {pid: known for pid, known in self._owners.items() if pid in keep}

    def _jobs(self, pids: list[int], now: Instant) -> dict[str, Callable[[], object]]:
        """Everything to be read, by a key of its own for what may hang alone."""
        stalls: dict[str, float | None] = {}
        unified = self._groups / "unified"
        base = unified if unified.is_dir() else self._groups
        jobs: dict[str, Callable[[], object]] = {}
        for pid in pids:
            jobs[f"{pid}"] = partial(self._look, pid, base, stalls)
            jobs[f"{pid}/io"] = partial(read_moved, f"{self._proc}/{pid}")
            if pid not in self._variables:
                jobs[f"{pid}/environ"] = partial(read_variables, f"{self._proc}/{pid}")
        jobs["node"] = partial(read_stall, self._proc / "pressure/io", STALL)
        due = now.mono >= self._children_at + self._settings.children
        if pids and (due or not self._children or any(pid not in self._children for pid in pids)):
            self._children_at = now.mono
            jobs["children"] = partial(self._look_for_children, frozenset(pids))
        return jobs

    def _look(self, pid: int, base: Path, stalls: dict[str, float | None]) -> _Seen | None:
        """What the kernel says of one process; None where there is none.

        Raises  ReadFailed where it says nothing of one that is there
        """
        place = f"{self._proc}/{pid}"  # of text: a Path for each file costs a quarter of the read
        try:
            process = parse_stat(read_bytes(f"{place}/stat", STAT_BYTES))
            if process is None or process.state == "X":
                return None
            values = self._of_stat(process)
            values |= _of_status(read_bytes(f"{place}/status", STATUS_BYTES))
            groups = _groups(place)
        except Absent:
            return None
        except ReadFailed as error:
            if isinstance(error.__cause__, ProcessLookupError):
                return None  # it ended since it was opened
            raise
        if process.state in SLEEPS:
            values.update(_of_wchan(f"{place}/wchan"))
        path = unified_path(groups or "")
        if path is not None:
            if path not in stalls:
                stalls[path] = _stall_of(base / path / "io.pressure")
            if (stall := stalls[path]) is not None:
                values["task_io_stall_seconds_total"] = stall if stall >= 0 else None
        return _Seen(process.started, groups, values)

    def _of_stat(self, process: Process) -> Values:
        return {
            "task_name": process.comm, "task_state": process.state, "task_parent": process.parent, "task_gone": 0,
            "task_started_seconds": process.started / self._ticks, "task_cpu_seconds_total": process.cpu / self._ticks,
        }  # fmt: skip

    def _look_for_children(self, pids: frozenset[int]) -> Mapping[int, _Children]:
        """The children of these in one pass over all processes, with the ticks of those that ended and were waited
        for, so that the sum goes up only."""
        count, ticks = dict.fromkeys(pids, 0), dict.fromkeys(pids, 0)
        for text in self._processes.stats():
            parent = text[text.rfind(b")") + 4 :].partition(b" ")[0]
            mine, its = int(text[: text.find(b" ")]), int(parent) if parent.isdigit() else 0
            if (mine in pids or its in pids) and (process := parse_stat(text)) is not None:
                if mine in pids:
                    ticks[mine] += process.reaped
                if its in pids:
                    count[its] += process.state not in "ZX"
                    ticks[its] += process.cpu
        return {pid: _Children(count[pid], ticks[pid]) for pid in pids}

    def _row(self, pid: int, found: Mapping[str, object], *, sees: bool, on_gpu: bool) -> Values | None:
        seen = found.get(str(pid), ReadFailed)
        started, identity = self._last.get(pid, (None, None))
        if seen is None or (isinstance(seen, _Seen) and started not in (None, seen.started) and not on_gpu):
            # Its number may be another's by now. One that was never seen may only be hidden from here.
            return {**(identity or {}), "task_gone": 1} if sees or identity is not None else None
        unknown: Values = {quantity.name: None for quantity in TASK}
        if not isinstance(seen, _Seen):
            return {**unknown, **(identity or {})}
        values = {**seen.values, **self._of_environment(pid, seen, found)}
        moved = found.get(f"{pid}/io", dict.fromkeys(MOVED.values()))
        values.update(moved if isinstance(moved, dict) else {})
        if self._children is None:
            values["task_children"] = values["task_children_cpu_seconds_total"] = None
        elif pid in self._children:
            values["task_children"] = self._children[pid].living
            values["task_children_cpu_seconds_total"] = self._children[pid].ticks / self._ticks
        self._last[pid] = (seen.started, {column: values[column] for column in IDENTITY if column in values})
        return values

    def _of_environment(self, pid: int, seen: _Seen, found: Mapping[str, object]) -> Values:
        """Whose it is, and what its environment says. What was read before another process had its number is dropped;
        that one is asked in the next look."""
        answer = found.get(f"{pid}/environ")
        if isinstance(answer, _Environment):
            self._variables[pid] = (seen.started, answer.variables)
        known = self._variables.get(pid)
        if known is not None and known[0] != seen.started:
            known = None
            del self._variables[pid]
        variables = known[1] if known is not None else None
        values: Values = {}
        if variables is None:
            values["task_devices"] = values["task_rank"] = None
        else:
            if DEVICES in variables:
                values["task_devices"] = variables[DEVICES] if _NUMBERS.fullmatch(variables[DEVICES]) else None
            number = next((variables[name] for name in RANKS if name in variables), None)
            if number is not None:
                values["task_rank"] = number if _RANK.fullmatch(number) else None
        if seen.groups is None:
            return {**values, "task_job": None, "task_part": None, "task_job_claimed": None}
        cached = self._owners.get(pid)
        if cached is None or cached[:2] != (seen.groups, variables):
            cached = self._owners[pid] = (seen.groups, variables, owner_of(seen.groups, variables or {}))
        owner = cached[2]
        if owner.job is None and variables is None and leaves_open(seen.groups):
            return {**values, "task_job": None, "task_part": None, "task_job_claimed": None}
        values["task_job"], values["task_part"] = owner.job or "", owner.part
        if owner.job is not None:
            values["task_job_claimed"] = int(not owner.vouched)
        return values


class _Environment(NamedTuple):
    """What an environment says that may be told; None where it may not be read."""

    variables: Mapping[str, str] | None


MOVED = {"rchar": "task_read_bytes_total", "wchar": "task_written_bytes_total"}


def read_moved(place: str) -> Values:
    """How many bytes the process read and wrote: nothing where there is no such file, unknown where it may not be read.

    Shape   lines of `name: number`
    Source  proc_pid_io(5); whoever may not trace the process is refused
    """
    try:
        text = read_bytes(f"{place}/io")
    except Absent:
        return {}
    except ReadFailed:
        return dict.fromkeys(MOVED.values())
    return {column: _number(_IO[name], text) for name, column in MOVED.items()}


def read_variables(place: str) -> _Environment:
    """The allowed variables that the process was started with.

    Shape   `NAME=value` with a NUL behind each; the process may have written over it
    """
    try:
        text = read_bytes(f"{place}/environ", ENVIRON_BYTES)
    except Absent:
        return _Environment({})  # of a recorded machine; a process that ended is told as gone
    except ReadFailed:
        return _Environment(None)
    pairs = (part.partition(b"=") for part in text.split(b"\0"))
    return _Environment({
        name.decode(): value.decode("ascii", "replace")
        for name, _, value in pairs
        if name.isascii() and name.decode() in ALLOWED
    })  # fmt: skip


def read_stall(path: Path, column: str) -> Values:
    """For how long everything waited for storage: nothing where the kernel does not count it."""
    stall = _stall_of(path)
    return {} if stall is None else {column: stall if stall >= 0 else None}


def _stall_of(path: Path) -> float | None:
    """Seconds in which all waited for storage; None where nobody counts, below 0 where it could not be read.

    Shape   `full avg10=0.00 avg60=0.00 avg300=0.00 total=164462370`, in microseconds
    """
    try:
        match = _TOTAL.search(read_bytes(path))
    except Absent:
        return None
    except ReadFailed as error:
        # The file is there in a kernel that was started with psi=0 as well.
        refused = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EOPNOTSUPP
        return None if refused else -1.0
    return int(match[1]) / 1e6 if match is not None else -1.0


def unified_path(groups: str) -> str | None:
    """Where its group lies below the mount of cgroup v2; None for the top one, or one that cannot be reached."""
    path = next((line[3:] for line in groups.split("\n") if line.startswith("0::")), "")
    path = path.removesuffix(" (deleted)").strip("/")
    return path if path and ".." not in path.split("/") else None


def _groups(place: str) -> str | None:
    """The text of its cgroup file; '' where the kernel has no groups, None where it could not be read."""
    try:
        return read_bytes(f"{place}/cgroup", GROUPS_BYTES).decode("utf-8", "replace")
    except Absent:
        return ""
    except ReadFailed:
        return None


def _of_status(text: bytes) -> Values:
    values: Values = {}
    for column, pattern in (("task_uid", _UID), ("task_switches_total", _SWITCHES)):
        if pattern.search(text):
            values[column] = _number(pattern, text)
    return values


def _number(pattern: "re.Pattern[bytes]", text: bytes) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match is not None else None


def _of_wchan(path: str) -> Values:
    """The function that it sleeps in; `0` stands for one that may not be told."""
    try:
        name = read_bytes(path).decode("ascii", "replace").strip()
    except Absent:
        return {}
    except ReadFailed:
        name = "0"
    return {"task_waits_in": name if name != "0" and _FUNCTION.fullmatch(name) else None}


class TaskRounds(Rounds):
    """The loop over the tasks, which begins when somebody has named them."""

    onlooks = ("process_count", "process_name", "rank_pid")

    def __init__(self, settings: Settings, root: Path, clock: Clock) -> None:
        """Reads nothing yet."""
        self.tasks = Tasks(settings, root)
        self._settings, self._bus = settings, Bus(root)
        self._heard = {"gpu": threading.Event(), "rank": threading.Event()}
        super().__init__(NAME, self.tasks.sweep, clock, every=settings.every, rest=self._pause)

    def _pause(self) -> float:
        return self._settings.with_ranks if self.tasks.ranked else self._settings.every

    def onlook(self, sweep: Sweep) -> None:
        """What the sweep names is looked at from now on."""
        self.tasks.name(sweep)
        kinds = {kind_of(subject) for subject in sweep.rows}
        for kind in self._heard.keys() & kinds:
            self._heard[kind].set()

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """As of Rounds. The first look waits a moment for those who name processes, or `gpuguard jobs` without a daemon
        would see none."""
        if self._bus.gpus():
            self._heard["gpu"].wait(self._settings.patience)
        else:
            self._heard["rank"].wait(min(self._settings.patience, WITHOUT_GPU))
        super().run(emit, cursor)

    def stop(self) -> None:
        """As of Rounds; a start that waits goes on at once."""
        super().stop()
        for event in self._heard.values():
            event.set()


def build(settings: Settings, root: Path, clock: Clock) -> TaskRounds:
    """The source for the machine under `root`."""
    return TaskRounds(settings, root, clock)
