"""A real Prometheus that scrapes what a test gives it, every second."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.require import require

CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: {rules}
scrape_configs:
  - job_name: gpuguard
    static_configs:
      - targets: {targets}
"""
STARTS_WITHIN = 30.0
LOOK_EVERY = 0.2


class Prometheus:
    """One server over these targets and rules, with all of its files in `folder`; it ends with the block."""

    def __init__(self, folder: Path, targets: Sequence[str], rules: Sequence[Path]) -> None:
        program = shutil.which("prometheus")
        require("prometheus", program is not None, "apt-get install prometheus, or `./dev test --install`")
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        config = CONFIG.format(rules=json.dumps([str(file) for file in rules]), targets=json.dumps(list(targets)))
        (folder / "prometheus.yml").write_text(config)

    def __enter__(self) -> "Prometheus":
        """It answers."""
        self._log = (self._folder / "prometheus.log").open("wb")
        command = [
            "prometheus", f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        ends = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
            assert time.monotonic() < ends, (self._folder / "prometheus.log").read_text()
            time.sleep(LOOK_EVERY)
        return self

    def _answers(self) -> bool:
        try:
            self.query("vector(1)")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now: its series, each with labels and a value."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        result: list[dict[str, Any]] = found["data"]["result"]
        return result


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
