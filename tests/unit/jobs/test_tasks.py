"""What one process does, from counters as the kernel gives them."""

from typing import Any

import msgspec
import pytest

from gpuguard.jobs.tasks import MARKS, TaskState
from gpuguard.jobs.views import TaskView
from gpuguard.model.ids import BootId, task
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Row, Values

EVERY = 10.0
PID = 41007


def instant(mono: float) -> Instant:
    return Instant(boot=BootId("A"), mono=mono)


class Process:
    """A process whose counters grow as told, looked at each ten seconds."""

    def __init__(self, **first: Any) -> None:
        typical: Values = {
            "task_name": "python3", "task_state": "R", "task_started_seconds": 812.5, "task_children": 0,
            "task_cpu_seconds_total": 400.0, "task_switches_total": 9000, "task_read_bytes_total": 10**9,
            "task_written_bytes_total": 10**8, "task_children_cpu_seconds_total": 0.0,
            "task_io_stall_seconds_total": 3.0,
        }  # fmt: skip
        self.values = typical | first
        self.mono = 5000.0
        self.state = TaskState()

    def look(self, times: int = 1, **grown: Any) -> "Process":
        """Looked at so often; numbers grow by so much a second, texts and unknowns are set."""
        for _ in range(times):
            self.mono += EVERY
            for name, value in grown.items():
                column, before = f"task_{name}", self.values.get(f"task_{name}")
                grows = isinstance(value, float) and isinstance(before, int | float)
                self.values[column] = before + EVERY * value if grows else value
            at = instant(self.mono)
            self.state = self.state.seen(Row(subject=task(PID), at=at, source="tasks", values=dict(self.values)), at)
        return self

    def view(self, later: float = 0.0) -> TaskView:
        return self.state.view(instant(self.mono + later))


WORKS: dict[str, Any] = {
    "state": "R", "cpu_seconds_total": 1.04, "switches_total": 210.0, "read_bytes_total": 2.5e6,
}  # fmt: skip


def test_rates_are_over_the_last_looks() -> None:
    seen = Process().look(20, **WORKS).look(2, cpu_seconds_total=0.5, read_bytes_total=1e6).view()
    assert (seen.pid, seen.name, seen.state) == (PID, "python3", "R")
    assert seen.cpu == pytest.approx(0.5)
    assert seen.io_bytes_per_second == pytest.approx(1e6)
    assert seen.io_stalled == 0.0
    assert seen.still == 0.0


def test_a_dead_lock_is_still() -> None:
    """All threads sleep but for the watchdog of NCCL, which looks each 100 ms."""
    seen = Process().look(6, **WORKS).look(6, state="S", waits_in="futex_wait_queue", cpu_seconds_total=0.003).view()
    assert (seen.state, seen.still, seen.state_seconds) == ("S", 60.0, 50.0)
    assert seen.waits_in == "futex_wait_queue"


def test_one_that_was_stopped_is_still() -> None:
    seen = Process().look(6, **WORKS).look(4, state="T").view()
    assert (seen.state, seen.still) == ("T", 40.0)


def test_waiting_for_the_gpu_on_a_processor_is_not_still() -> None:
    seen = Process().look(6, **WORKS).look(30, state="R", cpu_seconds_total=1.0).view()
    assert seen.still == 0.0
    assert seen.cpu == pytest.approx(1.0)


def test_waiting_for_loaders_that_work_is_not_still() -> None:
    process = Process().look(3, **WORKS, children=8)
    seen = process.look(10, state="S", cpu_seconds_total=0.001, children_cpu_seconds_total=7.4).view()
    assert seen.still == 0.0
    assert seen.children == 8
    assert seen.children_cpu == pytest.approx(7.4)


def test_waiting_for_loaders_that_hang_is_still_though_it_looks_each_five_seconds_whether_they_live() -> None:
    process = Process().look(3, **WORKS, children=8)
    assert process.look(6, state="S", cpu_seconds_total=0.0, switches_total=0.2).view().still == 60.0


