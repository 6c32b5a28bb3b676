"""Where records come from: the real ring, or the file of a recorded machine. Neither ever blocks in `read`."""

import errno
import os
import select
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuguard.errors import Absent, ReadFailed

RECORD_MAX = 16_384  # the kernel prints at most 8 KiB a record (CONSOLE_EXT_LOG_MAX), 2 KiB since 6.4
BUFFER_MAX = 1 << 20
LINE_MAX = 65_536  # of a recorded machine's file; no kernel prints longer
LINES_AHEAD = 10_000


class Ring(Protocol):
    """Where records come from. `read` never blocks: one record, or None when there is none now.

    Raises  OSError as the kernel has it: EPIPE when records were overwritten, EINVAL when one was too large
    """

    def read(self) -> bytes | None: ...

    def wait(self, timeout: float) -> None: ...

    def pause(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class DeviceRing:
    """The real ring, through a descriptor of its own.

    Raises  Absent where there is no such device; ReadFailed where it may not be read
    """

    def __init__(self, path: Path, stop: int) -> None:
        """Open at the oldest record that the kernel still has. `stop` becomes readable when waiting must end."""
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Absent(f"{path} does not exist; a container needs the host's /dev/kmsg") from error
        except PermissionError as error:
            raise ReadFailed(
                f"{path} may not be read: {error.strerror}; give the agent CAP_SYSLOG (its unit does), "
                "or set the sysctl kernel.dmesg_restrict to 0"
            ) from error
        except OSError as error:
            raise ReadFailed(f"{path} cannot be opened: {error.strerror}") from error
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(stop, select.POLLIN)
        self._stop = select.poll()
        self._stop.register(stop, select.POLLIN)
        self._size = RECORD_MAX
        self._read = _reader_with_lock_held()

    def read(self) -> bytes | None:
        """One record, None when there is none now. A record beyond the buffer is skipped by the kernel."""
        try:
            return self._read(self._fd, self._size)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                self._size = min(self._size * 2, BUFFER_MAX)
            raise

    def wait(self, timeout: float) -> None:
        """Returns when there is a record, when told to stop, or after `timeout` seconds."""
        self._poll.poll(timeout * 1000)

    def pause(self, seconds: float) -> None:
        """Returns after so many seconds, or when told to stop."""
        self._stop.poll(seconds * 1000)

    def close(self) -> None:
        """The descriptor is given back."""
        os.close(self._fd)


class FileRing:
    """The ring of a recorded machine: a regular file of records, read whole and then followed as it grows.

    Raises  Absent where there is no such file; ReadFailed where it may not be read
    """

    def __init__(self, path: Path, stop: int, poll_every: float) -> None:
        """Open at the first line."""
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise Absent(f"{path} does not exist; a recorded machine's kernel log lies there") from error
        except OSError as error:
            raise ReadFailed(f"{path} cannot be read: {error.strerror}") from error
        self._stop = select.poll()
        self._stop.register(stop, select.POLLIN)
        self._every = poll_every
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._offset = 0

    def newest_micros(self) -> int | None:
        """The stamp of the last whole record that is there now."""
        size = os.fstat(self._file.fileno()).st_size
        end = os.pread(self._file.fileno(), LINE_MAX, max(0, size - LINE_MAX))
        for line in reversed(end.split(b"\n")[:-1]):
            fields = line.partition(b";")[0].split(b",", 3)
            if len(fields) == 4 and fields[2].isdigit():
                return int(fields[2][:20])
        return None

    def read(self) -> bytes | None:
        """One record with its dictionary lines, None when there is no whole one now."""
        if not self._lines:
            self._fill()
        while self._lines and (not self._lines[0].strip() or self._lines[0].startswith(b" ")):
            self._lines.popleft()  # empty, or the dictionary of a record that was read before it was there
        if not self._lines:
            return None
        record = self._lines.popleft()
        while self._lines and self._lines[0].startswith(b" "):
            record += b"\n" + self._lines.popleft()
        return record

    def wait(self, timeout: float) -> None:
        """Returns when it is time to look again, or when told to stop."""
        self._stop.poll(min(timeout, self._every) * 1000)

    def pause(self, seconds: float) -> None:
        """Returns after so many seconds, or when told to stop."""
        self._stop.poll(seconds * 1000)

    def close(self) -> None:
        """The file is closed."""
        self._file.close()

    def _fill(self) -> None:
        if os.fstat(self._file.fileno()).st_size < self._offset:
            # Written anew: numbers already seen are skipped, so nothing is reported twice.
            self._file.seek(0)
            self._offset, self._rest = 0, b""
        while len(self._lines) < LINES_AHEAD and (chunk := self._file.read(LINE_MAX)):
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(lines)
            if len(self._rest) > LINE_MAX:
                # No record is that long: what is kept is malformed or truncated, and the next line starts clean.
                self._rest = self._rest[:LINE_MAX]


def _reader_with_lock_held() -> Callable[[int, int], bytes]:
    """read(2) that keeps the interpreter's lock, for descriptors that never block; os.read where libc cannot be loaded.

    Raises  (the function that it returns) OSError as os.read does
    """
    try:
        import ctypes

        libc = ctypes.PyDLL(None, use_errno=True)
        read = libc.read
    except (ImportError, OSError, AttributeError):
        return os.read
    read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    read.restype = ctypes.c_ssize_t
    buffer = bytearray(BUFFER_MAX)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    view = memoryview(buffer)

    def read_held(fd: int, size: int) -> bytes:
        count = read(fd, address, size)
        if count < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return view[:count].tobytes()

    return read_held
