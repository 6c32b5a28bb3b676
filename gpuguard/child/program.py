"""Runs a program for its answer so that neither its silence nor its chatter can hold the caller.

It runs in a process group of its own, in the environment it is given and no other, is read up to a limit, and is ended
as a group when it has answered, at the deadline, or when it says too much: health checkers have hung on a child that
outlived its shell and kept the pipe open. What cannot be ended because it is blocked in the kernel is kept count of.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gpuguard.errors import GpuguardError

CHUNK: Final = 64 * 1024
# So many that cannot be ended are left behind; more would only make a machine that hangs hang more.
STUCK_LIMIT: Final = 4


class Unanswered(GpuguardError):
    """No answer came that could be used. `next_in` is when it is worth asking again.

    Units   next_in: seconds
    """

    def __init__(self, message: str, next_in: float) -> None:
        super().__init__(message)
        self.next_in = next_in


class Told(Unanswered):
    """It was ended because whoever waited for it was told to stop."""


class Answer(msgspec.Struct, frozen=True):
    """What one run of a program left behind."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its complaint as one short printable line."""
        words = " ".join(f"{self.err} {self.out}".split())
        return "".join(c if c.isprintable() else "?" for c in words)[:160] or "nothing"


class Program:
    """One program that is run again and again. `limit` is how many bytes it may print to each stream."""

    def __init__(self, environ: Mapping[str, str], *, limit: int = CHUNK) -> None:
        self._environ, self._limit = environ, limit
        self._stuck: list[subprocess.Popen[bytes]] = []

    def run(self, path: str, arguments: Sequence[str], until: float, told: int | None = None) -> Answer:
        """What it answered before `until`; nothing of it is left running.

        `told` is a descriptor that can be read once it is not to be waited for any more.
        Units   until: seconds of time.monotonic()
        Raises  Unanswered when it hung, printed without end or could not be started now; Told when `told` could be read
        """
        name = os.path.basename(path)
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if len(self._stuck) >= STUCK_LIMIT:
            raise Unanswered(f"{STUCK_LIMIT} {name} processes cannot be ended; does a file system hang?", 60.0)
        try:
            process = subprocess.Popen(
                (path, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self._environ, cwd="/", start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise Unanswered(f"{path} could not be started: {error.strerror}", 30.0) from error
        try:
            out, err = self._collected(process, name, until, told)
        finally:
            self._end(process)
        return Answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """The whole group is gone. It is killed before its leader is reaped, so the group's number is still ours."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._stuck.append(process)

    def _collected(
        self, process: subprocess.Popen[bytes], name: str, until: float, told: int | None
    ) -> tuple[bytearray, bytearray]:
        """Standard output and error up to the process's end, even while a child of it keeps the pipes open."""
        out, err = bytearray(), bytearray()
        assert process.stdout is not None
        assert process.stderr is not None
        ended = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(ended, selectors.EVENT_READ)
                if told is not None:
                    selector.register(told, selectors.EVENT_READ)
                for pipe, buffer in ((process.stdout, out), (process.stderr, err)):
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe.fileno(), selectors.EVENT_READ, buffer)
                while True:
                    ready = [key for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                    if not ready:
                        raise Unanswered(f"{name} had no answer in time and was ended", 5.0)
                    over = any(key.fd == ended for key in ready)
                    if not over and any(key.fd == told for key in ready):
                        raise Told(f"{name} was ended, as it was told to be", 5.0)
                    for key in selector.get_map().values() if over else ready:
                        if key.fd not in (ended, told) and not self._pump(key.fd, key.data) and not over:
                            selector.unregister(key.fd)
                    if len(out) > self._limit or len(err) > self._limit:
                        raise Unanswered(f"{name} printed more than {self._limit} bytes and was ended", 60.0)
                    if over:
                        return out, err
        finally:
            os.close(ended)

    def _pump(self, fd: int, buffer: bytearray) -> bool:
        """All that can be read now is in the buffer, up to the limit; false at the end of the pipe."""
        while len(buffer) <= self._limit:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            buffer += data
        return True
