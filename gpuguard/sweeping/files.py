"""Small files of the kernel, each read once and whole."""

import os
from collections.abc import Callable
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.readings import Value, Values

# An attribute in sysfs is at most a page.
PAGE = 4096


def read_bytes(path: str | Path, limit: int = PAGE) -> bytes:
    """What the file says, up to `limit` bytes.

    Raises  Absent where there is no such file; ReadFailed where there is one that gives nothing
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Absent(f"{path} does not exist") from error
    except OSError as error:
        raise ReadFailed(f"{path} cannot be opened: {error.strerror}") from error
    try:
        return os.read(file, limit)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(file)


def read_text(path: str | Path) -> str:
    """The text of the file without blanks around it; what is no ASCII is replaced.

    Raises  as read_bytes
    """
    return read_bytes(path).decode("ascii", "replace").strip()


def take(values: Values, column: str, path: str | Path, understand: Callable[[str], Value]) -> bool:
    """The column holds what the file says: absent where there is no file, unknown where it cannot be read or
    understood. True where it was read."""
    try:
        text = read_text(path)
    except Absent:
        return True
    except ReadFailed:
        values[column] = None
        return False
    values[column] = understand(text)
    return True


def whole(text: str) -> int | None:
    """A decimal number, None for anything else."""
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20 else None


def listed(folder: str | Path) -> list[str]:
    """The names in a folder in their order; none where there is no such folder, and none of bytes that no name of the
    kernel's has.

    Raises  ReadFailed where there is one that cannot be listed: an empty answer would say that nothing is there
    """
    try:
        return sorted(name for name in os.listdir(folder) if name.isascii())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ReadFailed(f"{folder} cannot be listed: {error.strerror}") from error
