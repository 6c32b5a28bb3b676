"""The real agent on the fake NVML library, for benchmarks: started, asked, measured with all its children."""

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.idle import pss_mib

STARTS_WITHIN = 30.0  # seconds
GPUS = 8


class Agent:
    """One agent; `config` is the text of its file. A context: leaving it ends the agent.

    Raises  SystemExit with the agent's last words when it does not come up
    """

    def __init__(self, folder: Path, config: str, env: Mapping[str, str]) -> None:
        self.state = folder / "state"
        self._config, self._log = folder / "config.toml", folder / "agent.log"
        self._config.write_text(config)
        self._env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.pid = 0
        self.port = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "gpuguard.cli", "agent", "--json", "--config", str(self._config)]
        command += ["--state-dir", str(self.state), "--listen", "127.0.0.1:0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        self.pid = self._process.pid
        ends = time.monotonic() + STARTS_WITHIN
        while not self.port:
            if self._process.poll() is not None or time.monotonic() > ends:
                self.stop()
                raise SystemExit(f"the agent did not start; its last words:\n{self.words()[-3000:]}")
            for line in self.words().splitlines():
                if '"metrics.served"' in line and line.endswith("}"):
                    self.port = int(json.loads(line)["address"].rpartition(":")[2])
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """The agent has ended."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

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

    def wait_for(self, told: str, count: int = 1, within: float = STARTS_WITHIN) -> None:
        """`/metrics` tells this so often.

        Raises  SystemExit when it does not in time
        """
        ends = time.monotonic() + within
        while self.page().count(told) < count:
            if time.monotonic() > ends:
                raise SystemExit(
                    f"/metrics never told {told!r} {count} times; the agent's words:\n{self.words()[-3000:]}"
                )
            time.sleep(0.2)

    def processes(self) -> list[int]:
        """The agent and all that it started and that still live."""
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def cpu_ns(self) -> dict[int, int]:
        """Nanoseconds that each of its processes has run."""
        return {pid: process_ns(pid) for pid in self.processes()}

    def pss_mib(self) -> float:
        """Memory of all its processes together."""
        return sum(pss_mib(pid) for pid in self.processes())


def process_ns(pid: int) -> int:
    """Nanoseconds that a process has run, threads that have ended among them: each scrape has a thread of its own.

    Source  linux include/linux/posix-timers_types.h: a CPU clock's number is the complement of the pid and its kind, 2
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def spent(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Nanoseconds between two looks; a process that began in between counts whole."""
    return sum(ns - before.get(pid, 0) for pid, ns in after.items())
