"""The fleet's book as files in a directory that all nodes share.

Each change of the book is a file of its own, `book-000000000042`, made whole under another name and then put in its
place with link(2), which fails where the name is taken: a compare-and-set without locks, on NFS as on a local disk. The
newest generation that is whole is the book. Older ones are kept for a while, since a removed one could be made again
by somebody who read long ago: after a link it is looked whether the generation that it follows still lies there, and as
they are removed oldest first, a new one can only have been first while that does.

Only a directory with the file `gpuguard-fleet` holds a book. A person makes that once, on the file server: the mount
point of a share that is not mounted is an empty directory like any other, and on each node another one.

The clock is the file server's: the time that it gives to a file made for that. A server that hangs holds a thread that
is left behind, never the caller; while it hangs, nothing more is asked of it.

Shape   a line `gpuguard-book 1 <bytes> <sha256> <mark>`, then so many bytes. The mark is chance: it tells two files of
        one name apart, should the directory be emptied meanwhile
Source  man link(2): on NFS, link may have been made though it is reported to have failed; st_nlink tells
"""

import contextlib
import errno
import hashlib
import os
import queue
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from gpuguard.errors import ReadFailed
from gpuguard.ports import LedgerPage

T = TypeVar("T")

# Made by a person, never by us. What it says is not looked at.
MARKER: Final = "gpuguard-fleet"
MAGIC: Final = b"gpuguard-book 1"
# Twice what an honest book has, several times over.
LIMIT: Final = 1024 * 1024
# A write follows its read within seconds; this many changes in between are more than a fleet makes in that time.
GENERATIONS_KEPT: Final = 32
# The last that a name has digits for: some 30,000 years of a change each second.
LAST: Final = 999_999_999_999
# What a process left that was ended between two steps. Units: seconds
LEFT_OVER_AFTER: Final = 3600.0
# The directory may be swept while it is read: it is listed again so often.
LOOKS: Final = 5

_BOOK: Final = re.compile(r"book-(\d{12})", re.ASCII)
_SCRATCH: Final = re.compile(r"\.gpuguard-[0-9a-f]{16}", re.ASCII)
_HEADER: Final = re.compile(rb"gpuguard-book 1 (\d{1,7}) ([0-9a-f]{64}) ([0-9a-f]{16})", re.ASCII)

_NO_LINKS: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RIGHT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class DirectoryLedger:
    """The book in `directory`, which must be there, and marked: one made by mistake on a node's own disk would be a
    book of its own."""

    name = "directory"

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.anew = f"remove the files {directory}/book-*"
        self._hanging: threading.Thread | None = None

    def read(self, until: float) -> LedgerPage:
        """The book as it is now.

        Units   until: seconds of time.monotonic()
        Raises  ReadFailed, with the next step
        """
        return self._apart(lambda: self._read(until), until)

    def write(self, page: LedgerPage, text: bytes, until: float) -> bool:
        """Whether this is the book now; False when somebody was faster than we since `page`.

        Units   until: seconds of time.monotonic()
        Raises  ReadFailed, with the next step: then it may be the book or not
        """
        if len(text) > LIMIT:
            raise ReadFailed(f"the fleet's book has {len(text)} bytes and may have {LIMIT}; nothing was written")
        return self._apart(lambda: self._write(page, text, until), until)

    # --- with a deadline ----------------------------------------------------------------------------------------------

    def _apart(self, work: Callable[[], T], until: float) -> T:
        """What came of the work before `until`, done in a thread that may be left behind."""
        if self._hanging is not None and self._hanging.is_alive():
            raise self._hangs()
        if time.monotonic() >= until:
            raise ReadFailed(f"no time was left to ask for the fleet's book in {self._directory}; it is tried again")
        came: queue.SimpleQueue[T | ReadFailed] = queue.SimpleQueue()

        def run() -> None:
            try:
                came.put(work())
            except ReadFailed as error:
                came.put(error)
            except OSError as error:
                came.put(self._failed(error))

        thread = threading.Thread(target=run, name="ledger", daemon=True)
        thread.start()
        try:
            answer = came.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            self._hanging = thread
            raise self._hangs() from None
        if isinstance(answer, ReadFailed):
            raise answer
        return answer

    def _hangs(self) -> ReadFailed:
        return ReadFailed(
            f"{self._directory}: the file server gave no answer in time; see whether `ls {self._directory}` hangs, and "
            "mend the mount"
        )

    def _failed(self, error: OSError) -> ReadFailed:
        number, said = error.errno, error.strerror or str(error)
        if number in _NO_ROOM:
            step = "its disk or quota is full; make room"
        elif number in _NO_RIGHT:
            step = (
                f"{said}; root of this node (or who runs gpuguard-actuator) must be able to make files and hard links "
                "there: see root_squash and the owner of the directory"
            )
        elif number in _GONE:
            step = f"{said}; mount or make it, or correct [fleet] directory"
        elif number in _NO_LINKS:
            step = f"{said}: this file system has no hard links; name a directory on NFS or another shared one"
        else:
            step = f"{said}; look at the mount"
        return ReadFailed(f"the fleet's book in {self._directory} cannot be used: {step}")

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _read(self, until: float) -> LedgerPage:
        with _Folder(self._directory) as folder:
            if not folder.is_marked():
                raise ReadFailed(
                    f"{self._directory} has no file {MARKER}, so it is not taken for the fleet's: is it not mounted on "
                    f"this node? see `findmnt -T {self._directory}`. Where it is, and is new, "
                    f"`touch {self._directory}/{MARKER}` there once, for all nodes"
                )
            utc = folder.clock()
            for _ in range(LOOKS):
                generations = folder.generations()
                if not generations:
                    # One that follows nothing could not be told from one that follows what was removed.
                    folder.put(1, _file(b""))
                    continue
                if generations[-1] >= LAST:
                    raise ReadFailed(f"{self._directory}: nothing can follow {_named(generations[-1])}; remove it")
                for generation in reversed(generations):
                    try:
                        found = folder.load(generation)
                    except FileNotFoundError:
                        break  # swept since it was listed: a newer one is there
                    if found is not None:
                        mark, text = found
                        return LedgerPage(version=f"{generation}:{mark}:{generations[-1] + 1}", text=text, utc=utc)
                else:
                    raise ReadFailed(
                        f"{self._directory}: none of the {len(generations)} files of the fleet's book is whole; look "
                        "at them, then remove them: the book begins anew, and what stands is seen at the scheduler"
                    )
                if time.monotonic() >= until:
                    break
        raise ReadFailed(f"{self._directory}: the fleet's book changed faster than it could be read; it is tried again")

    def _write(self, page: LedgerPage, text: bytes, until: float) -> bool:
        base, mark, following = _version(page.version)
        with _Folder(self._directory) as folder:
            if time.monotonic() >= until or not folder.put(following, _file(text)):
                return False
            if not folder.is_there(base, mark):
                return False  # so many were faster that ours came into a gap behind them; nobody reads it
            with contextlib.suppress(OSError):  # what is not removed now is removed after the next change
                folder.sweep(following)
            return True


