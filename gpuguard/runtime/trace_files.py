"""The lines of a trace's file, plain or compressed, without ever holding more than one of them.

What is inside decides whether it is gzip, not the name; a name that promises gzip is held to it.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from stat import S_ISREG
from typing import IO

from gpuguard.errors import NotUnderstood, ReadFailed

LONGEST_LINE = 64 * 1024  # bytes; a job's row has some hundred
LIMIT = 256 * 1024 * 1024  # bytes after unpacking: three million rows
MOST_LINES = 10_000_000  # a file of nothing but line ends has one in each byte, and each costs as much as a row's
_MAGIC = b"\x1f\x8b"


def trace_lines(path: "str | os.PathLike[str]") -> Iterator[str]:
    """Each line of the file with its line end, as text; a byte-order mark before the first is left out.

    Raises  ReadFailed when the file cannot be read; NotUnderstood when it is no text in UTF-8, no gzip though it is
            named .gz, cut short, or longer than any trace: with the file's name, the line and a next step. Both only
            while lines are taken, so whoever takes them must take all before using any
    """
    try:
        with _opened(path) as raw:
            packed = raw.peek(2)[:2] == _MAGIC  # type: ignore[attr-defined] # fdopen of "rb" gives a BufferedReader
            if not packed and os.fspath(path).endswith(".gz"):
                raise NotUnderstood(
                    f"{path} is named .gz and is no gzip file: compress it with gzip, or take .gz off its name"
                )
            if packed:
                with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                    yield from _decoded(path, unpacked)
            else:
                yield from _decoded(path, raw)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReadFailed(f"{path} cannot be read ({reason}): give a trace's file, and the right to read it") from error


def _opened(path: "str | os.PathLike[str]") -> IO[bytes]:
    # A pipe without a writer would wait for ever, a device may never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ReadFailed(f"{path} is no regular file: give the file of a trace, .csv or .csv.gz")
    return os.fdopen(descriptor, "rb")


def _decoded(path: "str | os.PathLike[str]", file: "IO[bytes] | gzip.GzipFile") -> Iterator[str]:
    number = 0
    total = 0
    while True:
        try:
            line = file.readline(LONGEST_LINE + 1)
        except EOFError as error:
            raise NotUnderstood(
                f"{path} is cut short after line {number}: copy it again; nothing of it was used"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise NotUnderstood(
                f"{path} is damaged after line {number} ({error}): copy it again; nothing of it was used"
            ) from error
        if not line:
            return
        number += 1
        total += len(line)
        if len(line) > LONGEST_LINE:
            raise NotUnderstood(
                f"{path} line {number} has more than {LONGEST_LINE} bytes: a trace has one job a line; give such a file"
            )
        if total > LIMIT:
            raise NotUnderstood(
                f"{path} has more than {LIMIT // 2**20} MiB, reached at line {number}: cut the trace to fewer jobs"
            )
        if number > MOST_LINES:
            raise NotUnderstood(f"{path} has more than {MOST_LINES:,} lines: cut the trace to fewer jobs")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotUnderstood(
                f"{path} line {number}, byte {error.start + 1}: it is not UTF-8; save the file as UTF-8 text"
            ) from error
        yield text.removeprefix("\ufeff") if number == 1 else text
