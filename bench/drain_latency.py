"""From a self-evident line in the real /dev/kmsg to the drain in a real Slurm, 200 times, released in between.

The moment a drain took effect is read from slurmctld's own log (milliseconds); the moment of the line is taken before
it is written. Agent and actuator are the real processes, set to act. Each fault is on another address, so that none
escalates; a reset shown by Xid 154 and no probation lead to the release.
Prints one JSON object. Needs root, Slurm and a writable kernel ring.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.kmsg import push_out, say, unlimited_writes
from tests.support.slurm import Cluster

NODE = "node1"
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
[actuators.delegate]
socket = "{folder}/actuator.sock"
[actuator]
target = "slurm"
socket = "{folder}/actuator.sock"
allow_users = []
[actuators.slurm]
node = "{node}"
slurm_conf = "{conf}"
"""
DRAINED = re.compile(r"^\[([^\]]+)\] update_node: node " + NODE + r" state set to DRAIN", re.MULTILINE)


class Log:
    """slurmctld's log from where it was looked at last."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._file.seek(0, os.SEEK_END)

    def drained_at(self, patience: float) -> float | None:
        """When the next drain took effect, in seconds since 1970."""
        until, text = time.monotonic() + patience, ""
        while time.monotonic() < until:
            text += self._file.read()
            if match := DRAINED.search(text):
                return datetime.fromisoformat(match[1]).timestamp()
            time.sleep(0.002)
        return None


def await_idle(cluster: Cluster, patience: float = 20.0) -> None:
    """The node takes work again and answers."""
    until = time.monotonic() + patience
    while cluster.states()[NODE] != "IDLE":
        if time.monotonic() > until:
            raise SystemExit(f"the node was not released: {cluster.states()[NODE]}, {cluster.reason(NODE)}")
        time.sleep(0.02)


def main() -> int:
    """0 measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gg-bench-", dir="/tmp") as name, unlimited_writes():
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster(folder / "slurm", nodes=1)
        cluster.root.mkdir()
        config = folder / "config.toml"
        config.write_text(CONFIG.format(folder=folder, node=NODE, conf=cluster.conf))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            cluster.start()
            cluster.reset()
            push_out()
            log = (folder / "log.txt").open("wb")
            for module, options in (
                ("gpuguard.daemons.actuator", []),
                ("gpuguard.cli", ["agent", "--state-dir", str(folder / "state"), "--listen", ""]),
            ):
                command = [sys.executable, "-m", module, *options, "--config", str(config)]
                processes.append(subprocess.Popen(command, stderr=log, stdout=log))
            until = time.monotonic() + 20
            while not (folder / "state" / "control.sock").exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(1.0)  # the whole ring is read
            latencies = measure(cluster, args.faults)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(10)
            cluster.stop()
            if os.environ.get("BENCH_KEEP_LOG"):
                sys.stderr.write((folder / "log.txt").read_text())
    latencies.sort()
    print(
        json.dumps(
            {
                "faults": len(latencies),
                "p50_ms": round(1000 * latencies[len(latencies) // 2], 1),
                "p99_ms": round(1000 * latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))], 1),
                "max_ms": round(1000 * latencies[-1], 1),
                "asked": {"p50_ms": 50, "p99_ms": 500},
            }
        )
    )
    return 0


def measure(cluster: Cluster, faults: int) -> list[float]:
    """Seconds from the line to the drain, for each fault."""
    log, latencies = Log(cluster.root / "log" / "slurmctld.log"), []
    for number in range(faults):
        pci = f"{0x1000 + os.getpid() % 0xE000:04x}:{number:02x}:00"
        await_idle(cluster)
        began = time.time()
        say(f"NVRM: Xid (PCI:{pci}): 120, GSP task exception, drill {number}")
        at = log.drained_at(10.0)
        if at is None:
            raise SystemExit(f"fault {number} led to no drain within 10 s")
        latencies.append(max(0.0, at - began))
        say(f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
        if number % 20 == 0:
            sys.stderr.write(f"drain_latency: {number} of {faults}\n")
    await_idle(cluster)
    return latencies


if __name__ == "__main__":
    raise SystemExit(main())
