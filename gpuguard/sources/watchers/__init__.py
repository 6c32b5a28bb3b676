"""Watchers: how far each rank is, by what its job writes anyway: no line of the job's code is changed.

Reads     what is watched: [[sources.watchers.watch]] of the configuration, *.toml in a folder that the scheduler's
          prolog fills, GPUGUARD_WATCH_* in the environment of processes that others found, where that may be read;
          and the files, logs and folders of checkpoints that these name
Emits     a Sweep with a row of each rank that is watched, and one of the node while anything is
Cursor    none: a log is read from where it was when the agent was started
Source    stat(2), proc_pid_environ(5), proc_pid_mountinfo(5)

A file on a server may hang. All files of one mount are looked at by one thread with a deadline; where it does not come
back their ranks are unknown, which is not the same as standing still. A rank that beats by itself is not contradicted:
of it only what it does not tell is said here.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, JobId, SubjectId, kind_of
from gpuguard.model.instants import Instant
from gpuguard.model.jobs import RANK, Owner, job_id
from gpuguard.model.readings import Quantity
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.watchers.followed import Followed
from gpuguard.sources.watchers.looks import Sight, opened
from gpuguard.sources.watchers.watch import Watch, absolute, named, of_environment, of_file, of_table, variables_of
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import read_bytes
from gpuguard.sweeping.owners import owner_of
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "watchers"
MOUNTS = "proc/self/mountinfo"
MOST = 1024  # watches in all
FILES = 1024  # files in the folder
FILE_BYTES = 65536  # of one of them
ENVIRON_BYTES = 262144  # what is beyond is not looked at
ASKED = 64  # processes whose environment is read in one round
PROCESS = "process "  # what a process asked for goes by this and its number
TOLD = 3  # troubles that are told by name
_TEXT = 160

QUANTITIES: tuple[Quantity, ...] = (
    *RANK,
    Quantity(name="watches", of="node", unit="count", low=0, high=1e6, help="Ranks whose files are watched."),
    Quantity(
        name="watches_unknown", of="node", unit="count", low=0, high=1e6,
        help="Those of which something could not be looked at: it hangs, is missing, or may not be read.",
    ),
    Quantity(
        name="watches_refused", of="node", unit="count", low=0, high=1e6,
        help="What was asked to be watched and cannot be understood, or may not be watched.",
    ),
    Quantity(
        name="watches_trouble", of="node", unit="text", kind="text", metric=None,
        help="What is wrong with these, the first few.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(5.0)  # limits are half a minute and more
    deadline: Seconds = Seconds(2.0)  # for all looks of a round together; a server that is slower is unknown
    folder: str = "/run/gpuguard/jobs.d"  # where a scheduler's prolog drops TOML files; empty for none
    environments: bool = True  # whether jobs may ask by GPUGUARD_WATCH_*; needs the right to read their environment
    linger: Seconds = Seconds(600.0)  # a rank whose process has ended is shown for so long
    # Watches of the site's own, each a table of job, rank, world, pid, uid, file, log, pattern,
    # checkpoints.
    watch: tuple[Mapping[str, str | int], ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin, and for a watch that cannot be understood."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")
        for number, table in enumerate(self.watch, start=1):
            try:
                of_table(table)
            except NotUnderstood as error:
                raise ValueError(f"watch: number {number}: {error}") from error


class _Dropped(NamedTuple):
    """A file in the folder as it was read: again only when it is another."""

    identity: tuple[int, int, int]
    watches: tuple[Watch, ...]
    uid: int
    trouble: str


class _Asked(NamedTuple):
    """What a process asks for by its environment; `watch` is None where it asks for nothing."""

    watch: Watch | None = None
    uid: int = 0
    trouble: str = ""


class _Process(NamedTuple):
    """A process that others found. Units: ticks since boot."""

    ticks: int
    group: int


class Watchers(Rounds):
    """The source. Everything that may hang is done by `Apart`; the rest is memory."""

    onlooks = ("process_name", "task_name", "rank_via")

    def __init__(
        self, settings: Settings, root: Path, clock: Clock, *,
        owner_of: Callable[[str, Mapping[str, str]], Owner] = owner_of,
    ) -> None:  # fmt: skip
        """Nothing was looked at yet."""
        super().__init__(NAME, self.sweep, clock, every=settings.every)
        self._settings, self._root, self._owner_of = settings, root, owner_of
        self._proc = root / "proc"
        self._apart: Apart[object] = Apart(NAME, settings.deadline)
        self._dropped: dict[str, _Dropped] = {}
        self._known: dict[int, _Process] = {}  # processes whose environment was read
        self._asking: dict[str, Followed] = {}  # by what asked for it: a file and its place in it, or a process
        self._refused: dict[str, str] = {}
        self._mistakes: dict[int, str] = {}  # of processes, by pid: each is asked but once
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._told: dict[SubjectId, tuple[float, frozenset[str]]] = {}
        self._site = tuple(of_table(table) for table in settings.watch)

    def onlook(self, sweep: Sweep) -> None:
        """Processes that others found may ask for something; what others know of a rank is left to them."""
        with self._lock:
            for subject, values in sweep.rows.items():
                kind = kind_of(subject)
                if kind in ("process", "task"):
                    pid = subject.rpartition("/" if kind == "process" else ":")[2]
                    if pid.isdigit() and len(self._seen) < MOST:
                        self._seen.add(int(pid))
                elif kind == "rank":
                    columns = frozenset(name for name, value in values.items() if value is not None)
                    self._told[subject] = (sweep.at.mono + sweep.valid_for, columns)

    def sweep(self, now: Instant) -> Rows:
        """A row of each rank that is watched."""
        with self._lock:
            seen, self._seen = self._seen, set()
            self._told = {subject: told for subject, told in self._told.items() if told[0] >= now.mono}
            told = dict(self._told)
        self._refused = {}
        self._follow(self._asked_for(seen), now.mono)
        trouble = self._look(now)
        rows: Rows = {}
        for one in self._asking.values():
            if one.subject in rows:
                continue  # what the site says comes before a file, and a file before a process
            theirs = told.get(one.subject, (0.0, frozenset()))[1]
            rows[one.subject] = {column: v for column, v in one.row(now.mono).items() if column not in theirs}
        if rows or self._refused:
            texts = [*self._refused.values(), *trouble.values()]
            rows[NODE] = {
                "watches": len(rows), "watches_unknown": len(trouble), "watches_refused": len(self._refused),
                "watches_trouble": "; ".join(map(_shown, texts[:TOLD])),
            }  # fmt: skip
        return rows

    def _asked_for(self, seen: Iterable[int]) -> dict[str, Callable[[], Followed]]:
        """Everything that is to be watched now, by who asked for it; how to begin with what is new."""
        wanted: dict[str, Callable[[], Followed]] = {}
        here = partial(_below, self._root)
        for number, watch in enumerate(self._site):
            job = named(watch.job, os.geteuid())
            wanted[f"site {number}"] = partial(Followed, watch, job, watch.uid, watch.uid, here)
        environments = self._to_ask(seen) if self._settings.environments else {}
        jobs: dict[str, Callable[[], object]] = {
            f"environ {pid}": partial(self._ask, pid) for pid in environments
        }  # fmt: skip
        if self._settings.folder:
            jobs["folder"] = self._read_folder
        answers = self._apart.read(jobs)
        folder = answers.get("folder")
        if isinstance(folder, dict):
            self._dropped = folder
        for name, dropped in self._dropped.items():
            if dropped.trouble:
                self._refused[name] = f"{name}: {dropped.trouble}"
            for number, watch in enumerate(dropped.watches):
                key = f"{name} {number} {dropped.identity}"
                wanted[key] = partial(Followed, watch, named(watch.job, dropped.uid), watch.uid, watch.uid, here)
        for pid, process in environments.items():
            asked = answers.get(f"environ {pid}")
            if not isinstance(asked, _Asked):
                continue  # it hangs, and is asked again when that is over
            self._known[pid] = process
            if asked.trouble:
                self._mistakes[pid] = f"process {pid}: {asked.trouble}"
            elif asked.watch is not None:
                wanted[f"{PROCESS}{pid} {process.ticks}"] = partial(
                    Followed, asked.watch, JobId(asked.watch.job), asked.uid, asked.uid,
                    partial(absolute, proc=self._proc / str(pid)),
                )  # fmt: skip
        self._mistakes = {pid: text for pid, text in self._mistakes.items() if pid in self._known}
        self._refused |= {f"process {pid}": text for pid, text in self._mistakes.items()}
        # What a process asked for stands until it is gone for long.
        for key, one in self._asking.items():
            if key.startswith(PROCESS):
                wanted.setdefault(key, partial(_same, one))
        return wanted

    def _follow(self, wanted: Mapping[str, Callable[[], Followed]], now: float) -> None:
        asking: dict[str, Followed] = {}
        for key, begin in wanted.items():
            if len(asking) >= MOST:
                self._refused["more"] = f"more than {MOST} watches"
                break
            one = self._asking.get(key) or begin()
            self._see_life(one, now)
            lingers = one.gone_since is not None and now - one.gone_since >= self._settings.linger
            if not (lingers and key.startswith(PROCESS)):
                asking[key] = one
        self._asking = asking

    def _see_life(self, one: Followed, now: float) -> None:
        """Whether its process, where one was named, has ended."""
        if one.watch.pid is None or one.gone_since is not None:
            return
        process = _process(self._proc, one.watch.pid)
        if process is None or one.ticks not in (None, process.ticks):
            one.gone_since = now
        else:
            one.ticks = process.ticks

    def _look(self, now: Instant) -> dict[str, str]:
        """Every watch saw what it could; what is wrong with those that could not see all, by who asked for them."""
        mounts = _mounts(self._root)
        by_mount: dict[str, list[tuple[str, str, Followed]]] = {}
        for key, one in self._asking.items():
            if one.gone_since is None:
                for via, path in one.paths.items():
                    by_mount.setdefault(_mount(path, mounts, one.uid if key.startswith(PROCESS) else None), []).append(
                        (key, via, one)
                    )
        utc = now.utc or 0.0
        answers = self._apart.read({mount: partial(_look_all, looks, utc) for mount, looks in by_mount.items()})
        sights: dict[str, dict[str, Sight | None]] = {key: {} for key in self._asking}
        trouble: dict[str, str] = {}
        for mount, looks in by_mount.items():
            answer = answers.get(mount)
            for key, via, one in looks:
                found = answer.get((key, via)) if isinstance(answer, dict) else "does not answer"
                if isinstance(found, Sight):
                    sights[key][via] = found
                else:
                    trouble[key] = f"{one.subject}: {one.paths[via]}: {found}"
        for key, one in self._asking.items():
            if one.gone_since is None:
                one.saw(sights[key], now.mono)
        return trouble

    def _read_folder(self) -> dict[str, _Dropped]:
        """What the files in the folder say. A name that cannot be is left out; a file that is as it was is not read."""
        folder = self._root / self._settings.folder.lstrip("/")
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".toml"))[:FILES]
        except (FileNotFoundError, NotADirectoryError):
            return {}
        before, found = self._dropped, {}
        for name in names:
            path = str(folder / name)
            try:
                found[path] = _read_dropped(path, before.get(path))
            except FileNotFoundError:
                continue  # an epilog took it away meanwhile
            except (OSError, ReadFailed) as error:
                found[path] = _Dropped((0, 0, 0), (), 0, str(error))
        return found

    def _to_ask(self, seen: Iterable[int]) -> dict[int, _Process]:
        """Processes whose environment was not read yet."""
        found: dict[int, _Process] = {}
        living: dict[int, _Process] = {}
        for pid in sorted({*seen, *self._known}):
            process = _process(self._proc, pid)
            if process is None:
                continue
            if self._known.get(pid) == process:
                living[pid] = process
            elif len(found) < ASKED:
                found[pid] = process
        self._known = living
        return found

    def _ask(self, pid: int) -> _Asked:
        """What the process asks for. An environment that may not be read asks for nothing, which is no mistake."""
        folder = self._proc / str(pid)
        try:
            variables = variables_of(read_bytes(folder / "environ", ENVIRON_BYTES))
            status = read_bytes(folder / "status").decode("ascii", "replace")
            cgroup = read_bytes(folder / "cgroup").decode("utf-8", "replace")
        except (Absent, ReadFailed):
            return _Asked()
        users = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
        process = _process(self._proc, pid)
        if len(set(users)) != 1 or process is None:
            return _Asked()  # a program that runs with another's rights has the environment of who started it
        uid = int(users[0])
        # By its cgroup alone: what else it says of its job anybody could say.
        job = self._owner_of(cgroup, {}).job or job_id("claimed", f"{uid}-{process.group}")
        try:
            return _Asked(of_environment(variables, job, pid), uid)
        except NotUnderstood as error:
            return _Asked(trouble=str(error))


def _same(one: Followed) -> Followed:
    return one


def _look_all(looks: list[tuple[str, str, Followed]], utc: float) -> dict[tuple[str, str], Sight | str]:
    """What each look found, or what is wrong; blocks as long as what is looked at."""
    found: dict[tuple[str, str], Sight | str] = {}
    for key, via, one in looks:
        try:
            found[key, via] = one.looks[via](utc)
        except OSError as error:
            found[key, via] = error.strerror or "cannot be read"
        except ReadFailed as error:
            found[key, via] = str(error)
    return found


def _read_dropped(path: str, before: _Dropped | None) -> _Dropped:
    with opened(path, None, stat.S_IFREG) as (reader, status):
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if before is not None and before.identity == identity:
            return before
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            return _Dropped(identity, (), status.st_uid, "others than root may write to it; chown root and chmod 644")
        if status.st_size > FILE_BYTES:
            return _Dropped(identity, (), status.st_uid, f"is longer than {FILE_BYTES} bytes")
        text = os.pread(reader, FILE_BYTES, 0)
    try:
        return _Dropped(identity, of_file(text), status.st_uid, "")
    except NotUnderstood as error:
        return _Dropped(identity, (), status.st_uid, str(error))


def _process(proc: Path, pid: int) -> _Process | None:
    """The process; None where there is none, or it is dead."""
    try:
        text = read_bytes(proc / str(pid) / "stat", 1024)
    except (Absent, ReadFailed):
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X", b"x"):
        return None
    return _Process(ticks=int(fields[19]), group=int(fields[2]))


def _mounts(root: Path) -> tuple[str, ...]:
    """Where file systems are mounted, the longest first; nothing where that is not told."""
    try:
        lines = (root / MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(sorted((f[4] for line in lines if len(f := line.split(" ")) > 5), key=len, reverse=True))


def _mount(path: str, mounts: tuple[str, ...], uid: int | None) -> str:
    """A name for what hangs together: the mount that the path lies on. What is reached through a process lies on its
    own mounts, which are not known: all that a user asks for is one."""
    if uid is not None:
        return f"user {uid}"
    return next((mount for mount in mounts if path == mount or path.startswith(mount.rstrip("/") + "/")), "/")


def _shown(text: str) -> str:
    """Short, and without what could break a terminal or a log: some of it somebody else wrote."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_TEXT])


def _below(root: Path, path: str) -> str:
    return str(root / path.lstrip("/"))


def build(settings: Settings, root: Path, clock: Clock) -> Watchers:
    """The source for the jobs on the machine under `root`."""
    return Watchers(settings, root, clock)
