"""What the service manager is told: ready, alive, in words, stopping.

A datagram to the socket in NOTIFY_SOCKET, as libsystemd sends it, with no dependency. Being unheard is never an
error of the agent's: it is counted.
Source  sd_notify(3), sd_watchdog_enabled(3)
"""

import os
import socket
from collections.abc import Mapping

from gpuguard.model.units import Seconds


class Notifier:
    """Speaks to the service manager that the environment names, or to nobody.

    `unheard` counts messages that did not get through.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._address = _address(self._environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self.unheard = 0

    @property
    def enabled(self) -> bool:
        """Whether anybody listens."""
        return self._address is not None

    @property
    def watchdog_every(self) -> Seconds | None:
        """How often `alive` must be called: half of what the manager allows. None when it keeps no watch over us.

        Reads   WATCHDOG_USEC, WATCHDOG_PID
        Units   microseconds there, seconds here
        """
        allowed = self._environment.get("WATCHDOG_USEC", "")
        pid = self._environment.get("WATCHDOG_PID", "")
        if not allowed.isdecimal() or int(allowed) == 0 or pid not in ("", str(os.getpid())):
            return None
        return Seconds(int(allowed) / 1e6 / 2)

    def ready(self, status: str = "") -> bool:
        """Whether the manager heard that start-up is over."""
        return self._send("READY=1", status)

    def alive(self, status: str = "") -> bool:
        """Whether the manager heard that the loop still turns."""
        return self._send("WATCHDOG=1", status)

    def status(self, text: str) -> bool:
        """Whether the manager heard the one line that `systemctl status` shows."""
        return self._send("", text)

    def stopping(self, status: str = "") -> bool:
        """Whether the manager heard that the end has begun."""
        return self._send("STOPPING=1", status)

    def close(self) -> None:
        """The socket is closed; a later message opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str, status: str) -> bool:
        if self._address is None:
            return False
        lines = [state] if state else []
        if status:
            lines.append("STATUS=" + " ".join(status.split())[:500])
        try:
            if self._socket is None:
                # Never wait: a manager that does not read must not hold up a decision.
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                )
            self._socket.sendto("\n".join(lines).encode(errors="backslashreplace"), self._address)
        except OSError:
            self.unheard += 1
            return False
        return True


def _address(name: str) -> str | None:
    """The socket's address: a path, or a name in the abstract namespace, which is written with @ for its NUL."""
    if name.startswith("@") and len(name) > 1:
        return "\0" + name[1:]
    return name if name.startswith("/") else None
