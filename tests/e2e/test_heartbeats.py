"""Real processes beat at a real socket: who they are, what they may say, what a flood does to others."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import NODE, JobId
from gpuguard.model.jobs import Owner
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.heartbeats import Heartbeats, Settings
from tests.support.beats import Voice, message, page, state

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
NOBODY = 65534
PATIENCE = 20.0

# A process that says what it is told on its standard input, a line each, as the user that it is started as.
SAYS = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
voice.connect(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    voice.send(line.encode())
"""
FLOODS = """
import os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
voices = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in range(8)]
for voice in voices:
    voice.connect(sys.argv[1])
print("ready", flush=True)
n = 0
while True:
    for voice in voices:
        n += 1
        try:
            voice.send(b'{"v":1,"rank":0,"n":%d}' % n)
        except BlockingIOError:
            pass
        except ConnectionRefusedError:
            try:
                voice.connect(sys.argv[1])
            except PermissionError:
                sys.exit(7)
"""
SHUT_OUT = 7

BAD: dict[str, dict[str, object] | bytes] = {
    "replayed": {"n": 5, "step": 2}, "future": {"n": 6, "at": 1e12}, "oversized": {"pad": "x" * 600},
    "not_understood": b"nonsense", "version": {"v": 9}, "before_start": {"n": 7, "at": 0.0},
}  # fmt: skip


def owner(cgroup: str, variables: Mapping[str, str]) -> Owner:
    """No keeper started what a test starts."""
    return Owner(job=None)


class Agent:
    """The source alone, in a thread of its own, and the newest that it said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = Heartbeats(Settings(socket=str(path), every=0.2), Path("/"), SystemClock(), owner_of=owner)  # type: ignore[arg-type]
        self.sweeps: list[Sweep] = []
        self._thread = threading.Thread(target=self.source.run, args=(self._emit, None))
        self._thread.start()
        self.until(lambda rows: True)

    def _emit(self, batch: Batch) -> None:
        self.sweeps += [event for event in batch.events if isinstance(event, Sweep)]

    def until(self, holds: Callable[[dict[str, Values]], object]) -> dict[str, Values]:
        """The first rows from now on that are so."""
        seen, end = max(0, len(self.sweeps) - 1), time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for sweep in self.sweeps[seen:]:
                if holds(rows := {str(name): values for name, values in sweep.rows.items()}):
                    return rows
            seen = len(self.sweeps)
            time.sleep(0.02)
        raise AssertionError(f"it never came to be so: {self.sweeps[-1:]}")

    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.source.register.refused.items() if count}

    def close(self) -> None:
        self.source.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Talker:
    """A process that says what it is told to."""

    def __init__(self, path: Path, uid: int | None = None, text: str = SAYS) -> None:
        command = [sys.executable, "-c", text, str(path), *([str(uid)] if uid is not None else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def say(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)  # another user must get there
    return tmp_path / "progress.sock"


@pytest.fixture
def agent(path: Path) -> Iterator[Agent]:
    with closing(Agent(path)) as one:
        yield one


def job(name: str, uid: int | None = None) -> str:
    return JobId(f"claimed/{os.getuid() if uid is None else uid}-{name}")


def test_a_process_beats_ends_and_is_started_again(agent: Agent) -> None:
    name = f"rank:{job('llama')}/3"
    with closing(Talker(agent.path)) as first:
        first.say(message(3, n=1, job="llama", step=100, phase="step", at=time.monotonic()))
        row = agent.until(lambda rows: name in rows)[name]
        assert (row["rank_step"], row["rank_pid"], row["rank_gone"]) == (100, first.process.pid, 0)
        first.say(message(3, n=2, job="llama", step=101))
        agent.until(lambda rows: rows[name]["rank_step"] == 101)
    agent.until(lambda rows: rows[name]["rank_gone"] == 1)
    with closing(Talker(agent.path)) as second:
        second.say(message(3, n=1, job="llama", step=50, restart=1))
        row = agent.until(lambda rows: rows[name]["rank_gone"] == 0)[name]
        assert (row["rank_step"], row["rank_pid"]) == (50, second.process.pid)


@needs_root
def test_another_user_speaks_for_nobody_else(agent: Agent) -> None:
    mine = f"rank:{job('llama')}/0"
    with closing(Talker(agent.path)) as own, closing(Talker(agent.path, NOBODY)) as other:
        own.say(message(0, n=1, job="llama", step=7))
        agent.until(lambda rows: mine in rows)
        other.say(message(0, n=99, job="llama", step=666, pid=own.process.pid))
        rows = agent.until(lambda rows: f"rank:{job('llama', NOBODY)}/0" in rows)
        assert rows[mine]["rank_step"] == 7


def test_bad_messages_are_counted_and_nothing_else_happens(agent: Agent) -> None:
    with closing(Talker(agent.path)) as talker:
        talker.say(message(0, n=5, job="a", step=1))
        agent.until(lambda rows: f"rank:{job('a')}/0" in rows)
        for count, (why, bad) in enumerate(BAD.items()):
            talker.say(message(0, job="a", **bad) if isinstance(bad, dict) else bad)
            agent.until(lambda rows, count=count: sum(agent.refused().values()) > count)  # type: ignore[misc]
            assert agent.refused()[why] == 1
        rows = agent.until(lambda rows: True)
        assert agent.refused() == dict.fromkeys(BAD, 1)
        assert rows[f"rank:{job('a')}/0"]["rank_step"] == 1


def test_a_page_tells_without_messages(agent: Agent) -> None:
    name = f"rank:{job('paged')}/0"
    descriptor = page(state(1, at=time.monotonic(), step=1))
    with closing(Voice(agent.path)) as voice:
        voice.say(message(0, n=1, job="paged", at=time.monotonic()), descriptor)
        agent.until(lambda rows: name in rows)
        for step in (2, 3, 50_000):
            os.pwrite(descriptor, state(step, at=time.monotonic(), step=step), 0)
            agent.until(lambda rows, step=step: rows[name].get("rank_step") == step)  # type: ignore[misc]
        assert agent.sweeps[-1].rows[NODE]["heartbeats_total"] == 1
    os.close(descriptor)


def test_ranks_find_an_agent_that_was_started_anew(path: Path) -> None:
    """What it knew is announced again; the socket's name is there again, though the old socket is dead."""
    for _ in range(2):
        with closing(Agent(path)) as agent, closing(Voice(path)) as voice:
            voice.say(message(0, n=1, job="a"))
            agent.until(lambda rows: f"rank:{job('a')}/0" in rows)


@needs_root
def test_a_flood_of_another_user_silences_nobody(agent: Agent) -> None:
    """Somebody sends as fast as it can through as many sockets as fill the queue, and is shut out: one who beats as
    always, and finds the socket anew when it must, is heard."""
    name, step = f"rank:{job('calm')}/0", 0
    with ExitStack() as stack:
        flood = stack.enter_context(closing(Talker(agent.path, NOBODY, FLOODS)))
        assert flood.process.wait(PATIENCE) == SHUT_OUT
        assert agent.refused()["flood"] > 1000
        voice = stack.enter_context(closing(Voice(agent.path)))
        for step in range(1, 4):
            assert voice.say(message(0, n=step, job="calm", step=step))
            agent.until(lambda rows, step=step: rows.get(name, {}).get("rank_step") == step)  # type: ignore[misc]
        assert set(agent.refused()) <= {"flood", "replayed"}
