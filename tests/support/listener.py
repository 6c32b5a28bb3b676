"""What listens in the agent's place: a datagram socket, and what came in through it."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuguard.progress import wire

_CREDENTIALS = struct.Struct("3i")


@dataclass
class Received:
    """One datagram. `fd` is the descriptor that came with it; `pid` is who sent it, by the kernel's word."""

    message: dict[str, object]
    fd: int | None
    pid: int

    def page(self) -> wire.Page:
        """What stands in the page now."""
        assert self.fd is not None
        return wire.unpack_page(os.pread(self.fd, wire.PAGE_SIZE, 0))


class Listener:
    """Listens until it is closed; its folder's name is short enough for a socket's path."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gg-hb-"))
        self.path = str(self.folder / "s")
        self._received: list[Received] = []
        self.listen()

    def listen(self) -> None:
        """It listens, anew if it did before, as an agent that was restarted does."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(self.path)

    def fall_silent(self) -> None:
        """The agent has gone, and its socket with it."""
        self.socket.close()
        Path(self.path).unlink()

    def take(self, *, wait: bool = False) -> Received | None:
        """The next datagram, or None; with `wait` it is waited for."""
        try:
            data, rights, _, _ = self.socket.recvmsg(4096, 256, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        fd, pid = None, 0
        for level, kind, content in rights:
            assert level == socket.SOL_SOCKET
            if kind == socket.SCM_RIGHTS:
                (fd,) = struct.unpack("=i", content[:4])
            elif kind == socket.SCM_CREDENTIALS:
                pid = _CREDENTIALS.unpack(content)[0]
        received = Received(wire.decode(data), fd, pid)
        self._received.append(received)
        return received

    def expect(self) -> Received:
        """The next datagram, which must be there."""
        received = self.take()
        assert received is not None, "nothing was sent"
        return received

    def all(self) -> list[Received]:
        """Every datagram that is there."""
        return list(iter(self.take, None))

    def close(self) -> None:
        """Nothing is left of it."""
        for received in self._received:
            if received.fd is not None:
                os.close(received.fd)
        self.socket.close()
        shutil.rmtree(self.folder)
