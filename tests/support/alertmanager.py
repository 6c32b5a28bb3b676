"""A real Alertmanager, alone, that tells nobody."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.prometheus import LOOK_EVERY, STARTS_WITHIN, free_port
from tests.support.require import require

PROGRAM = "prometheus-alertmanager"
CONFIG = "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n"


class Alertmanager:
    """One server with all of its files in `folder`; it ends with the block."""

    def __init__(self, folder: Path) -> None:
        require(PROGRAM, shutil.which(PROGRAM) is not None, f"apt-get install {PROGRAM}, or `./dev test --install`")
        self._folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        (folder / "alertmanager.yml").write_text(CONFIG)

    def __enter__(self) -> Self:
        """It is ready."""
        self._log = (self._folder / "alertmanager.log").open("wb")
        command = [
            PROGRAM, f"--config.file={self._folder / 'alertmanager.yml'}", f"--storage.path={self._folder / 'storage'}",
            f"--web.listen-address={self.url.removeprefix('http://')}", "--cluster.listen-address=",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        ends = time.monotonic() + STARTS_WITHIN
        while not self._ready():
            words = (self._folder / "alertmanager.log").read_text()
            assert self._process.poll() is None, words
            assert time.monotonic() < ends, words
            time.sleep(LOOK_EVERY)
        return self

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are active now."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts?active=true", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def wait_for(self, names: set[str]) -> list[dict[str, Any]]:
        """The active alerts, once these and no others are active."""
        ends = time.monotonic() + STARTS_WITHIN
        while {alert["labels"]["alertname"] for alert in self.alerts()} != names:
            assert time.monotonic() < ends, self.alerts()
            time.sleep(LOOK_EVERY)
        return self.alerts()
