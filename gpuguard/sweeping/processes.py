"""The processes of the host, by one cheap read each.

Reads   /proc/<pid>/stat
Source  proc_pid_stat(5); Linux fs/proc/array.c (do_task_stat, which takes no lock of the address space: unlike
        cmdline it answers for a process that hangs in the kernel)
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gpuguard.errors import Absent, ReadFailed
from gpuguard.sweeping.files import read_bytes

KTHREADD = 2  # the kernel's thread that starts all its threads; only the host's own namespace has it
ANEW = 20
STAT_BYTES = 1024  # some fifty numbers and a name of at most 64 bytes
_NOT_SHOWN = re.compile(r"[^\x21-\x7e]")


class Process(NamedTuple):
    """One process as the kernel lists it. `state` is its letter, D for a sleep that no signal ends, Z for a zombie.

    Units   started: ticks since boot; cpu: ticks in user and kernel mode; reaped: the same of its children that ended
    """

    pid: int
    comm: str
    state: str
    parent: int
    started: int
    cpu: int
    threads: int
    reaped: int


def parse_stat(text: bytes) -> Process | None:
    """The process that a stat file tells of, None where it is cut off.

    Shape   `pid (comm) state ppid ...`; comm may hold anything: blanks, brackets, line ends, bytes of no encoding
    """
    begin, end = text.find(b"("), text.rfind(b")")
    rest = text[end + 2 :].split()
    if begin < 1 or end < begin or len(rest) < 20:
        return None
    try:
        return Process(
            int(text[:begin]), _NOT_SHOWN.sub("?", text[begin + 1 : end].decode("utf-8", "replace")),
            chr(rest[0][0]), int(rest[1]), int(rest[19]), int(rest[11]) + int(rest[12]), int(rest[17]),
            int(rest[13]) + int(rest[14]),
        )  # fmt: skip
    except ValueError:
        return None


def sees_host(proc: Path) -> bool:
    """Whether all processes of the host can be seen: not from a container, nor with hidepid.

    Raises  ReadFailed where that cannot be told
    Source  kernel/kthread.c: kthreadd is pid 2 in the first namespace; proc(5), hidepid
    """
    try:
        return read_bytes(proc / str(KTHREADD) / "stat", STAT_BYTES).startswith(b"2 (kthreadd) ")
    except Absent:
        return False
    except ReadFailed as error:
        if isinstance(error.__cause__, PermissionError):
            return False
        raise


class Processes:
    """The processes below a /proc, looked at again and again.

    A big server has two thousand threads of the kernel; but for those with `nv` in their names they are of no
    interest. They, and what the one who looks wants no more of, are left out until they are gone or ANEW looks went by.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._ignored: set[str] = set()
        self._looks = 0

    def ignore(self, pids: Iterable[int]) -> None:
        """These are left out from now on."""
        self._ignored.update(map(str, pids))

    def stats(self) -> Iterator[bytes]:
        """What each stat file says that can be read; a process that ends meanwhile is left out.

        Raises  ReadFailed where the folder cannot be listed, or no file can be opened: that nobody is seen then does
                not say that nobody is there
        """
        try:
            names = os.listdir(self._proc)
        except OSError as error:
            raise ReadFailed(f"{self._proc} cannot be listed: {error.strerror}") from error
        self._looks += 1
        if self._looks % ANEW == 0:
            self._ignored.clear()
        self._ignored.intersection_update(names)
        for name in names:
            if not ("0" < name[0] <= "9") or name in self._ignored:
                continue
            # Not read_bytes: this runs a thousand times a sweep.
            try:
                file = os.open(f"{self._proc}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            except OSError as error:
                raise ReadFailed(f"{self._proc}/{name}/stat cannot be opened: {error.strerror}") from error
            try:
                text = os.read(file, STAT_BYTES)
            except OSError:
                continue  # it ended since it was opened
            finally:
                os.close(file)
            end = text.rfind(b")")
            if text.startswith(b" 2 ", end + 3) and b"nv" not in text[:end].lower():
                self._ignored.add(name)
            elif end > 0:
                yield text

    def stat(self, pid: int) -> Process | None:
        """One process; None where it is gone."""
        try:
            return parse_stat(read_bytes(self._proc / str(pid) / "stat", STAT_BYTES))
        except (Absent, ReadFailed):
            return None


def state_of(stat: bytes) -> str:
    """The letter of the state alone, without the price of the rest; '' where it is cut off."""
    end = stat.rfind(b")")
    return chr(stat[end + 2]) if 0 < end < len(stat) - 2 else ""


def comm_of(stat: bytes) -> bytes:
    """The name alone, as the kernel gives it: at most 15 bytes of a program's."""
    return stat[stat.find(b"(") + 1 : stat.rfind(b")")]
