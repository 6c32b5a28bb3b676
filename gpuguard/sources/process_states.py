"""Processes of the GPU stack that hang in the kernel, or died and are not gone.

Reads     /proc/<pid>/stat of every process; of those that hang or are dead also wchan and the switches in status; of
          a few living ones a sweep, where /proc/<pid>/fd leads
Emits     a Sweep with a row of the node
Source    proc(5), proc_pid_stat(5); Linux fs/proc/base.c: cmdline, environ and fd of a process that hangs may hang too

A process is of the GPU stack when it holds a device file of the driver's (known from when it could still be asked),
when its name or the kernel function that it sleeps in is the driver's, or when one it descends from is. What a process
that hangs holds is never asked. Where other users' files may not be read, names and ancestry alone tell. Threads of the
kernel are left out, but for the driver's.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.ids import NODE
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Quantity, Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.apart import Apart
from gpuguard.sweeping.files import read_text
from gpuguard.sweeping.gpus import DEVICES, Bus
from gpuguard.sweeping.processes import KTHREADD, Process, Processes, parse_stat, sees_host, state_of
from gpuguard.sweeping.rounds import Rounds, Rows

NAME = "process_states"
NAMES_TOLD = 5
FILES_ASKED = 256  # the driver is opened when a program begins: its files have low numbers
ANCESTORS = 16  # a launcher in a shell in a step of a job in a container
# Names of the driver's threads, services and tools, and of the kernel functions of its modules.
DRIVERS = re.compile(r"^(nvidia|nv[-_]|nvc:|uvm|irq/\d+-nv|dcgm|nvsm)", re.IGNORECASE)
WAITS_IN = re.compile(r"nvidia|^nv_|^_nv\d|^uvm|^rm_|^os_(acquire|cond|mem)|nvkms")

QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        name="gpu_stack_dstate_processes", of="node", unit="count", low=0, high=1e7,
        help="Processes of the GPU stack that hang in the kernel.",
    ),
    Quantity(
        name="gpu_stack_dstate_oldest_seconds", of="node", unit="seconds", low=0.0,
        help="How long the one of them that hangs longest was seen to.",
    ),
    Quantity(
        name="gpu_stack_dstate_names", of="node", unit="text", kind="text", metric=None,
        help="Names of those that hang, with pid and seconds.",
    ),
    Quantity(
        name="gpu_stack_zombies", of="node", unit="count", low=0, high=1e7,
        help="Processes of the GPU stack that died and are not gone.",
    ),
    Quantity(
        name="gpu_stack_zombies_oldest_seconds", of="node", unit="seconds", low=0.0,
        help="How long the one of them that is dead longest was seen to be.",
    ),
    Quantity(
        name="gpu_stack_zombie_names", of="node", unit="text", kind="text", metric=None,
        help="Names of those that are dead, with pid and seconds.",
    ),
    Quantity(
        name="dstate_processes", of="node", unit="count", low=0, high=1e7,
        help="Processes of the host that hang in the kernel or wait for a disk.",
    ),
    Quantity(
        name="zombie_processes", of="node", unit="count", low=0, high=1e7, help="Dead processes that are not gone."
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(30.0)  # one look costs some ten microseconds a process
    deadline: Seconds = Seconds(2.0)  # for the look at all processes
    asked: int = 10  # so many processes a sweep are asked which files they hold; 0 asks none

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


@dataclass(frozen=True, slots=True)
class _Spell:
    """A process in a bad state, and since when it was found so; another one, or one that ran, is a new spell."""

    started: int
    state: str
    cpu: int
    switches: str
    since: Instant


class ProcessStates:
    """The processes under a root."""

    def __init__(self, settings: Settings, root: Path) -> None:
        """Reads nothing yet."""
        self._settings, self._root = settings, root
        self._proc = root / "proc"
        self._processes = Processes(self._proc)
        self._bus = Bus(root)
        self._apart: Apart[Values] = Apart(NAME, settings.deadline)
        self._spells: dict[int, _Spell] = {}
        self._holders: dict[int, int] = {}  # pid -> when it started, of those that hold a device file
        self._asked: set[int] = set()
        self._to_ask: list[int] = []

    def sweep(self, now: Instant) -> Rows:
        """One row of the node; unknown while the look at the processes hangs.

        Raises  Absent where there is no GPU, or not all processes can be seen
        """
        if not self._bus.gpus() and not (self._root / "proc/driver/nvidia").is_dir():
            raise Absent(f"no NVIDIA GPU in {self._root / DEVICES}; it is looked for again later")
        if not sees_host(self._proc):
            raise Absent("not all processes of the host can be seen from here; run the agent outside of a container")
        found = self._apart.read({"processes": lambda: self._look(now)})
        unknown: Values = {quantity.name: None for quantity in QUANTITIES}
        return {NODE: found.get("processes", unknown)}

    def _look(self, now: Instant) -> Values:
        bad: list[Process] = []
        living: list[int] = []
        for text in self._processes.stats():
            state = state_of(text)
            if state in ("D", "Z"):
                process = parse_stat(text)
                bad += [process] if process is not None else []
            elif state:
                living.append(int(text[: text.find(b" ")]))
        self._ask_some(living)
        here = {*living, *(process.pid for process in bad)}
        self._holders = {pid: started for pid, started in self._holders.items() if pid in here}
        self._spells = {process.pid: self._spell(process, now) for process in bad}
        ours = [process for process in bad if self._is_ours(process)]
        values: Values = {}
        for state, count, word in (("D", "gpu_stack_dstate_processes", "dstate"), ("Z", "gpu_stack_zombies", "zombie")):
            found = [process for process in ours if process.state == state]
            ages = {process: seconds_between(self._spells[process.pid].since, now) or 0.0 for process in found}
            plural = "zombies" if state == "Z" else word
            values[count] = len(found)
            values[f"gpu_stack_{plural}_oldest_seconds"] = max(ages.values(), default=0.0)
            values[f"gpu_stack_{word}_names"] = _names(ages)
            values[f"{word}_processes"] = sum(process.state == state for process in bad)
        return values

    def _spell(self, process: Process, now: Instant) -> _Spell:
        """Since when it is so: as long as it neither ran nor was put to sleep again since the last look."""
        new = _Spell(process.started, process.state, process.cpu, self._switches(process.pid), now)
        old = self._spells.get(process.pid)
        if old is not None and (old.started, old.state, old.cpu, old.switches) == (
            new.started, new.state, new.cpu, new.switches,
        ):  # fmt: skip
            return old
        return new

    def _switches(self, pid: int) -> str:
        """How often it went to sleep; '' where that is not told. Its memory is not locked for this."""
        try:
            text = read_text(self._proc / str(pid) / "status")
        except (Absent, ReadFailed):
            return ""
        return ",".join(line.split()[-1] for line in text.splitlines() if "ctxt_switches" in line)

    def _is_ours(self, process: Process) -> bool:
        seen: set[int] = set()
        at: Process | None = process
        while at is not None and at.pid > KTHREADD and at.pid not in seen and len(seen) < ANCESTORS:
            seen.add(at.pid)
            if self._holders.get(at.pid) == at.started or DRIVERS.match(at.comm) or self._waits_in_driver(at):
                return True
            at = self._processes.stat(at.parent)
        return False

    def _waits_in_driver(self, process: Process) -> bool:
        try:
            return process.state == "D" and bool(WAITS_IN.search(read_text(self._proc / str(process.pid) / "wchan")))
        except (Absent, ReadFailed):
            return False

    def _ask_some(self, living: Sequence[int]) -> None:
        """A few of the living processes were asked whether they hold a device file of the driver's: new ones first, and
        all others in turn, as a program opens the GPU when it likes."""
        room = self._settings.asked
        self._asked.intersection_update(living)
        new = [pid for pid in living if pid not in self._asked][: room - room // 4]
        if not self._to_ask:
            self._to_ask = list(living)
        again, self._to_ask = self._to_ask[: room - len(new)], self._to_ask[room - len(new) :]
        self._asked.update(new)
        for pid in (*new, *again):
            process = self._processes.stat(pid)
            if process is None or process.state in ("D", "Z"):
                continue
            if self._holds_device(pid):
                self._holders[pid] = process.started
            else:
                self._holders.pop(pid, None)

    def _holds_device(self, pid: int) -> bool:
        folder = f"{self._proc}/{pid}/fd"
        try:
            with os.scandir(folder) as entries:
                files = islice(entries, FILES_ASKED)
                return any(os.readlink(f"{folder}/{file.name}").startswith("/dev/nvidia") for file in files)
        except OSError:
            return False  # another user's, or gone


def _names(ages: dict[Process, float]) -> str:
    oldest = sorted(ages, key=lambda process: (-ages[process], process.pid))
    told = ", ".join(f"{p.comm}({p.pid}) {ages[p]:.0f} s" for p in oldest[:NAMES_TOLD])
    return f"{told} and {len(oldest) - NAMES_TOLD} more" if len(oldest) > NAMES_TOLD else told


def build(settings: Settings, root: Path, clock: Clock) -> Rounds:
    """The source for the machine under `root`."""
    return Rounds(NAME, ProcessStates(settings, root).sweep, clock, every=settings.every)
