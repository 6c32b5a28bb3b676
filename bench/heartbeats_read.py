"""What reading heartbeats costs the agent, and how soon it knows: the real source, real processes, a real socket.

  idle     nobody beats
  page     64 processes get on 10 times a second and say so in their pages, with a message every 10 s
  message  the same, with a message each time
  burst    a process gets on 10,000 times a second, by page and by message: how old its newest known step gets
  flood    a process of another user sends as fast as it can through eight sockets: how long one that sends a message
           ten times a second is not heard, how old what is known by page gets, and what it costs (root alone)
The costs are those of the source's thread, the sweep included, in percent of a core. Prints one JSON object; exit code
1 when one of the numbers asked for is not met.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.model.events import Batch, Sweep
from gpuguard.model.jobs import Owner
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.heartbeats import Heartbeats, Settings
from tests.support.beats import Voice, message, page, state

RANKS, BEATS = 64, 10.0
ANNOUNCED = 10.0  # seconds from one message of a rank with a page to the next
ASKED = {"page_percent": 0.5, "message_percent": 0.5, "burst_page_s": 1.0, "burst_message_s": 1.0}
NOBODY = 65534
Rank = Callable[[Path, int], None]


def owner(cgroup: str, variables: Mapping[str, str]) -> Owner:
    """No keeper started these."""
    return Owner(job=None)


class Agent:
    """The source in a thread, what that thread spent, and how old what it knows gets."""

    def __init__(self, path: Path) -> None:
        self._source = Heartbeats(Settings(socket=str(path)), Path("/"), SystemClock(), owner_of=owner)
        self._thread = threading.Thread(target=self._source.run, args=(self._emit, None))
        self.rows: dict[str, Values] = {}
        self.oldest: dict[str, float] = {}  # how old the known step of each rank was, at most
        self._thread.start()
        while not self.rows:
            time.sleep(0.01)
        self._clock = time.pthread_getcpuclockid(self._thread.ident or 0)

    def _emit(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, Sweep):
                now = time.monotonic()
                # Until this moment the sweep before was all that was known.
                for name, row in self.rows.items():
                    if "rank_step" in row:
                        age = now - float(str(row["rank_step"])) / 1e6
                        self.oldest[name] = max(age, self.oldest.get(name, 0.0))
                self.rows = {str(name): values for name, values in event.rows.items()}

    def percent(self, seconds: float) -> float:
        """What it spends of a core."""
        began, before = time.monotonic(), time.clock_gettime(self._clock)
        time.sleep(seconds)
        return 100.0 * (time.clock_gettime(self._clock) - before) / (time.monotonic() - began)

    def ranks(self) -> int:
        """How many it knows."""
        return sum(name.startswith("rank:") for name in self.rows)

    def close(self) -> None:
        """It ends."""
        self._source.stop()
        self._thread.join()


@contextmanager
def agent() -> Iterator[tuple[Agent, Path]]:
    """One that listens, and where."""
    with tempfile.TemporaryDirectory(prefix="gg-beats-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        path = Path(name) / "progress.sock"
        one = Agent(path)
        try:
            yield one, path
        finally:
            one.close()


@contextmanager
def processes(path: Path, count: int, run: Rank) -> Iterator[None]:
    """So many processes, each a rank, until they are told to end."""
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            os.closerange(3, 4096)  # the agent's socket among them: it must end when the agent closes it
            try:
                run(path, number)
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def now_us() -> int:
    """The step that every rank is at: the time, so that what is known of it tells how old it is."""
    return time.monotonic_ns() // 1000


def by_page(pause: float) -> Rank:
    """Gets on again and again, and says so in its page."""

    def run(path: Path, number: int) -> None:
        voice, announced, n = Voice(path), 0.0, 0
        descriptor = page(state(0, at=time.monotonic(), step=now_us()))
        due = time.monotonic()
        while True:
            n, now = n + 1, time.monotonic()
            os.pwrite(descriptor, state(n, at=now, step=now_us(), since=now, loss=2.5), 0)
            said = message(number, n=n, job="llama", world=RANKS, at=now, step=now_us(), via="library")
            try:
                if now - announced >= ANNOUNCED and voice.say(said, descriptor):
                    announced = now
            except ConnectionRefusedError:  # somebody was shut out, and the socket is another one
                voice.socket.connect(str(path))
            due = wait(due + pause)

    return run


def by_message(pause: float, job: str = "llama") -> Rank:
    """Gets on again and again, and sends a message each time; one for which there is no room is lost."""

    def run(path: Path, number: int) -> None:
        voice, n, due = Voice(path), 0, time.monotonic()
        while True:
            n, now = n + 1, time.monotonic()
            said = message(
                    number, n=n, job=job, world=RANKS, restart=0, host="node7", pid=os.getpid(), step=now_us(),
                    phase="step", since=now, at=now, saved=5, saved_at=now - 1, blocked=1.5, loss=2.5,
            )  # fmt: skip
            try:
                voice.say(said)
            except ConnectionRefusedError:
                voice.socket.connect(str(path))
            due = wait(due + pause)

    return run


def wait(due: float) -> float:
    """It is `due`; a moment that is past is left out."""
    left = due - time.monotonic()
    if left > 0:
        time.sleep(left)
    return max(due, time.monotonic() - 0.1)


def flood(path: Path, number: int) -> None:
    """As fast as it can, as another user."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    voices = [Voice(path) for _ in range(8)]
    data = message(0, n=1, job="flood")
    while True:
        for voice in voices:
            try:
                voice.say(data)
            except ConnectionRefusedError:
                try:
                    voice.socket.connect(str(path))
                except PermissionError:
                    time.sleep(1e-4)  # shut out, and tries for ever


