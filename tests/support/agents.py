"""The real agent, which plays a recorded machine in a hurry, and the page it serves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.support.machines import machine

CONFIG = """\
[sources.nvml]
fast = 2.0
medium = 4.0
[sources.disk]
path = "/"
"""
STARTS_WITHIN = 30.0
LOOK_EVERY = 0.05


class Agent:
    """One agent on one recorded machine, by its name or its path, with all of its files in `folder`; it ends with the
    block. `more` is added to its configuration."""

    def __init__(self, name: str, folder: Path, more: str = "") -> None:
        self._name, self._folder, self._log = name, folder, folder / "agent.log"
        (folder / "config.toml").write_text(CONFIG + more)
        self.address = ""
        # Options with which a command finds this agent.
        self.memory = ("--config", str(folder / "config.toml"), "--state-dir", str(folder / "state"))

    def __enter__(self) -> "Agent":
        """It serves its page at `address`."""
        command = [
            sys.executable, "-m", "gpuguard.cli", "agent", "--config", str(self._folder / "config.toml"), "--json",
            "--root", str(machine(self._name)), "--state-dir", str(self._folder / "state"), "--listen", "127.0.0.1:0",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
        ends = time.monotonic() + STARTS_WITHIN
        while not (found := re.search(r'^.*"metrics.served".*$', self._log.read_text(), flags=re.MULTILINE)):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < ends, self._log.read_text()
            time.sleep(LOOK_EVERY)
        self.address = str(json.loads(found[0])["address"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def page(self) -> str:
        """/metrics as it is now."""
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as page:
            text: bytes = page.read()
        return text.decode()

    def page_with(self, *parts: str, within: float) -> str:
        """/metrics as soon as all of these are on it."""
        ends = time.monotonic() + within
        while not all(part in (page := self.page()) for part in parts):
            assert time.monotonic() < ends, f"no {[part for part in parts if part not in page]} on the page"
            time.sleep(0.2)
        return page
