"""How fast /metrics answers with eight GPUs and every family there is, and whether a GPU that hangs makes it slower.

The real agent watches `h100x8` through the fake NVML library and its other sources as they are on this machine; the
page is asked over a connection of its own each time, as Prometheus does. Then a call about one GPU hangs for ever, the
agent notices, and the page is asked again.
Prints one JSON object; exit code 1 when the slowest of a hundred answers takes longer than asked.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench._agent import GPUS, Agent, spent
from tests.support.fake_nvml import FakeNvml
from tests.support.machines import machine

ASKED_MS = 25.0
SLOWER_MS = 2.0  # of two runs of the same thing one is slower; so much, in the middle, is chance
HUNG = "\ngpuguard_nvml_hung 1"
PAUSE = 0.01  # seconds between two scrapes: the agent has other things to do


def scraped(agent: Agent, count: int) -> dict[str, float]:
    """What the answers took."""
    times, before = [], agent.cpu_ns()
    for _ in range(count):
        began = time.perf_counter()
        agent.page()
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE)
    return told(sorted(times), spent(before, agent.cpu_ns()))


def told(times: list[float], cpu_ns: int) -> dict[str, float]:
    """The middle, the slow end, and what the agent and its child worked for each, sweeps included."""
    return {
        "p50_ms": round(statistics.median(times), 2),
        "p99_ms": round(times[int(len(times) * 0.99)], 2),
        "cpu_ms": round(cpu_ns / 1e6 / len(times), 2),
    }


def main() -> int:
    """0 as fast as asked, 1 not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=1000, help="answers timed before, and again after")
    args = parser.parse_args()
    with (
        FakeNvml(machine("h100x8")) as nvml,
        tempfile.TemporaryDirectory(prefix="gg-page-") as name,
        Agent(Path(name), "", nvml.env()) as agent,
    ):
        # Power comes with the first fast sweep, a link's bytes with the second medium one.
        agent.wait_for("\ngpuguard_power_watts{", GPUS)
        agent.wait_for("\ngpuguard_nvlink_", GPUS)
        page = agent.page()
        before = scraped(agent, args.scrapes)
        began = time.monotonic()
        nvml.hang("nvmlDeviceGetPowerUsage", device=3)
        agent.wait_for(HUNG)
        noticed = time.monotonic() - began
        after = scraped(agent, args.scrapes)
    series = [line for line in page.splitlines() if not line.startswith("#")]
    holds = max(before["p99_ms"], after["p99_ms"]) <= ASKED_MS and after["p50_ms"] <= before["p50_ms"] + SLOWER_MS
    print(
        json.dumps(
            {
                "series": len(series),
                "bytes": len(page),
                "healthy": before,
                "hung": after,
                "hang_noticed_s": round(noticed, 1),
                "asked": {"p99_ms": ASKED_MS, "p50_slower_ms": SLOWER_MS},
            }
        )
    )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
