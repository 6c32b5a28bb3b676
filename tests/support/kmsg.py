"""The real kernel ring in tests: writing to it without the kernel's rate limit, and a second reader beside ours."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.require import require

DEVICE = Path("/dev/kmsg")
RATE_LIMIT = Path("/proc/sys/kernel/printk_devkmsg")


def require_kmsg() -> None:
    """The test goes on only if the ring may be read and written, and its rate limit lifted."""
    present = os.access(DEVICE, os.R_OK | os.W_OK) and os.access(RATE_LIMIT, os.W_OK)
    require("/dev/kmsg", present, "run as root on a kernel whose ring this machine may write to")


@contextmanager
def unlimited_writes() -> Iterator[None]:
    """The kernel takes any number of lines from user space; afterwards its limit is what it was."""
    before = RATE_LIMIT.read_text(encoding="ascii")
    RATE_LIMIT.write_text("on\n", encoding="ascii")
    try:
        yield
    finally:
        RATE_LIMIT.write_text(before, encoding="ascii")


def say(*lines: str) -> None:
    """Each line is one record of the ring, with the facility user that the kernel gives to user space."""
    fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for line in lines:
            os.write(fd, f"<4>{line}\n".encode())
    finally:
        os.close(fd)


def push_out(lines: int = 400) -> None:
    """What earlier tests and drills wrote leaves a ring of 128 KiB: whoever reads all of it reads none of theirs."""
    say(*(f"filler {number}: {'.' * 900}" for number in range(lines)))


class SecondReader:
    """An independent reader of the same ring, from its end on: the records it saw, and the numbers it missed."""

    def __init__(self) -> None:
        """Open behind the newest record."""
        self._fd = os.open(DEVICE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_END)

    def read(self) -> list[tuple[int, str]]:
        """Number and text of every record since the last time."""
        records = []
        while True:
            try:
                head, _, body = os.read(self._fd, 16_384).partition(b";")
            except BlockingIOError:
                return records
            except BrokenPipeError:
                continue
            records.append((int(head.split(b",")[1]), body.partition(b"\n")[0].decode()))

    def close(self) -> None:
        """The descriptor is given back."""
        os.close(self._fd)