def cost(run: Rank | None, seconds: float) -> float:
    """What the source spends while all ranks do that."""
    with agent() as (one, path):
        if run is None:
            return one.percent(seconds)
        with processes(path, RANKS, run):
            while one.ranks() < RANKS:
                time.sleep(0.1)
            time.sleep(2.0)
            return one.percent(seconds)


def age(run: Rank, seconds: float) -> float:
    """How old the newest known step of a rank gets, at most."""
    with agent() as (one, path), processes(path, 1, run):
        while one.ranks() < 1:
            time.sleep(0.1)
        one.oldest = {}
        time.sleep(seconds)
        return max(one.oldest.values())


def flooded(seconds: float) -> dict[str, object]:
    """What a flood does to others."""
    with agent() as (one, path), processes(path, 1, by_page(0.1)), processes(path, 1, by_message(0.1, "calm")):
        while one.ranks() < 2:
            time.sleep(0.1)
        with processes(path, 1, flood):
            one.oldest = {}
            percent = one.percent(seconds)
            return {
                "flood_percent": round(percent, 2),
                "flood_page_s": round(max(v for k, v in one.oldest.items() if "llama" in k), 2),
                "flood_message_s": round(max(v for k, v in one.oldest.items() if "calm" in k), 2),
            }


def main() -> int:
    """0 what was asked for holds, 1 it does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each part is measured")
    seconds = parser.parse_args().seconds
    measured: dict[str, float] = {}
    for name, run in {"idle": None, "page": by_page(1 / BEATS), "message": by_message(1 / BEATS)}.items():
        sys.stderr.write(f"heartbeats_read: {name}\n")
        measured[f"{name}_percent"] = round(cost(run, seconds), 4)
    for name, rank in {"page": by_page(1e-4), "message": by_message(1e-4)}.items():
        sys.stderr.write(f"heartbeats_read: burst by {name}\n")
        measured[f"burst_{name}_s"] = round(age(rank, seconds / 2), 3)
    others = flooded(seconds) if os.getuid() == 0 else {}
    print(json.dumps({"ranks": RANKS, "beats_per_second": BEATS, **measured, **others, "asked": ASKED}))
    return int(any(measured[name] > limit for name, limit in ASKED.items()))


if __name__ == "__main__":
    raise SystemExit(main())
