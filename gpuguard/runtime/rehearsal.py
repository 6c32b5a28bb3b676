"""The real agent on a copy of a recorded machine, in a folder of its own: for `demo`, `selftest` and tests.

What happens to the machine is written into the copy: records at the end of its kernel log, a config space that reads
as all ones. Nothing outside the folder is touched, and the agent only watches.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from gpuguard.errors import ReadFailed
from gpuguard.model.ids import PciAddress
from gpuguard.model.story import DetailScalar, StoryEntry
from gpuguard.runtime import cache
from gpuguard.runtime.assets import asset
from gpuguard.store.reader import DATABASE_NAME, open_reader

CONFIG = """\
[agent]
sources = ["kmsg", "pci_config", "heartbeats"]
[policy]
name = "{policy}"
mode = "observe"
[sources.kmsg]
poll_file = 0.02
[sources.pci_config]
every = 1.0
[sources.heartbeats]
socket = "{socket}"
"""
LOG_LINES_SHOWN = 5
HEADER_BYTES = 64
LOOK_EVERY = 0.02  # seconds
STARTS_WITHIN = 30.0  # seconds; a loaded laptop takes 2
ENDS_WITHIN = 5.0


class Rehearsal:
    """One agent on one copied machine. A context: leaving it ends the agent; the folder stays the caller's.

    Raises  Absent when the recorded machine was not installed
    """

    def __init__(self, machine: str, folder: Path, *, policy: str = "default") -> None:
        self.root, self.state_dir = folder / machine, folder / "state"
        self._config, self._log = folder / "config.toml", folder / "agent.log"
        shutil.copytree(asset("fixtures", "nodes", machine), self.root)
        # An installed copy may be read-only.
        for path in (self.kernel_log, *self.root.glob("sys/bus/pci/devices/*/config")):
            path.chmod(0o644)
        self.state_dir.mkdir()
        self.socket = folder / "progress.sock"  # where jobs tell this agent of their progress
        self._config.write_text(CONFIG.format(policy=policy, socket=self.socket), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kernel_log(self) -> Path:
        """The copy's /dev/kmsg."""
        return self.root / "dev/kmsg"

    def __enter__(self) -> "Rehearsal":
        """The agent runs and has read everything that was there.

        Raises  ReadFailed when it does not come up, with its last words
        """
        command = [sys.executable, "-m", "gpuguard.cli", "agent", "--config", str(self._config), "--json"]
        command += ["--root", str(self.root), "--state-dir", str(self.state_dir), "--listen", "127.0.0.1:0"]
        # It finds the gpuguard that runs now, installed or not, wherever it is started.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            self._wait_until_up(self._process)
        except BaseException:  # also Ctrl-C: nobody else would end the agent
            self.stop()
            raise
        return self

    def _wait_until_up(self, process: "subprocess.Popen[bytes]") -> None:
        ends = time.monotonic() + STARTS_WITHIN
        while self.snapshot() is None or self.address() is None:
            if process.poll() is not None or time.monotonic() > ends:
                raise ReadFailed(f"the agent did not start; its last words:\n{self._last_words()}")
            time.sleep(LOOK_EVERY)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def runs(self) -> bool:
        """Whether the agent is alive."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """The agent has ended."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def say(self, records: Sequence[str]) -> None:
        """The records stand at the end of the machine's kernel log."""
        with self.kernel_log.open("a", encoding="utf-8") as log:
            log.write("".join(f"{record}\n" for record in records))

    def lose(self, pci: PciAddress) -> None:
        """The GPU reads as all ones, as one that fell off the bus does."""
        (self.root / "sys/bus/pci/devices" / pci / "config").write_bytes(b"\xff" * HEADER_BYTES)

    def next_record(self) -> int:
        """The sequence number that the next record gets."""
        *_, newest = (line for line in self.kernel_log.read_text(encoding="utf-8").splitlines() if line[:1].isdigit())
        return int(newest.split(",", 2)[1]) + 1

    def snapshot(self) -> dict[str, object] | None:
        """What the agent knows, None before it knows anything."""
        found = cache.read(str(self.state_dir))
        return found[0] if found else None

    def story(self) -> tuple[StoryEntry, ...]:
        """All that it has written down.

        Raises  StoreFailed
        """
        reader = open_reader(self.state_dir / DATABASE_NAME)
        try:
            return reader.story()
        finally:
            reader.close()

    def wait_for(
        self, kind: str, *, after: int, within: float, text: str = "", **detail: DetailScalar
    ) -> StoryEntry | None:
        """The first entry of this kind behind the first `after` ones that fits; None when none came.

        Shape   it contains the text, and its `subject` and details are those named
        """
        ends = time.monotonic() + within
        while True:
            for entry in self.story()[after:]:
                facts = {"subject": entry.subject, **entry.detail}
                if entry.kind == kind and text in entry.text and detail.items() <= facts.items():
                    return entry
            if time.monotonic() > ends or not self.runs():
                return None
            time.sleep(LOOK_EVERY)

    def address(self) -> str | None:
        """Where it serves /metrics; None before it does."""
        with contextlib.suppress(OSError):
            for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
                if '"metrics.served"' in line and line.endswith("}"):
                    return str(json.loads(line)["address"])
        return None

    def metrics(self) -> str:
        """The page that Prometheus would scrape.

        Raises  ReadFailed
        """
        try:
            # The address is the agent's own, on loopback; a proxy of the environment is none of its business.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{self.address()}/metrics", timeout=ENDS_WITHIN) as page:
                return str(page.read().decode())
        except OSError as error:
            raise ReadFailed(f"/metrics does not answer on {self.address()}: {error}") from error

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES_SHOWN:]) or "(none)"
