"""What several nodes see of their jobs, from a folder with what `gpuguard hang --json` printed on each of them.

Nodes write while they are in trouble, onto a file system that may be in trouble too: a file that is empty, cut off or
something else is told, and the rest is still read.
"""

import os
import stat
from pathlib import Path

from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.jobs.sights import LARGEST, NodeSight, read_sight
from gpuguard.runtime.words import printable

# A cluster of that many nodes; what sights of 64 ranks each on three thousand nodes make. Units: files, bytes
FILES, TOGETHER = 16384, 2**30
AGAIN = "run `gpuguard hang --json > NODE.json` on each node of the job, into one folder"


def sights_in(folder: Path) -> tuple[tuple[NodeSight, ...], tuple[str, ...]]:
    """The sights in the files `*.json` of the folder, and what is wrong with the files that hold none.

    Raises  ReadFailed where the folder cannot be read or no file in it holds a sight, with the next step
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError as error:
        raise ReadFailed(f"{printable(str(folder))}: {error.strerror}; {AGAIN}") from error
    sights: list[NodeSight] = []
    problems: list[str] = []
    room = TOGETHER
    for place, name in enumerate(names):
        if place >= FILES or room <= 0:
            problems.append(f"{len(names) - place} more files were not read: these are too many, or too large")
            break
        try:
            text = _content(folder / name)
            room -= len(text)
            sights.append(read_sight(name, text))
        except (ReadFailed, NotUnderstood) as error:
            problems.append(str(error))
    if not sights:
        first = f"; {printable(problems[0])}" if problems else f"; {AGAIN}"
        raise ReadFailed(f"{printable(str(folder))} has no *.json that `gpuguard hang --json` printed{first}")
    return tuple(sights), tuple(problems)


def _content(path: Path) -> bytes:
    """What is in the file, of one that is too large as much as shows that it is.

    Raises  ReadFailed for one that cannot be read, or is no file: to open a pipe could take for ever
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise ReadFailed(f"{path.name}: no regular file")
            return file.read(LARGEST + 1)
    except OSError as error:
        raise ReadFailed(f"{path.name}: {error.strerror}") from error
