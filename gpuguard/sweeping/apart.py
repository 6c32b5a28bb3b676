"""Reads that may hang, in a thread of their own, with one deadline for all.

A read of a device or a file system that hangs cannot be interrupted. Its thread is left behind, and what it reads is
not asked again until it has come back: at most one thread a key is ever lost.

One thread makes all reads, one after the other, because ten that take turns cost ten times as much; where it gets
stuck, those that are left get a thread each.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpuguard.errors import GpuguardError

T = TypeVar("T")
Jobs = deque[tuple[str, Callable[[], T]]]
# The one thread is stuck when it has not done everything after this share of the deadline.
PATIENCE = 0.25


class Apart(Generic[T]):
    """Asks many and waits for as long as one may take. Units: deadline in seconds."""

    def __init__(self, name: str, deadline: float) -> None:
        self._name, self._deadline = name, deadline
        self._pending: dict[str, threading.Thread] = {}

    def read(self, jobs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """What came back within the deadline, by key; what hangs, or could not be read, is missing."""
        self._pending = {key: thread for key, thread in self._pending.items() if thread.is_alive()}
        todo: Jobs[T] = deque((key, job) for key, job in jobs.items() if key not in self._pending)
        if not todo:
            return {}
        began = time.monotonic()
        answers = _Answers[T]({key for key, _ in todo})
        first = self._start(todo, answers)
        answers.wait(began + PATIENCE * self._deadline)
        if answers.missing:
            left = _taken(todo)
            threads = {key: self._start(deque([(key, job)]), answers) for key, job in left}
            answers.wait(began + self._deadline)
            self._pending.update({key: threads.get(key, first) for key in answers.missing})
        return answers.found

    def _start(self, todo: Jobs[T], answers: "_Answers[T]") -> threading.Thread:
        thread = threading.Thread(target=_work, args=(todo, answers), name=f"apart-{self._name}", daemon=True)
        thread.start()
        return thread

    @property
    def hanging(self) -> frozenset[str]:
        """The keys whose last read has not come back."""
        return frozenset(key for key, thread in self._pending.items() if thread.is_alive())


class _Answers(Generic[T]):
    """What has come back so far. Threads that come late put theirs where nobody looks any more."""

    def __init__(self, keys: set[str]) -> None:
        self.missing = keys
        self.found: dict[str, T] = {}
        self.came: deque[tuple[str, tuple[T, ...]]] = deque()  # without a value what could not be read
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, until: float) -> None:
        """All have come back, or the time is up."""
        while self.missing:
            try:
                self.ended.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self._take()
                return
            self._take()

    def _take(self) -> None:
        while self.came:
            key, values = self.came.popleft()
            self.missing.discard(key)
            if values:
                self.found[key] = values[0]


def _taken(todo: Jobs[T]) -> Jobs[T]:
    """The jobs that no thread has begun; no thread will begin them now."""
    left: Jobs[T] = deque()
    while True:
        try:
            left.appendleft(todo.pop())
        except IndexError:
            return left


def _work(todo: Jobs[T], answers: _Answers[T]) -> None:
    """Every job was done; who waits is woken once, as that costs more than a job."""
    while True:
        try:
            key, job = todo.popleft()
        except IndexError:
            answers.ended.put(None)
            return
        try:
            answers.came.append((key, (job(),)))
        except (OSError, GpuguardError):
            answers.came.append((key, ()))
