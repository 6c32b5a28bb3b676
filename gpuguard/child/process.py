"""One child process, seen from its parent: started, talked to with a deadline, ended or abandoned; never waited for.

A process that hangs in a driver cannot be ended by anybody, not even by SIGKILL: the signal stays pending until the
call returns, which may be never. So nothing here blocks on a child: messages come with a deadline, its end is asked for
without waiting, and one that does not end is left behind. Whoever abandons a child asks `gone` now and then, which
reaps it once it has ended.

The child gets its end of the socket as file descriptor 0, and must end itself when that is closed: so it goes away
with its parent, however that one ended.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuguard.child.frames import CHUNK, Unframer, framed
from gpuguard.errors import GpuguardError, NotUnderstood, ReadFailed

LOOK_AGAIN = 0.02  # between two looks whether a child that was asked to end has ended


class Ended(GpuguardError):
    """The child is gone or closed its end: nothing will come from it any more."""


class Child:
    """A running program at the other end of a socket.

    Raises  ReadFailed when it cannot be started
    """

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = ours
        self._unframer = Unframer()
        try:
            # Not by subprocess, which complains of a process that it knows to be left behind. A session of its own: a
            # Ctrl-C on the agent's terminal must not end the child in the middle of a call.
            self._pid = os.posix_spawn(
                arguments[0], list(arguments), dict(os.environ if environment is None else environment),
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ),
                setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE,),
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise ReadFailed(f"cannot start {arguments[0]}: {error.strerror}; is gpuguard installed whole?") from error
        finally:
            theirs.close()
        self._code: int | None = None
        ours.setblocking(False)

    @property
    def pid(self) -> int:
        """Its process id, good until `gone` is true."""
        return self._pid

    def send(self, message: bytes) -> None:
        """The message is on its way.

        Raises  Ended when nobody reads at the other end, be it gone or stuck with a full socket
        """
        data = framed(message)
        try:
            sent = self._socket.send(data)
        except OSError as error:
            raise Ended(f"the child reads no more: {error.strerror or error}") from error
        if sent != len(data):
            raise Ended("the child does not read what it is sent")

    def receive(self, timeout: float, *wakes: int) -> bytes | None:
        """Its next message; None when `timeout` seconds passed, or one of the file descriptors `wakes` can be read.

        Raises  Ended once it is gone and everything that it said was taken
        """
        ends = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        for wake in wakes:
            poll.register(wake, select.POLLIN)
        while True:
            try:
                message = self._unframer.next()
            except NotUnderstood as error:
                raise Ended(f"the child does not keep to its protocol: {error}") from error
            if message is not None:
                return message
            ready = dict(poll.poll(max(0.0, ends - time.monotonic()) * 1000))
            if self._socket.fileno() in ready:
                self._take()
            elif ready or time.monotonic() >= ends:
                return None

    def _take(self) -> None:
        try:
            more = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:  # it ended before it read what it was sent
            raise Ended(self._how_it_ended()) from None
        except OSError as error:
            raise Ended(f"the child's socket broke: {error.strerror or error}") from error
        if not more:
            raise Ended(self._how_it_ended())
        self._unframer.feed(more)

    def _how_it_ended(self) -> str:
        # The socket closes a moment before the process can be reaped.
        ends = time.monotonic() + 0.2
        while not self.gone() and time.monotonic() < ends:
            time.sleep(LOOK_AGAIN)
        code = self._code
        if code is None:
            return "the child closed its socket"
        if code < 0:
            with contextlib.suppress(ValueError):  # a number that Python has no name for
                return f"the child was ended by {signal.Signals(-code).name}"
        return f"the child ended with exit code {abs(code)}"

    def gone(self) -> bool:
        """Whether it has ended; it is reaped then."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # somebody reaped it for us
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def state(self) -> str:
        """The kernel's letter for what it does (D hangs in the kernel, S waits, R runs); '' when it is gone.

        Reads   /proc/<pid>/stat, the field after the closing parenthesis of the name
        """
        if self.gone():
            return ""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text.rpartition(")")[2].strip()[:1]

    def stop(self, within: float) -> bool:
        """Whether it ended by itself within so many seconds of being told to; otherwise it is abandoned.

        To close its socket is to tell it: it then leaves the driver in order, which SIGKILL would not.
        """
        self._socket.close()
        ends = time.monotonic() + within
        while not self.gone() and time.monotonic() < ends:
            time.sleep(LOOK_AGAIN)
        if self.gone():
            return True
        self.abandon()
        return False

    def abandon(self) -> None:
        """It was sent SIGKILL and will not be heard again; whether that ends it is asked with `gone`."""
        self._socket.close()
        if not self.gone():
            os.kill(self._pid, signal.SIGKILL)
