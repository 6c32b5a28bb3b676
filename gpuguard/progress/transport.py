"""How what a job tells comes to the agent: a page of memory that both see, and datagrams that never wait.

The page is a memfd, sealed so that neither side can make the other fault by shrinking it. A datagram carries it over;
after that most calls are one write into memory, and no system call.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import threading

from .wire import PAGE_SIZE

_CLOEXEC, _ALLOW_SEALING, _NOEXEC_SEAL = 0x1, 0x2, 0x8  # linux/memfd.h
_ADD_SEALS = getattr(fcntl, "F_ADD_SEALS", 1033)  # linux/fcntl.h; Python was built against headers of any age
_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW


_lost: list[mmap.mmap] = []


class SharedPage:
    """A page that can be handed to another process by its descriptor."""

    def __init__(self) -> None:
        """It is there, sealed, and all zero.

        Raises  OSError or AttributeError where this system has no such thing
        """
        try:
            self.fd = os.memfd_create("gpuguard-progress", _CLOEXEC | _ALLOW_SEALING | _NOEXEC_SEAL)
        except OSError:
            # Linux before 6.3 does not know the third flag; some sites let nobody go without it.
            self.fd = os.memfd_create("gpuguard-progress", _CLOEXEC | _ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, PAGE_SIZE)
            self.memory = mmap.mmap(self.fd, PAGE_SIZE)
            fcntl.fcntl(self.fd, _ADD_SEALS, _SEALS)
            self._identity = _identity(self.fd)
        except OSError:
            os.close(self.fd)
            raise

    def stands(self) -> bool:
        """Whether the descriptor is still its own: a program may close all that it did not open, as daemons do."""
        return _identity(self.fd) == self._identity

    def close(self) -> None:
        """This process has it no more; whoever was given it still has.

        Of one whose descriptor somebody closed nothing is closed: Python's mapping has a descriptor of its own, whose
        number may be that of somebody's file by now as well, so it is kept to the end.
        """
        if self.stands():
            self.memory.close()
            os.close(self.fd)
        else:
            _lost.append(self.memory)


def shared_page() -> SharedPage | None:
    """A page, or None where this system has none to give: then datagrams alone must do."""
    try:
        return SharedPage()
    except (OSError, AttributeError):
        return None


class Mail:
    """Datagrams to one address. Nothing waits and nothing is kept: what cannot go now is not sent."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._opening = threading.RLock()  # also of a signal handler in the midst of it

    def send(self, data: bytes, fd: int | None) -> bool:
        """Whether it was taken. It is not where nobody listens, the queue is full, or the path is none.

        The address is looked up anew each time, so an agent that was started again needs nothing of us.
        """
        if not self._path:
            return False
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", fd))]
        try:
            bound = self._socket or self._open()
            bound.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._path)
        except OSError:
            if self._socket is not None and _identity(self._socket.fileno()) != self._identity:
                self.close()  # the program closed it: another is opened with the next message
            return False
        return True

    def _open(self) -> socket.socket:
        """The socket, opened once: two threads that open one each would lose one."""
        with self._opening:
            if self._socket is None:
                opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
                self._identity = _identity(opened.fileno())
                self._socket = opened
            return self._socket

    def close(self) -> None:
        """The socket is closed; sending opens another."""
        bound, self._socket = self._socket, None
        if bound is None:
            return
        if _identity(bound.fileno()) == self._identity:
            bound.close()
        else:
            bound.detach()  # the program closed it, and the number may be another file's by now


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file it is; None where it is none."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
