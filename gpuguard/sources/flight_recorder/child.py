"""The program that reads one dump: `python -m gpuguard.sources.flight_recorder.child`, its socket as file descriptor 0.

It is asked about one file, answers, and ends. What is in the file somebody else chose, so this runs with as much memory
and time as it is given and no more, first in the line of those that the kernel ends when memory runs out. Nothing of
it survives: neither a crash nor a hang reaches the agent.
"""

import os
import resource
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuguard.child.frames import Unframer, framed, receive
from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.sources.flight_recorder.dump import read_dump
from gpuguard.sources.flight_recorder.protocol import FILES, Answer, File, Read, Refused

FIRST_TO_GO = "1000"  # oom_score_adj(5): rather this than the agent, with which it shares a cgroup


def identify(path: str) -> File:
    """The file as it is now; nothing is opened for reading, so that a device or a pipe notices nothing.

    Raises  FileNotFoundError and other OSErrors; ReadFailed where it is no regular file
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _identified(path, handle)
    finally:
        os.close(handle)


def _identified(path: str, handle: int) -> File:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise ReadFailed(f"{path} is no regular file")
    return File(
        path=path, device=found.st_dev, inode=found.st_ino, owner=found.st_uid, size=found.st_size,
        modified=found.st_mtime_ns,
    )  # fmt: skip


def open_same(file: File) -> int:
    """That very file, open for reading.

    Raises  OSError; ReadFailed where another one is in its place
    """
    handle = os.open(file.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _identified(file.path, handle).is_same(file):
            raise ReadFailed("it changed since it was looked at")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(handle)


def answer(file: File) -> Answer:
    """What is in the file, or why that cannot be told."""
    try:
        with os.fdopen(open_same(file), "rb") as stream:
            return Read(summary=read_dump(stream))
    except (NotUnderstood, ReadFailed) as error:
        return Refused(why=str(error))
    except OSError as error:
        return Refused(why=f"it cannot be read: {error.strerror or error}; may the agent's user read it?")
    except MemoryError:
        pass  # answered below, once what filled the memory is gone
    return Refused(why="it takes more memory than [sources.flight_recorder] memory allows")


def limit(memory: int, seconds: int) -> None:
    """This process gets no more than so many bytes and seconds of a processor, and leaves no core behind."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, encoding="ascii")
    except OSError as error:
        print(f"the kernel may end others first: {error}", file=sys.stderr)


def main(words: Sequence[str]) -> int:
    """Exit code, once the question was answered or the agent went away. `words`: bytes of memory, seconds."""
    limit(int(words[0]), int(words[1]))
    stream = socket.socket(fileno=0)
    message = receive(stream, Unframer())
    if message is None:
        return 0
    stream.sendall(framed(msgspec.json.encode(answer(FILES.decode(message)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
