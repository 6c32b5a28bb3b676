"""The real agent on this machine, in a folder of its own, with an environment that tests and benchmarks choose."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

STARTS_WITHIN = 30.0  # seconds
ENDS_WITHIN = 10.0
LOOK_EVERY = 0.05


class LiveAgent:
    """One agent; `config` is the text of its file. A context: leaving it ends the agent.

    Raises  RuntimeError with the agent's last words when it does not do what was waited for
    """

    def __init__(self, folder: Path, config: str, env: Mapping[str, str]) -> None:
        self.state = folder / "state"
        self.config, self._log = folder / "config.toml", folder / "agent.log"
        self.config.write_text(config)
        self.env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.pid = 0
        self.port = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "gpuguard.cli", "agent", "--json", "--config", str(self.config)]
        command += ["--state-dir", str(self.state), "--listen", "127.0.0.1:0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, start_new_session=True
            )
        self.pid = self._process.pid
        ends = time.monotonic() + STARTS_WITHIN
        while not self.port:
            if self._process.poll() is not None or time.monotonic() > ends:
                self.stop()
                raise RuntimeError(f"the agent did not start; its last words:\n{self.words()[-3000:]}")
            for line in self.words().splitlines():
                if '"metrics.served"' in line and line.endswith("}"):
                    self.port = int(json.loads(line)["address"].rpartition(":")[2])
            time.sleep(LOOK_EVERY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """The agent has ended, with this exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def words(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def page(self, path: str = "/metrics") -> str:
        """A page, over a connection of its own, as a scraper may ask it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def wait_for(self, told: str, count: int = 1, within: float = STARTS_WITHIN) -> float:
        """`/metrics` tells this so often; how many seconds that took."""
        began = time.monotonic()
        while self.page().count(told) < count:
            if time.monotonic() > began + within:
                raise RuntimeError(
                    f"/metrics never told {told!r} {count} times in {within:.0f} s; the agent's words:\n"
                    f"{self.words()[-3000:]}"
                )
            time.sleep(LOOK_EVERY)
        return time.monotonic() - began

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of gpuguard about this agent."""
        command = [sys.executable, "-m", "gpuguard.cli", *words, "--state-dir", str(self.state)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def children(self) -> list[int]:
        """What it started and that still lives, and what that started."""
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                    found += [int(child) for child in (task / "children").read_text().split()]
        return found[1:]
