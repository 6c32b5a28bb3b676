"""Reading files whose names anybody may have given: nothing that is asked for here can wait or grow without end.

Standard library only, and as little of it as can be: hooks come through here on every job.
"""

import errno
import os
from stat import S_ISCHR, S_ISDIR, S_ISREG

CONFIG_LIMIT = 1024 * 1024  # bytes

_PIECE = 256 * 1024
_NULL = os.makedev(1, 3)  # /dev/null: the usual way to say "an empty one"


def read_regular(path: "str | os.PathLike[str]", limit: int) -> tuple[bytes, float]:
    """All bytes of the file, and when it was last changed (seconds since 1970).

    Raises  OSError, also when it is no regular file (a pipe would wait, a device may never end), or has more bytes
            than `limit`
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (S_ISREG(found.st_mode) or (S_ISCHR(found.st_mode) and found.st_rdev == _NULL)):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = b""
        while piece := os.read(descriptor, min(_PIECE, limit + 1 - len(data))):
            data += piece
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
        return data, found.st_mtime
    finally:
        os.close(descriptor)


def read_toml(path: "str | os.PathLike[str]") -> dict[str, object]:
    """The tables of a TOML file, however its lines end.

    Raises  OSError; UnicodeDecodeError when it is not UTF-8; ValueError when it is not TOML
    """
    import tomllib

    data, _ = read_regular(path, CONFIG_LIMIT)
    try:
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except RecursionError as error:
        raise ValueError("tables or lists in each other, far too many") from error
