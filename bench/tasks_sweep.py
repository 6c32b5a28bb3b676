"""What it costs to look at the processes on GPUs: 64 of them, each with data loaders, among the others of this machine.

The processes are real and sleep. Milliseconds of processor time a look, threads included, over LOOKS looks; a look for
children is made in every second one, as with the defaults. `core_percent` is that at one look each five seconds.
Prints one JSON object; exit code 1 when it is more than asked.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuguard.model.events import Sweep
from gpuguard.model.ids import EventId, SubjectId, kind_of
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.tasks import Settings, Tasks

TASKS, LOADERS, LOOKS = 64, 4, 50
ASKED_PERCENT = 0.4  # of a core: the agent with 64 ranks is to stay below half a percent, heartbeats included
PARENT = "import subprocess, sys; c = [subprocess.Popen(['sleep', '600']) for _ in range({})]; print(flush=True); sys.stdin.read(); [p.kill() for p in c]"  # noqa: E501 - one program


@contextlib.contextmanager
def running(tasks: int, loaders: int) -> Iterator[list[int]]:
    """Their pids, once all of them run."""
    command = [sys.executable, "-S", "-c", PARENT.format(loaders)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(tasks)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def main() -> int:
    """Exit code."""
    clock, watched = ManualClock(), Tasks(Settings(), Path("/"))
    spent, took = [], []
    with running(TASKS, LOADERS) as pids:
        rows = {SubjectId(f"rank:slurm/1/{n}"): {"rank_pid": pid} for n, pid in enumerate(pids)}
        for n in range(LOOKS + 2):
            now = clock.advance(5.0)
            watched.name(
                Sweep(id=EventId(f"{n}"), at=now, source="heartbeats", rate="fast", valid_for=60.0, rows=rows)  # type: ignore[arg-type]
            )
            busy, began = time.process_time(), time.perf_counter()
            found = watched.sweep(now)
            if n >= 2:  # the first ones read what is read once
                spent.append((time.process_time() - busy) * 1000)
                took.append((time.perf_counter() - began) * 1000)
        seen = [values for subject, values in found.items() if kind_of(subject) == "task"]
        others = sum(name.isdigit() for name in os.listdir("/proc"))
        loaders = sum(int(str(values["task_children"])) for values in seen)
    busy_ms = statistics.mean(spent)
    percent = busy_ms / 5000 * 100
    print(json.dumps({
        "asked_core_percent": ASKED_PERCENT, "tasks": len(seen), "loaders": loaders,
        "processes": others, "cpu_ms": round(busy_ms, 2),
        "cpu_us_per_task": round(busy_ms / max(1, len(seen)) * 1000, 1), "look_ms": round(statistics.median(took), 2),
        "slowest_look_ms": round(max(took), 2), "core_percent": round(percent, 3),
    }))  # fmt: skip
    return int(percent > ASKED_PERCENT or len(seen) != TASKS or loaders != TASKS * LOADERS)


if __name__ == "__main__":
    sys.exit(main())
