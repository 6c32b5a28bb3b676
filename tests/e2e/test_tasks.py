"""Real processes, as the kernel tells of them: running, stopped, hanging, dead, gone."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuguard.model.events import Sweep
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.readings import Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.clock import SystemClock
from gpuguard.sources.tasks import Settings, Tasks
from gpuguard.sweeping.owners import owner_of
from tests.support.require import require

# The parent of a vfork sleeps so that no signal but the last one wakes it, until its child is another program or over.
HANGS = """#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
    if (vfork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); pause(); _exit(0); }
    return 0;
}
"""


class Watched:
    """The source on this machine, with these processes for ranks."""

    def __init__(self, *pids: int) -> None:
        self.clock, self.tasks, self.pids = SystemClock(), Tasks(Settings(), Path("/")), pids

    def row(self, pid: int) -> Values | None:
        now = self.clock.now()
        ranks: dict[SubjectId, Values] = {SubjectId(f"rank:claimed/x/{pid}"): {"rank_pid": pid} for pid in self.pids}
        self.tasks.name(Sweep(id=EventId("x"), at=now, source="heartbeats", rate="fast", valid_for=60.0, rows=ranks))
        return self.tasks.sweep(now).get(SubjectId(f"task:{pid}"))

    def until(self, pid: int, so: Callable[[Values], bool]) -> Values:
        """Its row once that is so: the kernel needs a moment."""
        ends = time.monotonic() + 20.0
        while True:
            row = self.row(pid)
            if row is not None and so(row):
                return row
            assert time.monotonic() < ends, row
            time.sleep(0.02)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes, which are over when the test is, with those that they started."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **variables: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, start_new_session=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


Start = Callable[..., "subprocess.Popen[bytes]"]


def test_one_that_sleeps_and_one_that_is_stopped(started: Start) -> None:
    process = started("sleep", "600", RANK="5", CUDA_VISIBLE_DEVICES="2,3", TOKEN="hunter2")
    watched = Watched(process.pid)
    row = watched.until(process.pid, lambda row: row["task_name"] == "sleep" and row["task_state"] == "S")
    assert (row["task_parent"], row["task_uid"], row["task_gone"]) == (os.getpid(), os.getuid(), 0)
    assert isinstance(row["task_read_bytes_total"], int)
    assert row["task_job"] == (owner_of(Path("/proc/self/cgroup").read_text()).job or "")
    process.send_signal(signal.SIGSTOP)
    stopped = watched.until(process.pid, lambda row: row["task_state"] == "T")
    assert "task_waits_in" not in stopped
    process.send_signal(signal.SIGCONT)
    watched.until(process.pid, lambda row: row["task_state"] == "S")


def test_what_it_was_started_with(started: Start) -> None:
    process = started("sleep", "600", RANK="5", CUDA_VISIBLE_DEVICES="2,3", TOKEN="hunter2")
    Watched(process.pid).until(process.pid, lambda row: row["task_name"] == "sleep")
    row = Watched(process.pid).row(process.pid)
    assert row is not None
    assert (row["task_rank"], row["task_devices"]) == ("5", "2,3")
    assert "hunter2" not in repr(row)


def test_one_that_died_and_is_gone_when_its_parent_has_asked(started: Start) -> None:
    process = started("sleep", "600")
    watched = Watched(process.pid)
    watched.until(process.pid, lambda row: row["task_state"] == "S")
    process.kill()
    dead = watched.until(process.pid, lambda row: row["task_state"] == "Z")
    assert dead["task_gone"] == 0
    process.wait()
    gone = watched.until(process.pid, lambda row: row["task_gone"] == 1)
    assert gone["task_started_seconds"] == dead["task_started_seconds"]


def test_loaders_that_work_and_one_that_ends(started: Start) -> None:
    burn = "import os, time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass\n"
    parent = f"""import subprocess, sys
one = subprocess.Popen([sys.executable, "-c", {burn!r}])
two = subprocess.Popen([sys.executable, "-c", {burn!r} + "time.sleep(600)"])
one.wait()
sys.stdin.read()
two.kill(); two.wait()
"""
    process = started(sys.executable, "-c", parent)
    watched = Watched(process.pid)
    watched.tasks = Tasks(Settings(children=Seconds(0.0)), Path("/"))
    sums: list[float] = []

    def looked(row: Values) -> bool:
        sums.append(float(str(row["task_children_cpu_seconds_total"])))
        return row["task_children"] == 1 and sums[-1] >= 0.6

    watched.until(process.pid, looked)
    assert sums == sorted(sums)


def test_one_that_no_signal_ends(started: Start, tmp_path: Path) -> None:
    require("cc", shutil.which("cc") is not None, "apt-get install gcc libc6-dev")
    (tmp_path / "hangs.c").write_text(HANGS)
    subprocess.run(["cc", "-w", "-o", str(tmp_path / "hangs"), str(tmp_path / "hangs.c")], check=True, timeout=60)
    process = started(str(tmp_path / "hangs"))
    watched = Watched(process.pid)
    watched.tasks = Tasks(Settings(children=Seconds(0.0)), Path("/"))  # whose children are counted at every look
    row = watched.until(process.pid, lambda row: row["task_name"] == "hangs" and row["task_state"] == "D")
    assert row["task_children"] == 1
    child = next(
        int(line.split()[0])
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and (line := _stat(folder)).partition(") ")[2].split()[1:2] == [str(process.pid)]
    )
    os.kill(child, signal.SIGKILL)
    watched.until(process.pid, lambda row: row["task_state"] == "Z")


def _stat(folder: Path) -> str:
    try:
        return (folder / "stat").read_text()
    except OSError:
        return ""
