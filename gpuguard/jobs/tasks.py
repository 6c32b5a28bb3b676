"""What one process of a job has been doing, from what the kernel counts of it.

A process that waits can be told from one that works by what moves: time on processors (of all its threads, and of its
children), how often its first thread went to sleep by itself, bytes it read or wrote. `still` is for how long none of
these moved, between looks that prove it:

    dead lock, SIGSTOP          still, in state S (futex) or T
    waits in D for storage      still, in state D, and the cgroup's stall for storage grows
    waits in a collective       not still: the thread polls the GPU and keeps a processor busy; no progress either
    waits for its loaders       not still: they run, and are its children
    killed                      gone

So `still` tells who does nothing, never who gets on. A process whose children cannot be seen, or whose time on
processors is not told, is never called still. A little noise is none: libraries keep threads that look at the clock.
States are read at the look; D and T are one spell only as long as nothing moved, as a process that reads slowly is in D
at every look and yet another D each time.

Rates are over the last twenty seconds or so, and None where the counter is not told, or began anew: another process
with the same number, a child that ended and took its time with it.

Reads   rows of task:*, of model/jobs.py, TASK
Source  proc_pid_stat(5), proc_pid_io(5), Documentation/accounting/psi.rst
"""

from dataclasses import dataclass

import msgspec

from gpuguard.jobs.views import TaskView
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row
from gpuguard.model.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Below which a process does nothing, and over how long its rates are."""

    # Share of one processor: NCCL's watchdog of PyTorch looks at its work every 100 ms and takes some 0.3 %.
    cpu_noise: float = 0.02
    # A second: PyTorch's loop over its loaders wakes every 5 s to see whether they live (MP_STATUS_CHECK_INTERVAL).
    switches_noise: float = 0.3
    bytes_noise: float = 4096.0  # a second: a line of a log or a word of life now and then
    # Rates are over this long: two looks, so that what a process did before it died is not taken for life for a minute.
    over: Seconds = Seconds(20.0)
    stale: Seconds = Seconds(60.0)  # of one that was not looked at for so long no rates are told


DEFAULTS = Settings()
MARKS = 8  # at most; looks are five or ten seconds apart, so there are three to six


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The counters at one look; None where one was not told."""

    at: Instant
    cpu: float | None = None
    children_cpu: float | None = None
    switches: float | None = None
    moved: float | None = None
    stalled: float | None = None


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """One process as the last looks show it. `still` and `same` are since when it has been still and in
    its state; `started` tells it from a later one with its number."""

    pid: int = 0
    rank: int | None = None
    started: float | None = None
    name: str = ""
    state: str = ""
    same: Instant | None = None
    still: Instant | None = None
    gone: bool = False
    children: int = 0
    waits_in: str = ""
    marks: tuple[Mark, ...] = ()

    def seen(self, row: Row, at: Instant, settings: Settings = DEFAULTS) -> "TaskState":
        """With one more look."""
        pid = _pid(row)
        if row.number("task_gone") == 1:
            return msgspec.structs.replace(self, pid=pid, gone=True, still=None)
        before = self
        last = self.marks[-1] if self.marks else None
        if last is not None and (seconds_between(last.at, at) or 0.0) <= 0 and last.at.boot == at.boot:
            return self  # the same look again, with another source's columns
        mark = _mark(row, at)
        if self._is_another(row, mark):
            before, last = TaskState(), None
        state = row.text("task_state") or ""
        children = int(row.number("task_children") or 0)
        quiet = last is not None and _quiet(last, mark, children or before.children, settings)
        still = (before.still or (last.at if last is not None else None)) if quiet else None
        # Asleep or running it may have done much between two looks; stopped or in the kernel's hands it has not.
        same = before.same if state == before.state and (quiet or state not in ("D", "T", "t")) else None
        marks = [one for one in before.marks if (seconds_between(one.at, at) or 0.0) <= settings.over + 5.0]
        return TaskState(
            pid=pid, rank=_rank(row, before.rank),
            started=row.number("task_started_seconds") if last is None else before.started,
            name=row.text("task_name") or before.name, state=state, same=same or at, still=still, children=children,
            waits_in=row.text("task_waits_in") or "", marks=(*marks[-MARKS + 1 :], mark),
        )  # fmt: skip

    def view(self, at: Instant, settings: Settings = DEFAULTS) -> TaskView:
        """As the verdict sees it; how long something lasted is up to the last look, which proves it."""
        last = self.marks[-1] if self.marks else None
        if last is None:
            return TaskView(pid=self.pid, rank=self.rank, name=self.name, gone=self.gone)
        age = seconds_between(last.at, at)
        first = self.marks[0]
        if age is None or age > settings.stale or first is last:
            first = last = Mark(at=at)
        seconds = seconds_between(first.at, last.at) or 0.0
        until = self.marks[-1].at
        stalled = _rate(first.stalled, last.stalled, seconds)
        return TaskView(
            pid=self.pid, rank=self.rank, name=self.name, gone=self.gone, state=self.state,
            state_seconds=_lasted(self.same, until),
            cpu=_rate(first.cpu, last.cpu, seconds), children=self.children,
            children_cpu=_rate(first.children_cpu, last.children_cpu, seconds),
            io_bytes_per_second=_rate(first.moved, last.moved, seconds),
            io_stalled=None if stalled is None else min(1.0, stalled), still=_lasted(self.still, until),
            waits_in=self.waits_in,
        )  # fmt: skip

    def _is_another(self, row: Row, mark: Mark) -> bool:
        """Whether it is not the process of the looks before: it began at another time, or its counters began anew."""
        started = row.number("task_started_seconds")
        if None not in (started, self.started) and started != self.started:
            return True
        last = self.marks[-1] if self.marks else None
        return self.gone or (
            last is not None and last.cpu is not None and mark.cpu is not None and mark.cpu < last.cpu - 1.0
        )


