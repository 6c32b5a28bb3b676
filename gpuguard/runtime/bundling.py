"""Makes a support bundle for a page: by a process of its own, one an hour, the two newest kept.

The agent's thread waits for it a moment and goes on: a page is not held up by its evidence. The process is the first to
go where memory is short (the agent's unit limits that of both).
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import structlog

from gpuguard.ports import Clock
from gpuguard.runtime.words import date

log = structlog.get_logger()

EVERY: Final = 3600.0  # seconds
WAIT: Final = 20.0  # seconds that a page waits for it
KEPT: Final = 2
FOLDER: Final = "bundles"


class Bundles:
    """The bundles of one agent with this state directory and configuration; `program` is what `gpuguard` is."""

    def __init__(
        self, state_dir: Path, clock: Clock, config: Path | None = None,
        program: tuple[str, ...] = (sys.executable, "-m", "gpuguard.cli"),
    ) -> None:  # fmt: skip
        self._folder, self._clock = state_dir / FOLDER, clock
        where = ("--state-dir", str(state_dir.absolute()), *(("--config", str(config.absolute())) if config else ()))
        self._command = (*program, "support-bundle", "--json", *where)
        self._mutex = threading.Lock()
        self._began: float | None = None
        self._path = ""
        self._process: subprocess.Popen[bytes] | None = None

    def newest(self) -> str:
        """The path of a bundle of this hour, which may not be finished yet; '' where none can be had."""
        with self._mutex:
            now = self._clock.now()
            if self._began is not None and now.mono - self._began < EVERY:
                return self._path if self._stands() else ""
            self._began = now.mono
            self.stop()
            stamp = "".join(c for c in date(now.utc) if c.isalnum())
            self._path = str(self._folder.absolute() / f"gpuguard-support-{stamp}.tar.gz")
            try:
                self._folder.mkdir(mode=0o750, exist_ok=True)
                self._process = subprocess.Popen(
                    (*self._command, "--output", self._path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
                _first_to_go(self._process.pid)
                self._process.wait(WAIT)
            except subprocess.TimeoutExpired:
                return self._path
            except OSError as error:
                log.warning("bundle.not_made", reason=str(error))
                return ""
            self._forget_old()
            if not self._stands():
                log.warning("bundle.not_made", reason=f"gpuguard support-bundle ended with {self._process.returncode}")
                return ""
            return self._path

    def stop(self) -> None:
        """No bundle is being made any more."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _stands(self) -> bool:
        being_made = self._process is not None and self._process.poll() is None
        return being_made or Path(self._path).exists()

    def _forget_old(self) -> None:
        for old in sorted(self._folder.glob("gpuguard-support-*.tar.gz"))[:-KEPT]:
            old.unlink(missing_ok=True)


def _first_to_go(pid: int) -> None:
    """The kernel ends this process before any other of ours; what it starts later is as it is.

    Source  proc(5), oom_score_adj: anybody may raise that of one's own
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