class _Folder:
    """The directory, held open: a mount that comes or goes meanwhile does not lead to another one."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_mode & stat.S_IWOTH:
            os.close(self._fd)
            raise ReadFailed(
                f"{path}: anybody may write there, so anybody could forge the fleet's book; `chmod o-w {path}`"
            )

    def __enter__(self) -> "_Folder":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def is_marked(self) -> bool:
        """Whether a person said that the fleet's book belongs here."""
        try:
            return stat.S_ISREG(os.stat(MARKER, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def clock(self) -> float:
        """The file server's time."""
        name = _scratch()
        file = self._make(name)
        try:
            os.utime(file)  # to the server's own time; what NFS gives at creation may be the client's
            os.fsync(file)
            return os.fstat(file).st_mtime
        finally:
            os.close(file)
            os.unlink(name, dir_fd=self._fd)

    def generations(self) -> list[int]:
        """The generations that lie there, the newest last; files of other names are somebody else's."""
        found = []
        for name in os.listdir(self._fd):
            match = _BOOK.fullmatch(name)
            if match is not None:
                found.append(int(match[1]))
        return sorted(found)

    def load(self, generation: int) -> tuple[str, bytes] | None:
        """The mark and the text of a generation; None when the file is not one whole book.

        Raises  FileNotFoundError, OSError
        """
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(_named(generation), flags, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            if error.errno == errno.ESTALE:
                raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            chunks = bytearray()
            while len(chunks) <= 2 * LIMIT and (chunk := os.read(file, LIMIT)):
                chunks += chunk
        finally:
            os.close(file)
        header, _, text = bytes(chunks).partition(b"\n")
        match = _HEADER.fullmatch(header)
        if match is None or int(match[1]) != len(text):
            return None
        if hashlib.sha256(text).hexdigest().encode() != match[2]:
            return None
        return match[3].decode(), text

    def put(self, generation: int, content: bytes) -> bool:
        """Whether the generation was made by us, whole and on the disk."""
        name = _scratch()
        file = self._make(name)
        try:
            try:
                left = memoryview(content)
                while left:
                    left = left[os.write(file, left) :]
                os.fsync(file)
                with contextlib.suppress(FileExistsError):
                    os.link(name, _named(generation), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                made = os.fstat(file).st_nlink == 2
            finally:
                os.close(file)
        finally:
            os.unlink(name, dir_fd=self._fd)
        if made:
            os.fsync(self._fd)
        return made

    def is_there(self, generation: int, mark: str) -> bool:
        """Whether this very file lies there still."""
        try:
            found = self.load(generation)
        except FileNotFoundError:
            return False
        return found is not None and found[0] == mark

    def sweep(self, newest: int) -> None:
        """What is long over is gone, the oldest first."""
        for generation in self.generations():
            if generation > newest - GENERATIONS_KEPT:
                break
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(_named(generation), dir_fd=self._fd)
        if newest % GENERATIONS_KEPT:
            return
        now = self.clock()
        for name in filter(_SCRATCH.fullmatch, os.listdir(self._fd)):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                if now - os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mtime > LEFT_OVER_AFTER:
                    os.unlink(name, dir_fd=self._fd)

    def _make(self, name: str) -> int:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=self._fd)


def _named(generation: int) -> str:
    return f"book-{generation:012d}"


def _scratch() -> str:
    return f".gpuguard-{secrets.token_hex(8)}"


def _file(text: bytes) -> bytes:
    digest = hashlib.sha256(text).hexdigest()
    return f"{MAGIC.decode()} {len(text)} {digest} {secrets.token_hex(8)}\n".encode() + text


def _version(version: str) -> tuple[int, str, int]:
    """The generation that was read, its mark, and the number of the one that follows all that lay there."""
    base, mark, following = version.split(":")
    return int(base), mark, int(following)
