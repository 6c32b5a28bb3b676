"""What time it is: the only place in gpuguard that reads a clock."""

import time
from pathlib import Path

from gpuguard.errors import ReadFailed
from gpuguard.model.ids import BootId
from gpuguard.model.instants import Instant

BOOT_ID = "proc/sys/kernel/random/boot_id"


def read_boot_id(root: Path = Path("/")) -> BootId | None:
    """The id of the boot that the machine under `root` is in, None where it does not tell.

    Reads   <root>/proc/sys/kernel/random/boot_id
    Shape   a UUID in lower case and a newline
    Source  Linux Documentation/admin-guide/sysctl/kernel.rst, random
    """
    try:
        text = (root / BOOT_ID).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return BootId(text) if text else None


class SystemClock:
    """The clock of this machine. With a recorded machine as `root`, the boot is that machine's.

    Monotonic time is CLOCK_MONOTONIC, which stands still in suspend as printk's own clock does.

    Raises  ReadFailed when no boot id can be read: without one nothing could be told apart over a reboot
    """

    def __init__(self, root: Path = Path("/")) -> None:
        boot = read_boot_id(root) or read_boot_id()
        if boot is None:
            raise ReadFailed(f"cannot read /{BOOT_ID}; is /proc mounted?")
        self._boot = boot

    def now(self) -> Instant:
        """This moment on this boot."""
        return Instant(boot=self._boot, mono=time.monotonic(), utc=time.time())


class ManualClock:
    """A clock that stands still until it is told to move; for tests, `replay` and simulations.

    Units   seconds
    """

    def __init__(
        self, mono: float = 1000.0, *, utc: float = 1_700_000_000.0, boot: str = "b0070000-0000-4000-8000-000000000001"
    ) -> None:
        self._mono = mono
        self._utc = utc
        self._boot = BootId(boot)

    def now(self) -> Instant:
        """The moment it was moved to."""
        return Instant(boot=self._boot, mono=self._mono, utc=self._utc)

    def advance(self, seconds: float) -> Instant:
        """The new moment, `seconds` later; a clock that runs backwards is a mistake in the test.

        Raises  ValueError for a negative span
        """
        if seconds < 0:
            raise ValueError(f"a clock does not run backwards ({seconds} s)")
        self._mono += seconds
        self._utc += seconds
        return self.now()

    def step_utc(self, seconds: float) -> Instant:
        """The new moment after somebody set the wall clock; monotonic time does not notice."""
        self._utc += seconds
        return self.now()

    def reboot(self, boot: str, *, mono: float = 10.0, down_for: float = 60.0) -> Instant:
        """The new moment on another boot, `down_for` seconds later."""
        self._boot = BootId(boot)
        self._mono = mono
        self._utc += down_for
        return self.now()
