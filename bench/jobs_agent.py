"""What watching jobs costs: the real agent with every source, eight GPUs, and 64 ranks that beat 10 times a second.

The ranks are those of one job, by the library, in eight processes of eight ranks each. Measured in one run: without
them, with them, and with them once they have stopped, which is when verdicts are given. Prints one JSON object; exit
code 1 when one of the numbers asked for is not met.
Units   percent of one core, of the agent and all its children; MiB; seconds from the stop to the verdict
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench._agent import Agent, spent
from gpuguard.progress import Reporter
from tests.support.fake_nvml import FakeNvml
from tests.support.machines import machine

PROCESSES, RANKS, BEATS = 8, 64, 10.0
WARM_UP = 10.0
ASKED = {"with_percent": 0.5}
CONFIG = """\
[sources.heartbeats]
socket = "{socket}"
"""


def ranks(socket: str, first: int) -> None:
    """Ranks get on until SIGUSR1 comes; then they are there and silent."""
    reporters = [Reporter() for _ in range(RANKS // PROCESSES)]
    for number, reporter in enumerate(reporters):
        reporter.init(job="bench", rank=first + number, world=RANKS, socket=socket)
    stopped: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: stopped.append(number))
    step = 0
    while not stopped:
        step += 1
        for reporter in reporters:
            reporter.step(step)
        time.sleep(1.0 / BEATS)
    while True:
        signal.pause()


@contextlib.contextmanager
def training(socket: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The job, which is ended with the block."""
    job = [
        subprocess.Popen([sys.executable, __file__, "--ranks", str(socket), str(number * RANKS // PROCESSES)])
        for number in range(PROCESSES)
    ]
    try:
        yield job
    finally:
        for process in job:
            process.kill()
            process.wait()


def percent(agent: Agent, seconds: float) -> float:
    """Of a core, what the agent and its children spend from now on."""
    before, began = agent.cpu_ns(), time.monotonic()
    time.sleep(seconds)
    return 100e-9 * spent(before, agent.cpu_ns()) / (time.monotonic() - began)


def main() -> int:
    """Exit code 1 when something is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.ranks:
        ranks(asked.ranks[0], int(asked.ranks[1]))
    with tempfile.TemporaryDirectory(prefix="gg-jobs-") as name, FakeNvml(machine("h100x8")) as nvml:
        folder = Path(name)
        socket = folder / "progress.sock"
        with Agent(folder, CONFIG.format(socket=socket), nvml.env()) as agent:
            time.sleep(WARM_UP)
            without = percent(agent, asked.seconds)
            with training(socket) as job:
                time.sleep(WARM_UP)
                with_them = percent(agent, asked.seconds)
                memory = agent.pss_mib()
                for process in job:
                    os.kill(process.pid, signal.SIGUSR1)
                time.sleep(40.0)
                silent = percent(agent, asked.seconds / 2)
    result = {
        "ranks": RANKS, "beats_per_second": BEATS, "without_percent": round(without, 3),
        "with_percent": round(with_them, 3), "jobs_percent": round(with_them - without, 3),
        "silent_percent": round(silent, 3), "pss_mib": round(memory, 1),
    }  # fmt: skip
    missed = [name for name, most in ASKED.items() if float(result[name]) > most]
    sys.stdout.write(json.dumps({**result, "asked": ASKED, "missed": missed}) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
