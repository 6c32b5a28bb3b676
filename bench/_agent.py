"""The real agent on the fake NVML library, measured with all its children."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.idle import pss_mib
from tests.support.live_agent import LiveAgent

GPUS = 8


class Agent(LiveAgent):
    """One agent, with what it costs."""

    def cpu_ns(self) -> dict[int, int]:
        """Nanoseconds that each of its processes has run."""
        return {pid: process_ns(pid) for pid in (self.pid, *self.children())}

    def pss_mib(self) -> float:
        """Memory of all its processes together."""
        return sum(pss_mib(pid) for pid in (self.pid, *self.children()))


def process_ns(pid: int) -> int:
    """Nanoseconds that a process has run, threads that have ended among them: each scrape has a thread of its own.

    Source  linux include/linux/posix-timers_types.h: a CPU clock's number is the complement of the pid and its kind, 2
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def spent(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Nanoseconds between two looks; a process that began in between counts whole."""
    return sum(ns - before.get(pid, 0) for pid, ns in after.items())
