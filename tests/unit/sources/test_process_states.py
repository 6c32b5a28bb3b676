"""Processes of the GPU stack that hang or are dead: whose they are, and for how long."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.ids import NODE
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.process_states import ProcessStates, Settings, build
from tests.support.trees import gpu_device, host, process


class Node:
    """A host with a GPU, looked at as time goes by."""

    def __init__(self, root: Path, **settings: float) -> None:
        gpu_device(host(root), "0000:1b:00.0")
        self.root, self.clock = root, ManualClock()
        self.states = ProcessStates(Settings(**settings), root)  # type: ignore[arg-type]

    def look(self, after: float = 30.0) -> Values:
        self.clock.advance(after)
        return self.states.sweep(self.clock.now())[NODE]

    def told(self) -> tuple[object, object]:
        row = self.look()
        return row["gpu_stack_dstate_names"], row["gpu_stack_zombie_names"]


def holds(folder: Path, target: str) -> None:
    """The process has that file open."""
    (folder / "fd").mkdir(exist_ok=True)
    (folder / "fd/3").symlink_to(target)


def test_a_healthy_host(tmp_path: Path) -> None:
    process(tmp_path, 50, "python3")
    assert Node(tmp_path).look() == {
        "gpu_stack_dstate_processes": 0, "gpu_stack_dstate_oldest_seconds": 0.0, "gpu_stack_dstate_names": "",
        "gpu_stack_zombies": 0, "gpu_stack_zombies_oldest_seconds": 0.0, "gpu_stack_zombie_names": "",
        "dstate_processes": 0, "zombie_processes": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("comm", "wchan", "ours"),
    [
        ("nvidia-smi", "0", True), ("nv_queue", "0", True), ("irq/87-nvidia", "0", True),
        ("python3", "os_acquire_mutex", True),
        ("python3", "uvm_va_space_down_write", True), ("python3", "nvidia_ioctl", True),
        ("python3", "io_schedule", False),
        ("nvme-wq", "0", False), ("rsync", "rpc_wait_bit_killable", False),
    ],
)  # fmt: skip
def test_names_and_the_functions_that_they_wait_in(tmp_path: Path, comm: str, wchan: str, ours: bool) -> None:
    process(tmp_path, 60, comm, "D", wchan=wchan)
    row = Node(tmp_path).look()
    assert (row["dstate_processes"], row["gpu_stack_dstate_processes"]) == (1, int(ours))


def test_who_held_the_driver_before_it_hung_is_remembered_and_never_asked_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = process(tmp_path, 70, "python3")
    holds(folder, "/dev/nvidia0")
    other = process(tmp_path, 71, "postgres")
    holds(other, "/var/lib/db")
    node.look()
    (folder / "fd/3").unlink()
    process(tmp_path, 70, "python3", "D")
    process(tmp_path, 71, "postgres", "D")
    assert node.told() == ("python3(70) 0 s", "")
    assert node.told() == ("python3(70) 30 s", "")


def test_children_of_the_gpu_stack_belong_to_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    holds(process(tmp_path, 70, "python3"), "/dev/nvidia-uvm")
    process(tmp_path, 72, "sh", parent=70)
    process(tmp_path, 73, "pt_data_worker", parent=72)
    node.look()
    process(tmp_path, 73, "pt_data_worker", "Z", parent=72)
    assert node.told() == ("", "pt_data_worker(73) 0 s")


def test_another_process_of_the_same_number_is_another(tmp_path: Path) -> None:
    node = Node(tmp_path)
    holds(process(tmp_path, 70, "python3"), "/dev/nvidia0")
    node.look()
    process(tmp_path, 70, "tar", "D", started=5000)
    assert node.told() == ("", "")


@pytest.mark.parametrize("change", [{"cpu": 6}, {"switches": 8}, {"started": 1001}])
def test_one_that_ran_meanwhile_begins_anew(tmp_path: Path, change: dict[str, int]) -> None:
    node = Node(tmp_path)
    process(tmp_path, 60, "nvidia-smi", "D")
    node.look()
    assert node.look(600.0)["gpu_stack_dstate_oldest_seconds"] == 600.0
    process(tmp_path, 60, "nvidia-smi", "D", **change)  # type: ignore[arg-type]
    assert node.look()["gpu_stack_dstate_oldest_seconds"] == 0.0


def test_the_oldest_comes_first_and_names_are_few(tmp_path: Path) -> None:
    node = Node(tmp_path)
    process(tmp_path, 69, b"nvidia)\n D (\xff", "D")
    node.look()
    for pid in range(60, 66):
        process(tmp_path, pid, "nvidia-smi", "D")
    row = node.look()
    assert row["gpu_stack_dstate_processes"] == 7
    assert str(row["gpu_stack_dstate_names"]).startswith("nvidia)??D?(?(69) 30 s, nvidia-smi(60) 0 s, ")
    assert str(row["gpu_stack_dstate_names"]).endswith(" and 2 more")


def test_every_living_process_is_asked_in_turn(tmp_path: Path) -> None:
    node = Node(tmp_path, asked=4)
    for pid in range(100, 120):
        holds(process(tmp_path, pid, "python3"), "/dev/null")
    late = tmp_path / "proc/111/fd/3"
    for _ in range(10):
        node.look()
    late.unlink()
    late.symlink_to("/dev/nvidia3")
    for _ in range(10):
        node.look()
    process(tmp_path, 111, "python3", "D")
    assert node.told() == ("python3(111) 0 s", "")


def test_a_look_that_hangs_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, deadline=0.02)
    release, looks = threading.Event(), []

    def hangs() -> Iterator[bytes]:
        looks.append(1)
        release.wait(30)
        yield b""

    monkeypatch.setattr(node.states._processes, "stats", hangs)
    for _ in range(2):
        row = node.look()
        assert set(row.values()) == {None}
        assert "gpu_stack_zombies" in row
    assert len(looks) == 1
    release.set()


def test_hosts_without_a_gpu_and_containers(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no NVIDIA GPU"):
        build(Settings(), tmp_path, ManualClock()).run(lambda batch: None, None)
    gpu_device(tmp_path, "0000:1b:00.0")
    with pytest.raises(Absent, match="outside of a container"):
        ProcessStates(Settings(), tmp_path).sweep(ManualClock().now())
    with pytest.raises(ValueError, match="above 0"):
        Settings(every=0.0)  # type: ignore[arg-type]
