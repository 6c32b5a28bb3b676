"""The paths at which our processes listen."""

import errno
import os
import socket
import stat


def remove_dead(path: str) -> None:
    """Nothing lies at `path` any more.

    Raises  OSError when it is no socket, or one on which somebody listens
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "something that is no socket lies there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(errno.EADDRINUSE, "another process listens there")
