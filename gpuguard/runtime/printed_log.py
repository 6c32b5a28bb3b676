"""Opens the kernel logs that people give: a file, standard input for `-`, packed by gzip or not.

Only the standard library, as `scan` reads small logs in hooks too.
"""

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BufferedIOBase, BufferedReader

from gpuguard.errors import ReadFailed

GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def opened(path: str) -> Iterator[BufferedIOBase]:
    """The log's bytes as they were before gzip, if it was there.

    Raises  ReadFailed, also while it is read, with what a person can do; what was read before stays good
    """
    if path == "-" and sys.stdin is None:
        raise ReadFailed("standard input is closed; name a file, or feed the log with a pipe")
    try:
        with open(sys.stdin.fileno() if path == "-" else path, "rb", closefd=path != "-") as packed:
            yield _unpacked(packed)
    except IsADirectoryError as error:
        raise ReadFailed("is a directory; name the files in it, as in `/var/log/kern.log`") from error
    except FileNotFoundError as error:
        raise ReadFailed("no such file; `-` reads standard input") from error
    except PermissionError as error:
        raise ReadFailed("may not be read by this user; try as root or in group adm") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReadFailed(f"ends early or is damaged ({error}); what stands before the damage is told") from error
    except BrokenPipeError:
        raise  # standard output's; what else befalls it is no OSError (cli.py)
    except OSError as error:
        raise ReadFailed(f"{error.strerror or error}") from error


def _unpacked(file: BufferedReader) -> BufferedIOBase:
    return gzip.GzipFile(fileobj=file) if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC) else file


def printable(text: str) -> str:
    """The text without anything a terminal would obey: process names are chosen by whoever started the process."""
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def rfc3339(utc: float | None, digits: int = 6) -> str | None:
    """A moment in UTC as RFC 3339 has it, None for none or one that no calendar has.

    Units   seconds since 1970
    """
    if utc is None:
        return None
    try:
        moment = datetime.fromtimestamp(utc, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{moment.microsecond:06d}" if digits else "") + "Z"
