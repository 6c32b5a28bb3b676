"""Runs `scontrol` so that neither its silence nor its chatter can hold the caller.

It runs in a process group of its own, without our environment, is read up to a limit, and is ended as a group when it
has answered, at the deadline, or when it says too much: health checkers have hung on a child that outlived its shell
and kept the pipe open. What cannot be ended because it is blocked in the kernel is kept count of.
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

from gpuguard.errors import ActionDeferred, ActionRefused

# Fixed, not $PATH: the process that runs this has the right to drain.
PLACES: Final = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin", "/usr/local/sbin")
# A node's record has 0.7 kB; the longest reason seen added 3 kB.
OUTPUT_LIMIT: Final = 64 * 1024
STUCK_LIMIT: Final = 4


class Answer(msgspec.Struct, frozen=True):
    """What one `scontrol` left behind."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its complaint as one short printable line."""
        words = " ".join(f"{self.err} {self.out}".split())
        return "".join(c if c.isprintable() else "?" for c in words)[:160] or "nothing"


class Scontrol:
    """The program, found once."""

    def __init__(self, path: str, conf: str) -> None:
        self.path = path or _found()
        # The locale and SLURM_TIME_FORMAT would change what is printed.
        self._environ: Mapping[str, str] = {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "standard",
            **({"SLURM_CONF": conf} if conf else {}),
        }
        self._stuck: list[subprocess.Popen[bytes]] = []

    def run(self, arguments: Sequence[str], until: float) -> Answer:
        """What it answered before `until`; nothing of it is left running.

        Units   until: seconds of time.monotonic()
        Raises  ActionDeferred when it hung, printed without end or could not be started now; ActionRefused when this
                machine has none
        """
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if len(self._stuck) >= STUCK_LIMIT:
            raise ActionDeferred(f"{STUCK_LIMIT} scontrol processes cannot be ended; does a file system hang?", 60.0)
        self.path = self.path or _found()
        if not self.path:
            raise ActionRefused(
                f"no scontrol in {', '.join(PLACES)}; install Slurm's client commands on this node or set "
                "`scontrol` in [actuators.slurm]"
            )
        try:
            process = subprocess.Popen(
                (self.path, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise ActionDeferred(f"{self.path} could not be started: {error.strerror}", 30.0) from error
        try:
            out, err = _collected(process, until)
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


def _found() -> str:
    for place in PLACES:
        path = f"{place}/scontrol"
        if os.access(path, os.X_OK):
            return path
    return ""


def _collected(process: subprocess.Popen[bytes], until: float) -> tuple[bytearray, bytearray]:
    """Standard output and error up to the process's end, even while a child of it keeps the pipes open."""
    out, err = bytearray(), bytearray()
    assert process.stdout is not None
    assert process.stderr is not None
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for pipe, buffer in ((process.stdout, out), (process.stderr, err)):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe.fileno(), selectors.EVENT_READ, buffer)
            while True:
                ready = [key for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                if not ready:
                    # Also the usual answer of a slurmctld that is away: scontrol itself goes on trying for 9 s.
                    raise ActionDeferred("scontrol had no answer in time and was ended; is slurmctld up?", 5.0)
                over = any(key.fd == ended for key in ready)
                for key in selector.get_map().values() if over else ready:
                    if key.fd != ended and not _pump(key.fd, key.data) and not over:
                        selector.unregister(key.fd)
                if len(out) > OUTPUT_LIMIT or len(err) > OUTPUT_LIMIT:
                    raise ActionDeferred(f"scontrol printed more than {OUTPUT_LIMIT} bytes and was ended", 60.0)
                if over:
                    return out, err
    finally:
        os.close(ended)


def _pump(fd: int, buffer: bytearray) -> bool:
    """All that can be read now is in the buffer, up to the limit; false at the end of the pipe."""
    while len(buffer) <= OUTPUT_LIMIT:
        try:
            data = os.read(fd, OUTPUT_LIMIT)
        except BlockingIOError:
            return True
        if not data:
            return False
        buffer += data
    return True
