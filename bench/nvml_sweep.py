"""What watching eight GPUs costs: CPU of the agent and its child together, and memory that stays what it is.

Three parts, all with the real nvidia-ml-py on the fake library that plays `h100x8`:
  cpu    the real agent with every source that it has by default, scraped every 15 s; a fast sweep every 5 s, then every
         1 s, medium and slow ones at their pace; and NVML alone, not scraped
  hangs  one process with the agent's loop, store and metrics in it, whose child hangs in a call, is judged hung and
         left behind, over and over
  day    the same process on a clock that leaps from sweep to sweep through 24 hours, a page of metrics each minute
Prints one JSON object; exit code 1 when one of the numbers asked for is not met. Names of parts as arguments measure
those alone.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench._agent import GPUS, Agent, spent
from bench._leaping import Simulated
from bench.idle import pss_mib
from gpuguard.errors import ReadFailed
from gpuguard.sources.nvml import Settings
from tests.support.fake_nvml import FakeNvml
from tests.support.machines import machine

CONFIG = """\
[agent]
{sources}
[sources.nvml]
fast = {fast:.1f}
"""
ALONE = 'sources = ["nvml"]'
ASKED = {"cpu_percent_5s": 0.3, "cpu_percent_1s": 1.0, "pss_mib": 70, "growth_mib": 2.0, "history_mib": 200}
SCRAPED_EVERY = 15.0  # seconds
WARM_UP = 8.0  # seconds; the first sweep of each class is past
DAY = 86400.0


class Cpu(NamedTuple):
    """Percent of one core, and MiB of all processes, while sweeps came at a pace."""

    percent: float
    agent_percent: float
    pss: float


def cpu(fast: float, seconds: float, *, alone: bool = False) -> Cpu:
    """What the real agent spends while it sweeps every `fast` seconds."""
    config = CONFIG.format(fast=fast, sources=ALONE if alone else "")
    with (
        FakeNvml(machine("h100x8")) as nvml,
        tempfile.TemporaryDirectory(prefix="gg-sweep-") as name,
        Agent(Path(name), config, nvml.env()) as agent,
    ):
        agent.wait_for("\ngpuguard_power_watts{", GPUS)
        time.sleep(WARM_UP)
        began, before = time.monotonic(), agent.cpu_ns()
        while (left := began + seconds - time.monotonic()) > 0:
            time.sleep(min(left, SCRAPED_EVERY))
            if not alone:
                agent.page()
        after, took = agent.cpu_ns(), time.monotonic() - began
        own = after[agent.pid] - before[agent.pid]
        return Cpu(spent(before, after) / took / 1e7, own / took / 1e7, agent.pss_mib())


@contextmanager
def simulated(nvml: FakeNvml, settings: Settings) -> Iterator[Simulated]:
    """An agent on a leaping clock, in this process."""
    with tempfile.TemporaryDirectory(prefix="gg-sweep-") as name:
        agent = Simulated(Path(name), CONFIG.format(fast=settings.fast, sources=ALONE), nvml.env(), settings)
        try:
            yield agent
        finally:
            agent.end()


def hangs(count: int) -> dict[str, object]:
    """Memory after so many calls that hung, against that after the first few."""
    settings = Settings(fast_deadline=0.05, init_deadline=60.0, first_wait=1.0, longest_wait=1.0)  # type: ignore[arg-type]
    with FakeNvml(machine("h100x8")) as nvml, simulated(nvml, settings) as agent:
        agent.run(agent.clock.now().mono + 600.0)
        nvml.hang("nvmlDeviceGetPowerUsage", device=3)
        early, done, began = 0.0, 0, time.monotonic()
        while done < count:
            try:
                agent.run(agent.clock.now().mono + DAY)
            except ReadFailed:
                done += 1
            if done in (count // 10, count):
                early, late = early or pss_mib(agent.pid), pss_mib(agent.pid)
            if done % 100 == 0:
                sys.stderr.write(f"nvml_sweep: {done} calls hung after {time.monotonic() - began:.0f} s\n")
        return {"hung": done, "pss_mib_early": early, "pss_mib": late, "growth_mib": late - early, **agent.left_over()}


def day(hours: float) -> dict[str, object]:
    """Memory and history after so many simulated hours, against those after the first."""
    settings = Settings()
    # The library's own time has to keep up, or nothing would move: some 500 simulated seconds pass in one.
    with FakeNvml(machine("h100x8"), speed=500.0) as nvml, simulated(nvml, settings) as agent:
        first, began = agent.clock.now().mono, time.monotonic()
        early = total = 0.0
        for hour in range(1, round(hours) + 1):
            agent.run(first + hour * 3600.0)
            total = agent.pss_mib()
            early = total if hour == 1 else early
            sys.stderr.write(f"nvml_sweep: hour {hour}, {total:.1f} MiB, after {time.monotonic() - began:.0f} s\n")
        return {
            "sweeps": agent.sweeps, "pss_mib_early": early, "pss_mib": total, "growth_mib": total - early,
            "history_mib": agent.history_mib(),
        }  # fmt: skip


def rounded(part: dict[str, object]) -> dict[str, object]:
    """To the second digit."""
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in part.items()}


def main() -> int:
    """0 all that was asked for holds, 1 something does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="cpu, hangs or day; all without")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each pace is measured")
    parser.add_argument("--hangs", type=int, default=1000, help="how many calls hang")
    parser.add_argument("--hours", type=float, default=24.0, help="how many hours are simulated")
    args = parser.parse_args()
    wanted = args.parts or ["cpu", "hangs", "day"]
    result: dict[str, object] = {}
    holds = True
    if "cpu" in wanted:
        for name, fast, alone in (
            ("cpu_percent_5s", 5.0, False), ("cpu_percent_1s", 1.0, False), ("cpu_percent_5s_nvml_alone", 5.0, True),
        ):  # fmt: skip
            sys.stderr.write(f"nvml_sweep: {name} for {args.seconds:.0f} s\n")
            measured = cpu(fast, args.seconds, alone=alone)
            result[name] = {
                "all": round(measured.percent, 3), "agent": round(measured.agent_percent, 3),
                "pss_mib": round(measured.pss, 1),
            }  # fmt: skip
            holds = holds and measured.percent <= ASKED.get(name, 100.0) and measured.pss <= ASKED["pss_mib"]
    for name, part in (("hangs", lambda: hangs(args.hangs)), ("day", lambda: day(args.hours))):
        if name in wanted:
            told = part()
            result[name] = rounded(told)
            growth, history = told["growth_mib"], told.get("history_mib", 0.0)
            assert isinstance(growth, float)
            assert isinstance(history, float)
            holds = holds and growth <= ASKED["growth_mib"] and history <= ASKED["history_mib"]
    print(json.dumps({**result, "asked": ASKED, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
