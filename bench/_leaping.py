"""The agent's loop, store, history and metrics in one process, with a real NVML child, on a clock that leaps.

Nothing waits: where the source would, the clock is moved on instead. The child answers in its own, real time.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.idle import pss_mib
from gpuguard.child.process import Child
from gpuguard.daemons.agent import Agent
from gpuguard.model.events import Batch
from gpuguard.model.instants import Instant
from gpuguard.runtime.assembly import DATABASE, assemble
from gpuguard.runtime.clock import SystemClock
from gpuguard.runtime.http import metrics_page
from gpuguard.runtime.log import set_up_log
from gpuguard.sources.nvml import Nvml, Settings

PAGE_EVERY = 60.0  # simulated seconds between two pages of metrics


class LeapingClock:
    """The machine's clock, moved on by whoever would wait otherwise."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._leapt = 0.0

    def now(self) -> Instant:
        """This moment, later than it is."""
        now = self._real.now()
        utc = None if now.utc is None else now.utc + self._leapt
        return msgspec.structs.replace(now, mono=now.mono + self._leapt, utc=utc)

    def leap(self, seconds: float) -> None:
        """So much later."""
        self._leapt += seconds


class LeapingChild:
    """A real child; to wait for it without having asked it something is to leap."""

    def __init__(self, child: Child, clock: LeapingClock) -> None:
        self._child, self._clock = child, clock
        self._asked = 0

    def send(self, message: bytes) -> None:
        self._asked += 1
        self._child.send(message)

    def receive(self, timeout: float, *wakes: int) -> bytes | None:
        if not self._asked:
            self._clock.leap(timeout)
            return self._child.receive(0.0)
        message = self._child.receive(timeout)
        self._asked -= message is not None
        return message

    def gone(self) -> bool:
        return self._child.gone()

    def stop(self, within: float) -> bool:
        return self._child.stop(within)

    def abandon(self) -> None:
        self._child.abandon()

    @property
    def pid(self) -> int:
        return self._child.pid


class Simulated:
    """One agent whose only source is NVML; `run` until a moment of its clock. `env` becomes this process's own."""

    def __init__(self, folder: Path, config: str, env: Mapping[str, str], settings: Settings) -> None:
        os.environ.update(env)
        path = folder / "config.toml"
        path.write_text(config)
        self.clock = LeapingClock()
        set_up_log(self.clock, level="warning")  # standard output is for the measurement
        self.pid = os.getpid()
        self.sweeps = 0
        self._state = folder / "state"
        self._agent = Agent(assemble(path), state_dir=self._state, root=Path("/"), listen=None, clock=self.clock)
        self._children: list[LeapingChild] = []
        self._source = Nvml(settings, Path("/"), self.clock, start=self._start, rest=self.clock.leap)
        self._until = 0.0
        self._page_due = 0.0

    def run(self, until: float) -> None:
        """The clock has come this far.

        Raises  ReadFailed where NVML hung
        """
        self._until = until
        try:
            self._source.run(self._take, None)
        except _Reached:
            return

    def _start(self) -> LeapingChild:
        child = LeapingChild(self._source._start_child(), self.clock)
        self._children = [known for known in self._children if not known.gone()] + [child]
        return child

    def _take(self, batch: Batch) -> None:
        agent, now = self._agent, self.clock.now().mono
        self.sweeps += len(batch.events)
        agent._take(batch)
        agent._loop.tick_when_due()
        agent._loop.write_when_due()
        if agent._loop.changed:
            agent._publish()
        if now >= self._page_due:
            self._page_due = now + PAGE_EVERY
            assert metrics_page(agent._families)()[1]
        if now >= self._until:
            raise _Reached

    def pss_mib(self) -> float:
        """Memory of this process and of its child."""
        return pss_mib(self.pid) + sum(pss_mib(child.pid) for child in self._children if not child.gone())

    def left_over(self) -> dict[str, object]:
        """Children that still live, and files that are open."""
        time.sleep(0.5)
        living = sum(not child.gone() for child in self._children)
        return {"children": living, "open_files": len(os.listdir("/proc/self/fd"))}

    def history_mib(self) -> float:
        """Size of the database with its journal."""
        return sum(path.stat().st_size for path in self._state.glob(f"{DATABASE}*")) / 2**20

    def end(self) -> None:
        """Children are told to end, files are closed."""
        for child in self._children:
            child.stop(2.0)
        self._agent._store.close()


class _Reached(Exception):
    """The clock has come as far as it was to."""
