"""The whole chain on this machine: the real kernel ring, the real agent and actuator, a real Slurm.

`python -m tests.support.chain` (`./dev slurm`) starts one to play with, and says what to type.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gpuguard.model.events import Cursor
from gpuguard.model.story import Change
from gpuguard.runtime.clock import SystemClock
from gpuguard.store.sqlite import SqliteStore
from tests.support.kmsg import SecondReader, say, unlimited_writes
from tests.support.slurm import Cluster

CONFIG = """\
[policy]
mode = "drain"
clean_for = 0.0
clean_passes = 1
releases_a_day = 1000
[sources.kmsg]
trust_user_records = true
[agent]
sources = ["kmsg"]
listen = "127.0.0.1:0"
[actuators.delegate]
socket = "{folder}/a.sock"
[actuator]
target = "slurm"
socket = "{folder}/a.sock"
[actuators.slurm]
node = "node1"
slurm_conf = "{conf}"
"""


def until(true: Callable[[], bool], what: str, patience: float = 20.0) -> None:
    """Returns once it is true."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.02)


class Chain:
    """The real agent and the real actuator on this machine's ring, set to act on node1 of a real Slurm."""

    def __init__(self, folder: Path, slurm: Cluster) -> None:
        self.folder, self.slurm = folder, slurm
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG.format(folder=folder, conf=slurm.conf))
        self.state = folder / "state"
        self.log = folder / "log"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def begin_here(self) -> None:
        """The agent will know the ring up to now: what earlier tests wrote into it is not this test's affair."""
        reader = SecondReader()
        say("gpuguard: a test begins")
        sequence, _ = reader.read()[-1]
        reader.close()
        clock = SystemClock()
        store = SqliteStore(self.state / "gpuguard.db", clock=clock)
        cursor = Cursor(source="kmsg", boot=clock.now().boot, position=str(sequence))
        store.commit(Change(cursors=(cursor,)))
        store.close()

    def reason(self) -> str:
        """The reason of node1's drain, without who set it and when."""
        return self.slurm.reason("node1").partition(" [")[0]

    def start(self, name: str) -> None:
        """Runs `agent` or `actuator` and waits until it listens."""
        module, options, socket = {
            "agent": ("gpuguard.cli", ["agent", "--json", "--state-dir", str(self.state)], self.state / "control.sock"),
            "actuator": ("gpuguard.daemons.actuator", [], self.folder / "a.sock"),
        }[name]
        socket.unlink(missing_ok=True)
        command = [sys.executable, "-m", module, *options, "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        until(socket.exists, f"{name} listens")
        if name == "agent":
            until(lambda: self.snapshot()["shell"]["sources"][0]["level"] == "watching", "the ring is read")

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends one of them, with a signal."""
        self.processes[name].send_signal(number)
        self.processes[name].wait(20)

    def snapshot(self) -> dict[str, Any]:
        """The agent's cache, {} where there is none yet."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.state / "snapshot.json").read_bytes())
        return {"shell": {"sources": [{"level": "none"}]}}

    def run(self, *argv: str) -> tuple[int, str]:
        """Exit code and output of a gpuguard command."""
        command = [sys.executable, "-m", "gpuguard.cli", *argv, "--state-dir", str(self.state)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by name and labels."""
        served = next(line for line in self.log.read_text().splitlines() if "metrics.served" in line)
        with urllib.request.urlopen(f"http://{json.loads(served)['address']}/metrics", timeout=10) as page:
            text = page.read().decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {f"{s.name}{sorted(s.labels.items())}": s.value for s in samples}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Both processes run; afterwards neither does, and the kernel's own limit on writers is back."""
        with unlimited_writes():
            try:
                self.begin_here()
                self.start("actuator")
                self.start("agent")
                yield
            finally:
                for process in self.processes.values():
                    if process.poll() is None:
                        process.terminate()
                for process in self.processes.values():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                    process.kill()
                    process.wait()


STEPS = """\
A small Slurm, the agent and the actuator run on this machine, set to act on node1. In another terminal, as root:

  export SLURM_CONF={conf} GG="{gpuguard}" DIR="--config {config} --state-dir {state}"
  scontrol show node node1 | grep -E 'State|Reason'
  echo 'NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.' > /dev/kmsg
  scontrol show node node1 | grep -E 'State|Reason'     # drained, with our reason
  $GG why $DIR                                          # back to the line
  $GG check $DIR; echo "exit $?"
  $GG status --live $DIR                                # who holds the node, as Slurm tells it
  $GG ack xid79 --by me --reason drill $DIR             # a person clears it: the node comes back
  $GG history $DIR

Records that a process writes into the ring are believed here, for the drill; on a node they are not.
Ctrl-C ends all of it and leaves nothing behind.
"""


def main() -> int:
    """Runs until told to stop."""
    if os.geteuid() != 0:
        sys.stderr.write("slurm: slurmctld, slurmd and /dev/kmsg need root; run it with sudo\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "slurm").mkdir()
        cluster = Cluster(folder / "slurm", nodes=2)
        try:
            cluster.start()
            chain = Chain(folder, cluster)
            with chain.running():
                program = Path(sys.executable).with_name("gpuguard")
                steps = STEPS.format(conf=cluster.conf, gpuguard=program, config=chain.config, state=chain.state)
                print(steps, flush=True)
                with contextlib.suppress(KeyboardInterrupt):
                    signal.signal(signal.SIGTERM, signal.default_int_handler)
                    signal.pause()
        finally:
            cluster.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