def test_children_that_cannot_be_seen_may_work() -> None:
    process = Process().look(3, **WORKS, children=8)
    seen = process.look(6, state="S", children_cpu_seconds_total=None).view()
    assert seen.still == 0.0
    assert seen.children_cpu is None


def test_a_child_that_ended_moved_and_its_time_is_gone() -> None:
    process = Process(task_children=2, task_children_cpu_seconds_total=90.0).look(3).look(4, state="S")
    process.values["task_children_cpu_seconds_total"] = 40.0
    assert process.view().still == 60.0
    assert process.look(1, children=1).view().still == 0.0
    assert process.view().children_cpu is None
    assert process.look(3).view().still == 30.0


def test_waiting_for_storage_is_still_and_the_stall_grows() -> None:
    process = Process().look(6, **WORKS)
    seen = process.look(7, state="D", waits_in="nfs_wait_bit_killable", io_stall_seconds_total=0.98).view()
    assert (seen.state, seen.still, seen.state_seconds) == ("D", 70.0, 60.0)
    assert seen.io_stalled == pytest.approx(0.98)


def test_slow_reads_are_another_wait_each_time() -> None:
    process = Process().look(6, **WORKS)
    seen = process.look(10, state="D", switches_total=12.0, read_bytes_total=3e5, io_stall_seconds_total=0.8).view()
    assert (seen.still, seen.state_seconds) == (0.0, 0.0)
    assert seen.io_bytes_per_second == pytest.approx(3e5)


def test_what_is_not_told_is_not_known() -> None:
    process = Process(task_cpu_seconds_total=None, task_read_bytes_total=None, task_written_bytes_total=None)
    seen = process.look(7, state="S").view()
    assert (seen.cpu, seen.io_bytes_per_second, seen.still) == (None, None, 0.0)


def test_without_bytes_and_switches_its_time_on_processors_tells() -> None:
    """Another user's /proc/<pid>/io may not be read."""
    process = Process(task_switches_total=None, task_read_bytes_total=None, task_written_bytes_total=None)
    assert process.look(4, state="S").view().still == 30.0


def test_another_process_of_that_number_begins_anew() -> None:
    process = Process().look(7, state="S")
    assert process.view().still == 60.0
    seen = process.look(1, started_seconds=5001.0, cpu_seconds_total=0.1).view()
    assert (seen.still, seen.cpu, seen.state_seconds) == (0.0, None, 0.0)


def test_one_that_is_gone_is_no_longer_still() -> None:
    process = Process().look(7, state="S")
    process.values = {"task_gone": 1}
    seen = process.look(1).view()
    assert (seen.gone, seen.still, seen.name) == (True, 0.0, "python3")


def test_its_rank_is_remembered_and_no_other_text_is_one() -> None:
    process = Process(task_rank="5").look(1)
    process.values["task_rank"] = None
    assert process.look(1).view().rank == 5
    assert Process(task_rank="9" * 40).look(1).view().rank is None
    assert Process(task_rank="-1").look(1).view().rank is None


def test_rates_of_one_nobody_looked_at_are_not_known() -> None:
    process = Process().look(7, **WORKS)
    assert process.view(later=30.0).cpu == pytest.approx(1.04)
    assert process.view(later=90.0).cpu is None


def test_how_long_is_as_long_as_the_last_look_proves() -> None:
    assert Process().look(4, state="S").view(later=9.0).still == 30.0


def test_the_same_look_again_is_no_other_look() -> None:
    process = Process().look(3, state="S")
    at = instant(process.mono)
    row = Row(subject=task(PID), at=at, source="nvml", values=dict(process.values))
    assert process.state.seen(row, at) is process.state


def test_it_stays_small_and_survives_the_disk() -> None:
    state = Process().look(500, **WORKS).state
    assert len(state.marks) <= MARKS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TaskState) == state
