"""The socket that heartbeats come in by.

Shape   datagrams, each with the pid and uid of its sender as the kernel knows them, and at most one file
Source  unix(7): SO_PASSCRED, SCM_CREDENTIALS, SCM_RIGHTS; Linux net/unix/af_unix.c: a datagram that finds
        net.unix.max_dgram_qlen others waiting is not taken, and what one socket has under way is bounded by its
        send buffer (some 170 datagrams), so that one sender alone cannot fill a queue of 512

A file that came with a message and is no page is closed by a thread of its own, for the file system of a user may make
even that hang; and from whoever sent it no file is taken for a while.

What nobody can be kept from is to fill the queue for all others. So a user who does is shut out: the socket is made
anew, with a list of access that leaves that user out. Everybody else finds it when their next message fails, as after a
start of the agent; pages are read as before.
"""

import contextlib
import errno
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gpuguard.errors import Absent, ReadFailed
from gpuguard.progress import wire
from gpuguard.sources.heartbeats.pages import is_page

MODE = 0o666  # every user's jobs report; who is who the kernel says
BARRED = 60.0  # seconds without files from one who sent what is no page
SHUT_OUT = 300.0  # seconds without messages from one who fills the queue
OUT_AT_ONCE = 32  # users shut out at one time
# A list of access as the kernel keeps it: include/uapi/linux/posix_acl_xattr.h. Tags: 1 the owner, 2 a user by name, 4
# the group, 16 the most that anybody named may, 32 all others. Right 6 is to read and write, 0 none.
_ACL = "system.posix_acl_access"
_ENTRY = struct.Struct("<HHI")
_NOBODY = 0xFFFFFFFF
_CREDENTIALS = struct.Struct("3i")
_FILE = struct.Struct("i")
_WHO = socket.CMSG_SPACE(_CREDENTIALS.size)
# CMSG_SPACE would leave room for a second file.
_WITH_FILE = _WHO + socket.CMSG_LEN(_FILE.size)
# Plain numbers: what socket calls them by makes an object of each result of `|` and `&`.
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_PEEK = int(socket.MSG_PEEK)
_CUT = int(socket.MSG_TRUNC)
_LEVEL, _KIND = int(socket.SOL_SOCKET), int(socket.SCM_CREDENTIALS)
_ROOM = wire.MESSAGE_LIMIT + 1


class Received(NamedTuple):
    """One datagram. `cut` says that it was longer than a message may be; `page` is a descriptor that is a page and
    now belongs to the receiver; `stray` says that a file came that is none."""

    data: bytes
    pid: int
    uid: int
    cut: bool = False
    page: int | None = None
    stray: bool = False


