"""Room kept for the one commit that must still work when the disk is full.

A drain's verdict is a few pages; the ballast is 256 KiB of real bytes (a file system that compresses or leaves holes
would give back nothing), let go when the disk is full, and made again when there is room.
"""

import os
from pathlib import Path

from gpuguard.store.modes import close_to_others, create_private

BALLAST_NAME = "ballast"
BALLAST_BYTES = 256 * 1024


class Ballast:
    """The file `ballast` in the state folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BALLAST_NAME
        self._given_back = False

    def standing(self) -> bool:
        """Whether the room is kept now."""
        try:
            return self._path.stat().st_size >= BALLAST_BYTES
        except OSError:
            return False

    def make(self) -> bool:
        """Whether the room is kept, after an attempt where it was not. A half-made file is removed again."""
        if self.standing():
            close_to_others(self._path)
            return True
        try:
            with open(create_private(self._path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(os.urandom(BALLAST_BYTES))
        except OSError:
            self.free()
        return self.standing()

    def restore(self) -> None:
        """The room is kept again, if it was given back and there is plenty now; cheap when there is nothing to do."""
        if not self._given_back:
            return
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return
        # Taking the last of what somebody just freed would be the next full disk.
        if found.f_bavail * found.f_frsize >= 4 * BALLAST_BYTES:
            self._given_back = not self.make()

    def free(self) -> bool:
        """Whether there was anything to give back; it is given back."""
        try:
            self._path.unlink()
        except OSError:
            return False
        self._given_back = True
        return True
