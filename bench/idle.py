"""What agent and actuator cost a node: CPU while nothing happens, and memory idle and in a flood.

Both are the real processes with the kernel log alone. CPU is read from the account of the kernel (nanoseconds), memory
as PSS of every process. The actuator runs beside the agent here, although systemd starts it only when it is needed.
Prints one JSON object. The flood needs root and a writable kernel ring.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.kmsg import unlimited_writes

CONFIG = """\
[agent]
sources = ["kmsg"]
[actuators.delegate]
socket = "{folder}/a.sock"
[actuator]
socket = "{folder}/a.sock"
allow_users = []
[sources.kmsg]
trust_user_records = true
"""
LINES, SECONDS, XIDS = 60_000, 3.0, 60


def run_ns(pid: int) -> int:
    """Nanoseconds that all threads of a process have run.

    Reads   /proc/<pid>/task/*/schedstat, first column
    """
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def pss_mib(pid: int) -> float:
    """Proportional set size.

    Reads   /proc/<pid>/smaps_rollup
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no Pss for process {pid}")


def flood() -> None:
    """60,000 lines in 3 s, some of them Xids."""
    descriptor = os.open("/dev/kmsg", os.O_WRONLY)
    began = time.monotonic()
    for index in range(LINES):
        if index % (LINES // XIDS) == 0:
            text = f"NVRM: Xid (PCI:0000:{index // 1000 % 8 + 1:02x}:00): 43, pid={index}, name=idle-bench, Ch 00000008"
        else:
            text = f"nvidia-modeset: WARNING: GPU:{index % 8}: line {index} of a flood"
        os.write(descriptor, f"<4>{text}\n".encode())
        ahead = index * SECONDS / LINES - (time.monotonic() - began)
        if ahead > 0.002:
            time.sleep(ahead)
    os.close(descriptor)


def main() -> int:
    """0 measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to be idle")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gg-idle-", dir="/tmp") as name:
        folder = Path(name)
        config = folder / "config.toml"
        config.write_text(CONFIG.format(folder=folder))
        commands = (
            ["gpuguard.daemons.actuator", "--config", str(config)],
            ["gpuguard.cli", "agent", "--config", str(config), "--state-dir", str(folder / "state")],
        )
        commands[1].extend(["--listen", "127.0.0.1:0"])
        log = (folder / "log.txt").open("wb")
        processes = [subprocess.Popen([sys.executable, "-m", *c], stderr=log, stdout=log) for c in commands]
        try:
            time.sleep(5.0)
            began, before = time.monotonic(), [run_ns(p.pid) for p in processes]
            sys.stderr.write(f"idle: measuring for {args.seconds:.0f} s\n")
            time.sleep(args.seconds)
            elapsed = time.monotonic() - began
            shares = [100 * (run_ns(p.pid) - b) / 1e9 / elapsed for p, b in zip(processes, before, strict=True)]
            idle = [pss_mib(p.pid) for p in processes]
            highest = sum(idle)
            with unlimited_writes():
                child = os.fork()
                if child == 0:
                    flood()
                    os._exit(0)
                while os.waitpid(child, os.WNOHANG) == (0, 0):
                    highest = max(highest, sum(pss_mib(p.pid) for p in processes))
                    time.sleep(0.1)
            for _ in range(20):
                highest = max(highest, sum(pss_mib(p.pid) for p in processes))
                time.sleep(0.1)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(10)
    actuator, agent = 0, 1
    print(
        json.dumps(
            {
                "idle_s": round(elapsed, 1),
                "agent_cpu_percent": round(shares[agent], 4),
                "actuator_cpu_percent": round(shares[actuator], 4),
                "cpu_percent": round(sum(shares), 4),
                "agent_pss_mib": round(idle[agent], 1),
                "actuator_pss_mib": round(idle[actuator], 1),
                "pss_mib": round(sum(idle), 1),
                "flood_pss_mib": round(highest, 1),
                "asked": {"cpu_percent": 0.05, "pss_mib": 50, "flood_pss_mib": 70},
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