class Door:
    """One bound socket."""

    def __init__(self, path: Path) -> None:
        """It listens at `path`, for everybody; a socket that nobody listens to any more was replaced.

        Raises  Absent where there is no folder for it, ReadFailed where somebody else listens there or nobody may
        """
        self.path = path
        self._barred: dict[int, float] = {}
        self._closers: dict[int, threading.Thread] = {}
        self._out: dict[int, float] = {}
        _refuse_living(path)
        self._socket, self._identity = self._listen()

    def _listen(self) -> tuple[socket.socket, tuple[int, int]]:
        """A socket that jobs find at the path from now on, whatever stood there."""
        fresh = self.path.with_name(f".{os.getpid()}.sock")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            # Before it can be found: a message without its sender's name is of no use.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            bound.bind(str(fresh))
            os.chmod(fresh, MODE)
            if self._out:
                os.setxattr(fresh, _ACL, access_but_for(self._out))
            status = fresh.stat()
            os.rename(fresh, self.path)
        except FileNotFoundError as error:
            bound.close()
            raise Absent(f"{self.path.parent} does not exist; make it, or set [sources.heartbeats] socket") from error
        except OSError as error:
            bound.close()
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise ReadFailed(
                f"cannot listen at {self.path}: {error.strerror or error}; set [sources.heartbeats] socket to a path "
                "of less than 100 letters in a folder that the agent may write to"
            ) from error
        return bound, (status.st_dev, status.st_ino)

    def shut_out(self, uid: int, now: float) -> bool:
        """Whether that user can send nothing more for SHUT_OUT seconds; root and our own user cannot be kept out."""
        if uid in (0, os.getuid()) or len(self._out) >= OUT_AT_ONCE:
            return False
        self._out[uid] = now + SHUT_OUT
        try:
            fresh = self._listen()
        except (Absent, ReadFailed):
            del self._out[uid]  # a file system without lists of access: who floods stays
            return False
        self._socket.close()
        self._socket, self._identity = fresh
        return True

    def let_in(self, now: float) -> None:
        """Whoever was shut out for long enough may send again."""
        over = [uid for uid, until in self._out.items() if now >= until]
        for uid in over:
            del self._out[uid]
        if over and self.stands():
            with contextlib.suppress(OSError):
                os.setxattr(self.path, _ACL, access_but_for(self._out))

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def stands(self) -> bool:
        """Whether jobs still find this socket at its path."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def receive(self, now: float) -> Received | None:
        """The next datagram; None when none waits."""
        room = _WITH_FILE
        try:
            if self._barred:
                # Who it is must be known before a file of his is let in.
                _, who, _, _ = self._socket.recvmsg(1, _WHO, _FLAGS | _PEEK)
                if self._is_barred(_sender(who)[1], now):
                    room = _WHO
            data, extra, flags, _ = self._socket.recvmsg(_ROOM, room, _FLAGS)
        except BlockingIOError:
            return None
        pid, uid = _sender(extra)
        if len(extra) <= 1:
            return Received(data, pid, uid, flags & _CUT != 0)
        page, stray = None, False
        for level, kind, value in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(value) >= _FILE.size:
                (descriptor,) = _FILE.unpack_from(value)
                if is_page(descriptor):
                    page = descriptor
                else:
                    stray = True
                    self._bar(uid, descriptor, now)
        return Received(data, pid, uid, flags & _CUT != 0, page, stray)

    def _is_barred(self, uid: int, now: float) -> bool:
        until = self._barred.get(uid)
        if until is None:
            return False
        if now < until or self._closers[uid].is_alive():
            return True
        del self._barred[uid], self._closers[uid]
        return False

    def _bar(self, uid: int, descriptor: int, now: float) -> None:
        closer = threading.Thread(target=os.close, args=(descriptor,), name="heartbeats-close", daemon=True)
        closer.start()
        self._barred[uid], self._closers[uid] = now + BARRED, closer

    def close(self) -> None:
        """Nobody listens any more; the file is gone, unless somebody else's stands there now."""
        if self.stands():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._socket.close()


def access_but_for(users: Iterable[int]) -> bytes:
    """Everybody may write to the socket, but for these."""
    named = [(2, 0, uid) for uid in sorted(users)]
    entries = [(1, 6, _NOBODY), *named, (4, 6, _NOBODY), (16, 6, _NOBODY), (32, 6, _NOBODY)]
    return struct.pack("<I", 2) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def _sender(extra: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Its pid and uid; pid 0 is a process that cannot be seen from here."""
    # The kernel puts it first.
    if extra and extra[0][:2] == (_LEVEL, _KIND) and len(extra[0][2]) >= _CREDENTIALS.size:
        pid, uid, _ = _CREDENTIALS.unpack_from(extra[0][2])
        return pid, uid
    return 0, -1


def _refuse_living(path: Path) -> None:
    """Nobody listens at the path.

    Raises  ReadFailed where somebody does, or where what stands there is no socket
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ReadFailed(f"{path} is no socket; remove it, or set [sources.heartbeats] socket to another path")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ReadFailed(f"{path} cannot be looked at: {error.strerror}; is its folder the agent's?") from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return
            raise ReadFailed(f"{path} cannot be asked whether anybody listens there: {error.strerror}") from error
    raise ReadFailed(
        f"another process listens at {path}; stop it (`ss -xlp` names it), or set [sources.heartbeats] socket to "
        "another path"
    )
