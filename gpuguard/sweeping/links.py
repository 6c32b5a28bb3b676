"""Symbolic links of sysfs, also those of a machine that was recorded.

A recorded machine is packed in ways that keep no links, so it carries them in a text file at its top.

Reads   <root>/links
Shape   one link a line: its path below the root, a blank, and where it leads, resolved, below the root as well:
        `sys/bus/pci/devices/0000:1b:00.0 sys/devices/pci0000:18/0000:18:01.0/0000:1b:00.0`
"""

import os
from functools import cached_property
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.sweeping.files import read_bytes

LINKS = "links"
MOST_BYTES = 4 * 1024 * 1024  # a server of 500 functions has some 2,000 links of 150 bytes


class Links:
    """The links below a root."""

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        self._root = str(root)

    def target(self, path: str) -> str | None:
        """Where the link at `path` leads at last, both below the root; None where it is no link, leads nowhere, in a
        circle, or out of the root."""
        full = os.path.join(self._root, path)
        if os.path.islink(full):
            try:
                real = os.path.realpath(full, strict=True)
            except OSError:
                return None
            return os.path.relpath(real, self._top) if _below(real, self._top) else None
        return self._recorded.get(path)

    @cached_property
    def _top(self) -> str:
        return os.path.realpath(self._root)

    @cached_property
    def _recorded(self) -> dict[str, str]:
        if self._top == os.sep:
            return {}  # a machine that runs has its links; a file of this name there is somebody's
        path = os.path.join(self._root, LINKS)
        try:
            # A buffer of the most that it may be would be as large while it is read.
            text = read_bytes(path, min(os.path.getsize(path), MOST_BYTES)).decode("ascii", "replace")
        except (OSError, Absent, ReadFailed):
            return {}
        pairs = (line.split(" ") for line in text.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and all(_inside(part) for part in pair)}


def _below(path: str, top: str) -> bool:
    return path.startswith(top if top.endswith(os.sep) else top + os.sep)


def _inside(path: str) -> bool:
    return bool(path) and not os.path.isabs(path) and ".." not in path.split("/")
