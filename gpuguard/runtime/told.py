"""What was told through one form and stands still: a small file beside the memory, so that no restart tells it twice or
forgets to tell that it is over.

A notice is entered once its receiver has taken it: killed in between, it is told once more. A file that cannot be read
is as none: everything that stands is told anew. One that cannot be written is kept in memory.
"""

import os
from pathlib import Path

import msgspec

from gpuguard.model.notices import Notice
from gpuguard.runtime.files import read_regular

LIMIT = 4 * 1024 * 1024
# More than any node has: eight GPUs, a drain, some jobs.
KEPT = 256


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A notice as it was told, and when last, in seconds since 1970."""

    notice: Notice
    utc: float


class Told:
    """The entries of one form, by the key of their notices. `failure` is why the file could not be used last, or ''."""

    def __init__(self, state_dir: Path, form: str) -> None:
        self._path = state_dir / f"told-{form}.json"
        self.failure = ""
        self.entries: dict[str, Entry] = {}
        try:
            found = msgspec.json.decode(read_regular(self._path, LIMIT)[0], type=list[Entry])
            self.entries = {entry.notice.key: entry for entry in found}
        except FileNotFoundError:
            pass  # nothing was told yet
        except (OSError, msgspec.DecodeError) as error:
            self.failure = f"{self._path} cannot be read, so what stands is told anew: {error}"

    def begin(self, notice: Notice, utc: float) -> None:
        """It was told."""
        self.entries.pop(notice.key, None)
        self.entries[notice.key] = Entry(notice=notice, utc=utc)
        while len(self.entries) > KEPT:
            del self.entries[next(iter(self.entries))]
        self._write()

    def end(self, key: str) -> None:
        """It was told to be over."""
        if self.entries.pop(key, None) is not None:
            self._write()

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), "wb") as file:
                file.write(msgspec.json.encode(list(self.entries.values())))
            os.replace(fresh, self._path)
        except OSError as error:
            self.failure = f"{self._path} cannot be written, so a restart tells what stands anew: {error.strerror}"
        else:
            self.failure = ""
