"""How long NVRx waits for its node health check: the real `gpuguard-nvrx`, asked over its socket as NVRx asks.

The cache is that of a node with eight GPUs, one of them unfit. Each question opens a channel of its own, as NVRx does;
`kept_channel` asks the same over one that stays, `at_once` is the first with eight clients at a time.
Prints JSON: milliseconds at the median, the 99th percentile and the most, and the memory and processor time of the
process that answers. Exit code 1 when a 99th percentile is over LIMIT_MS.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
import msgspec

from gpuguard.health.snapshot import without_readings
from gpuguard.runtime.cache import Cache
from gpuguard.runtime.clock import read_boot_id
from tests.support.nvhcd import METHOD, Request, Response, asked, takes_the_node
from tests.support.snapshots import full, node

LIMIT_MS = 100.0
CLIENTS = 8


def cached(folder: Path) -> int:
    """Bytes of the cache that lies in the folder now."""
    boot = read_boot_id()
    if boot is None:
        raise SystemExit("this machine tells no boot id; is /proc mounted?")
    whole = node()
    snapshot = msgspec.structs.replace(whole, boot=boot, subjects=(*full().subjects, *whole.subjects[1:]))
    encoded = msgspec.json.encode(without_readings(snapshot))
    Cache(str(folder)).write(encoded)
    return len(encoded)


def timed(ask: Callable[[], Any], count: int) -> list[float]:
    """Seconds of each question."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        response = ask()
        times.append(time.perf_counter() - began)
        if takes_the_node(response):
            raise SystemExit(f"the answer is wrong: {response}")
    return times


def summed(times: list[float]) -> dict[str, float]:
    """Milliseconds."""
    times = sorted(times)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return {
        "questions": len(times), "p50_ms": round(1000 * times[len(times) // 2], 2), "p99_ms": round(1000 * p99, 2),
        "max_ms": round(1000 * times[-1], 2),
    }  # fmt: skip


def at_once(socket: str, count: int) -> list[float]:
    """Seconds of each question of CLIENTS that ask at the same time."""
    ready = threading.Barrier(CLIENTS)

    def client(_: int) -> list[float]:
        ready.wait()
        return timed(lambda: asked(socket), count // CLIENTS)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [seconds for some in pool.map(client, range(CLIENTS)) for seconds in some]


def cost(pid: int) -> dict[str, float]:
    """Memory in MiB and processor time in seconds."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return {"pss_mib": round(pss / 1024, 1), "cpu_s": round(ticks / os.sysconf("SC_CLK_TCK"), 2)}


def main() -> int:
    """0 measured and within LIMIT_MS."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gg-nvrx-", dir="/tmp") as name:
        folder, socket = Path(name), f"{name}/nvrx.sock"
        size = cached(folder)
        command = [sys.executable, "-m", "gpuguard.daemons.nvrx", "--socket", socket, "--state-dir", name]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 20
            while not Path(socket).exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit("gpuguard-nvrx does not listen; try it by hand")
                time.sleep(0.02)
            first = summed(timed(lambda: asked(socket), 1))
            idle = cost(process.pid)
            result: dict[str, object] = {"bench": "nvrx", "cache_bytes": size, "first_ms": first["max_ms"]}
            own = summed(timed(lambda: asked(socket), args.questions))
            with grpc.insecure_channel(f"unix://{socket}") as channel:
                call = channel.unary_unary(
                    METHOD, request_serializer=Request.SerializeToString, response_deserializer=Response.FromString
                )
                kept = summed(timed(lambda: call(Request(args=["--no-slurm"]), timeout=60.0), args.questions))
            together = summed(at_once(socket, args.questions))
            result |= {"own_channel": own, "kept_channel": kept, "at_once": together}
            result |= {"asked": {"p99_ms": LIMIT_MS}, "process": {"idle": idle, "after": cost(process.pid)}}
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(15)
    holds = max(own["p99_ms"], kept["p99_ms"], together["p99_ms"]) <= LIMIT_MS
    print(json.dumps({**result, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