def _pid(row: Row) -> int:
    number = row.subject.partition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0


def _rank(row: Row, before: int | None) -> int | None:
    """The number in its environment, which may not always be read."""
    told = row.text("task_rank")
    return int(told) if told is not None and told.isascii() and told.isdecimal() and len(told) < 10 else before


def _mark(row: Row, at: Instant) -> Mark:
    read, written = row.number("task_read_bytes_total"), row.number("task_written_bytes_total")
    return Mark(
        at=at, cpu=row.number("task_cpu_seconds_total"), children_cpu=row.number("task_children_cpu_seconds_total"),
        switches=row.number("task_switches_total"),
        moved=None if read is None and written is None else float(read or 0) + float(written or 0),
        stalled=row.number("task_io_stall_seconds_total"),
    )  # fmt: skip


def _quiet(last: Mark, now: Mark, children: int, settings: Settings) -> bool:
    """Whether nothing moved between two looks, as far as it is told; its time on processors must be."""
    seconds = seconds_between(last.at, now.at)
    if seconds is None or seconds <= 0:
        return False
    busy = _rate(last.cpu, now.cpu, seconds)
    if busy is None:
        return False
    if children or last.children_cpu or now.children_cpu:
        of_children = _rate(last.children_cpu, now.children_cpu, seconds)
        if of_children is None:
            return False  # one ended or cannot be seen
        busy += of_children
    if busy > settings.cpu_noise:
        return False
    for before, after, noise in (
        (last.switches, now.switches, settings.switches_noise), (last.moved, now.moved, settings.bytes_noise),
    ):  # fmt: skip
        if before is not None and after is not None and not 0 <= after - before <= noise * seconds:
            return False
    return True


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """Growth a second; None where one is not told, or the counter began anew."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return (after - before) / seconds


def _lasted(since: Instant | None, until: Instant) -> float:
    return 0.0 if since is None else max(0.0, seconds_between(since, until) or 0.0)
