"""What a job's side of heartbeats sends and writes, by the wire format alone."""

import fcntl
import json
import os
import socket
from pathlib import Path

from gpuguard.progress import wire
from gpuguard.sources.heartbeats.door import Received
from tests.support.trees import put


def message(rank: int = 0, **keys: object) -> bytes:
    """One message."""
    return json.dumps({"v": wire.VERSION, "rank": rank} | keys, separators=(",", ":")).encode()


def state(
    n: int, *, at: float, step: int | None = None, phase: str = "step", since: float = 0.0, loss: float | None = None,
    saved: int | None = None, saved_at: float = 0.0, done: bool = False, preempt: int = 0,
    flat: int = 0, magic: bytes = wire.PAGE_MAGIC,
) -> bytes:  # fmt: skip
    """What stands at the beginning of a page."""
    flags = (wire.FLAG_DONE if done else 0) | (wire.FLAG_LOSS if loss is not None else 0)
    return wire.PAGE.pack(
        magic, n, at, wire.NONE if step is None else step, phase.encode(), since, loss or 0.0,
        wire.NONE if saved is None else saved, saved_at, flags, preempt, flat,
    )  # fmt: skip


def page(raw: bytes = b"", *, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, size: int = wire.PAGE_SIZE) -> int:
    """A descriptor of a page that says this."""
    descriptor = os.memfd_create("progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, raw, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Voice:
    """One process's way to the agent."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.connect(str(path))

    def say(self, data: bytes, *files: int) -> bool:
        """Whether the message was taken; one for which there is no room is lost."""
        try:
            socket.send_fds(self.socket, [data], list(files)) if files else self.socket.send(data)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()


def sender(
    root: Path, pid: int, *, uid: int = 1000, ticks: int = 1000, cgroup: str = "0::/user.slice", parent: int = 1,
    group: int | None = None, session: int = 77, state: str = "S",
) -> None:  # fmt: skip
    """A process below `root`/proc, with what is asked of a sender."""
    stat = f"{pid} (a) b) {state} {parent} {group or pid} {session} 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 {ticks} 1 1 1"
    status = f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}"
    put(root / "proc" / str(pid), {"stat": stat, "status": status, "cgroup": cgroup})


def came(data: bytes, pid: int = 50, uid: int = 1000, **more: object) -> Received:
    """One datagram as the door hands it on."""
    return Received(data, pid, uid, **more)  # type: ignore[arg-type]
