"""The privileged process's server, in a thread of the test, over any actuator."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuguard.daemons.actuator import Server
from gpuguard.ports import Actuator


@contextmanager
def serving(
    path: Path, actuator: Actuator, allowed: frozenset[int] = frozenset({0}), idle: float | None = None
) -> Iterator[threading.Thread]:
    """A server that listens at `path`; it has ended when the block has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(16)
        server = Server(listener, actuator, allowed, idle)
        thread = threading.Thread(target=server.serve, name="actuator")
        thread.start()
        try:
            yield thread
        finally:
            server.stop()
            thread.join(10)
            assert not thread.is_alive()
