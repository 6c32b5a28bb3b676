"""Processes on GPUs and of ranks: what they do, whose they are, and that nothing hangs or leaks."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import ReadFailed
from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import NODE, EventId, SubjectId, kind_of
from gpuguard.model.jobs import TASK
from gpuguard.model.readings import Values, plausible
from gpuguard.model.units import Seconds
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources import tasks
from gpuguard.sources.tasks import QUANTITIES, Settings, Tasks, build, read_variables, unified_path
from gpuguard.sweeping.rounds import Rows
from tests.support.machines import NAMES, NODES
from tests.support.trees import gpu_device, host, process, put

GROUP = "/system.slice/slurmstepd.scope/job_8123/step_0/user/task_1"
STALLED = "some avg10=1.00 avg60=0.00 avg300=0.00 total=9000000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=2500000"
NOBODYS = b"RANK=3\0CUDA_VISIBLE_DEVICES=0,1\0AWS_SECRET_ACCESS_KEY=hunter2\0"


def rank(root: Path, pid: int, state: str = "R", *, group: str = GROUP, environ: bytes = NOBODYS, **more: Any) -> Path:
    """A process with every file that is read; Any: what trees.process takes."""
    folder = process(root, pid, "python3", state, **more)
    (folder / "cgroup").write_text(f"0::{group}\n")
    (folder / "io").write_text("rchar: 5000\nwchar: 70\nsyscr: 9\nsyscw: 9\nread_bytes: 4096\nwrite_bytes: 0\n")
    (folder / "environ").write_bytes(environ)
    status = (folder / "status").read_text()
    (folder / "status").write_text(f"{status}Uid:\t1000\t1001\t1000\t1000\n")
    return folder


def sweep_of(rows: Mapping[str, Values], clock: ManualClock, source: str = "nvml", valid_for: float = 15.0) -> Sweep:
    return Sweep(
        id=EventId(f"{source}:{clock.now().mono}"), at=clock.now(), source=source, rate="fast", valid_for=valid_for,
        rows={SubjectId(subject): values for subject, values in rows.items()},
    )  # fmt: skip


class Node:
    """A host whose processes others name."""

    def __init__(self, root: Path, **settings: Any) -> None:  # Any: seconds and counts
        self.root, self.clock = host(root), ManualClock()
        self.tasks = Tasks(Settings(**settings), root)

    def on_gpu(self, *pids: int) -> None:
        rows: dict[str, Values] = {"gpu:0000:1b:00.0": {"process_count": len(pids)}}
        rows |= {f"process:0000:1b:00.0/{pid}": {"process_name": "python3"} for pid in pids}
        self.tasks.name(sweep_of(rows, self.clock))

    def ranks(self, *pids: int) -> None:
        rows: dict[str, Values] = {f"rank:slurm/8123/{n}": {"rank_pid": pid} for n, pid in enumerate(pids)}
        self.tasks.name(sweep_of(rows, self.clock, "heartbeats"))

    def look(self, after: float = 5.0) -> Rows:
        self.clock.advance(after)
        return self.tasks.sweep(self.clock.now())

    def __getitem__(self, pid: int) -> Values:
        return self.look()[SubjectId(f"task:{pid}")]


def test_everything_that_can_be_told_of_a_process(tmp_path: Path) -> None:
    rank(tmp_path, 60, parent=7, started=5000, cpu=250, switches=41)
    put(tmp_path, {f"sys/fs/cgroup{GROUP}/io.pressure": STALLED, "proc/pressure/io": STALLED.replace("2500", "7250")})
    node = Node(tmp_path)
    node.on_gpu(60)
    rows = node.look()
    assert rows == {
        NODE: {"io_stall_seconds_total": 7.25},
        "task:60": {
            "task_name": "python3", "task_state": "R", "task_job": "slurm/8123", "task_part": "0",
            "task_job_claimed": 0, "task_uid": 1000, "task_parent": 7, "task_started_seconds": 50.0,
            "task_cpu_seconds_total": 2.5, "task_switches_total": 41, "task_read_bytes_total": 5000,
            "task_written_bytes_total": 70, "task_children": 0, "task_children_cpu_seconds_total": 0.0,
            "task_io_stall_seconds_total": 2.5, "task_devices": "0,1", "task_rank": "3", "task_gone": 0,
        },
    }  # fmt: skip
    assert {quantity.name for quantity in QUANTITIES} == {*rows[SubjectId("task:60")], "task_waits_in", *rows[NODE]}


def test_nobody_is_looked_at_who_is_not_named(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    node = Node(tmp_path)
    assert node.look() == {}
    node.on_gpu(60)
    assert list(node.look()) == ["task:60"]
    node.on_gpu()
    assert node.look() == {}


def test_a_source_that_says_nothing_more_names_nobody_any_more(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    rank(tmp_path, 61)
    node = Node(tmp_path)
    node.on_gpu(60)
    node.clock.advance(10.0)
    node.ranks(61)
    assert list(node.look()) == ["task:61", "task:60"]
    assert list(node.look()) == ["task:61"]


def test_where_it_sleeps_is_told_of_those_that_sleep(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ranks(60, 61, 62)
    rank(tmp_path, 60, "D", wchan="rpc_wait_bit_killable")
    rank(tmp_path, 61, "S", wchan="0")
    rank(tmp_path, 62, "S", wchan="x y\x1b")
    rows = node.look()
    assert [rows[SubjectId(f"task:{pid}")]["task_waits_in"] for pid in (60, 61, 62)] == [
        "rpc_wait_bit_killable", None, None,
    ]  # fmt: skip
    rank(tmp_path, 60, "T", wchan="do_signal_stop")
    assert "task_waits_in" not in node[60]


def test_one_that_ended_while_it_is_named_is_gone_and_still_somebodys(tmp_path: Path) -> None:
    folder = rank(tmp_path, 60)
    node = Node(tmp_path)
    node.on_gpu(60, 61)
    alive = node.look()[SubjectId("task:60")]
    assert node[61] == {"task_gone": 1}
    folder.rename(tmp_path / "over")
    gone = node[60]
    assert gone.pop("task_gone") == 1
    assert gone == {column: alive[column] for column in tasks.IDENTITY}


def test_a_dead_one_that_nobody_waited_for_is_not_gone(tmp_path: Path) -> None:
    rank(tmp_path, 60, "Z", environ=b"")
    node = Node(tmp_path)
    node.on_gpu(60)
    row = node[60]
    assert (row["task_state"], row["task_gone"]) == ("Z", 0)


def test_another_process_of_the_same_number_is_not_the_rank(tmp_path: Path) -> None:
    rank(tmp_path, 60, started=1000)
    node = Node(tmp_path)
    node.ranks(60)
    assert node[60]["task_gone"] == 0
    rank(tmp_path, 60, started=9000, group="/system.slice/other.service")
    row = node[60]
    assert (row["task_gone"], row["task_job"], row["task_started_seconds"]) == (1, "slurm/8123", 10.0)


def test_another_process_of_the_same_number_that_is_on_the_gpu_is_another_task(tmp_path: Path) -> None:
    rank(tmp_path, 60, started=1000)
    node = Node(tmp_path)
    node.on_gpu(60)
    assert node[60]["task_rank"] == "3"
    rank(tmp_path, 60, started=9000, group="/system.slice/other.service", environ=b"RANK=7\0")
    row = node[60]
    assert (row["task_gone"], row["task_job"], row["task_rank"]) == (0, "systemd/other.service", None)
    assert node[60]["task_rank"] == "7"


def test_from_within_a_container_only_ranks_are_looked_at(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    rank(tmp_path, 61)
    node = Node(tmp_path)
    process(tmp_path, 2, "bash")
    node.on_gpu(60, 99)
    node.ranks(61, 98)
    assert list(node.look()) == ["task:61"], "98 may be hidden, 60 is somebody else"
    (tmp_path / "proc/61").rename(tmp_path / "over")
    assert node[61]["task_gone"] == 1


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    folder = rank(tmp_path, 60, environ=NOBODYS + b"NAME\xff=1\0no equals sign\0RANK_FILE=/x\0SLURM_JOB_ID=1\0")
    told = read_variables(str(folder))
    assert told.variables == {"RANK": "3", "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_ID": "1"}
    node = Node(tmp_path)
    node.on_gpu(60)
    assert "hunter2" not in repr(node.look())


@pytest.mark.parametrize(
    ("environ", "devices", "number"),
    [
        (b"CUDA_VISIBLE_DEVICES=\0RANK=0\0", "", "0"),
        (b"CUDA_VISIBLE_DEVICES=MIG-1/0/2,GPU-8f\0SLURM_PROCID=5\0", "MIG-1/0/2,GPU-8f", "5"),
        (b"CUDA_VISIBLE_DEVICES=\x1b[31m\0RANK=-1\0", None, None),
        (b"CUDA_VISIBLE_DEVICES=" + b"0" * 2000 + b"\0RANK=12345678901\0", None, None),
        (b"OMPI_COMM_WORLD_RANK=4\0SLURM_PROCID=5\0CUDA_VISIBLE_DEVICES=0\0", "0", "4"),
    ],
)
def test_what_an_environment_may_say(tmp_path: Path, environ: bytes, devices: str | None, number: str | None) -> None:
    rank(tmp_path, 60, environ=environ)
    node = Node(tmp_path)
    node.on_gpu(60)
    row = node[60]
    assert (row["task_devices"], row["task_rank"]) == (devices, number)


def test_an_environment_without_them_has_no_devices_and_no_rank(tmp_path: Path) -> None:
    rank(tmp_path, 60, environ=b"HOME=/\0")
    node = Node(tmp_path)
    node.on_gpu(60)
    assert not node[60].keys() & {"task_devices", "task_rank"}


def test_an_environment_is_read_once(tmp_path: Path) -> None:
    folder = rank(tmp_path, 60)
    node = Node(tmp_path)
    node.on_gpu(60)
    assert node[60]["task_rank"] == "3"
    (folder / "environ").write_bytes(b"RANK=9\0")
    assert node[60]["task_rank"] == "3"


def test_a_job_that_only_the_environment_names(tmp_path: Path) -> None:
    rank(tmp_path, 60, group="/system.slice/slurmd.service", environ=b"SLURM_JOB_ID=77\0SLURM_STEP_ID=0\0")
    node = Node(tmp_path)
    node.on_gpu(60)
    row = node[60]
    assert (row["task_job"], row["task_part"], row["task_job_claimed"]) == ("slurm/77", "0", 1)


def unreadable(folder: Path, name: str) -> None:
    """A file whose reading fails, for root as well: a folder of that name."""
    (folder / name).unlink()
    (folder / name).mkdir()


def test_whose_it_is_may_be_unknown_and_is_then_not_nobodys(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for pid, group in ((60, "/system.slice/slurmd.service"), (61, "/"), (62, "/user.slice/session-1.scope"), (63, "/")):
        unreadable(rank(tmp_path, pid, group=group), "cgroup" if pid == 63 else "environ")
    node.on_gpu(60, 61, 62, 63)
    rows = node.look()
    assert [rows[SubjectId(f"task:{pid}")]["task_job"] for pid in (60, 61, 62, 63)] == [None, None, "", None]
    assert rows[SubjectId("task:62")]["task_devices"] is None


def test_what_may_not_be_read_is_unknown_and_what_does_not_exist_absent(tmp_path: Path) -> None:
    folder = rank(tmp_path, 60)
    unreadable(folder, "io")
    put(tmp_path, {f"sys/fs/cgroup{GROUP}/io.pressure": "full of it", "proc/pressure/io": "nothing"})
    node = Node(tmp_path)
    node.on_gpu(60, 61)
    (rank(tmp_path, 61) / "io").unlink()
    rows = node.look()
    assert rows[SubjectId("task:60")]["task_read_bytes_total"] is None
    assert "task_read_bytes_total" not in rows[SubjectId("task:61")]
    assert rows[SubjectId("task:60")]["task_io_stall_seconds_total"] is None
    assert rows[NODE] == {"io_stall_seconds_total": None}


def test_one_of_which_nothing_can_be_read_is_unknown_but_for_who_it_is(tmp_path: Path) -> None:
    folder = rank(tmp_path, 60)
    node = Node(tmp_path)
    node.on_gpu(60)
    alive = node[60]
    unreadable(folder, "stat")
    unknown = node[60]
    assert unknown.keys() == {quantity.name for quantity in TASK}
    assert {column: value for column, value in unknown.items() if value is not None} == {
        column: alive[column] for column in tasks.IDENTITY
    }


def test_what_hangs_holds_up_nothing_else_and_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, asked = threading.Event(), []
    real = tasks.read_moved

    def read(place: str) -> Values:
        asked.append(Path(place).name)
        if place.endswith("/60"):
            stuck.wait(30.0)
        return real(place)

    monkeypatch.setattr(tasks, "read_moved", read)
    rank(tmp_path, 60)
    rank(tmp_path, 61)
    node = Node(tmp_path, deadline=0.25)
    node.on_gpu(60, 61)
    try:
        for _ in range(2):
            rows = node.look()
            assert rows[SubjectId("task:60")]["task_read_bytes_total"] is None
            assert rows[SubjectId("task:60")]["task_job"] == "slurm/8123"
            assert rows[SubjectId("task:61")]["task_read_bytes_total"] == 5000
        assert asked.count("60") == 1
    finally:
        stuck.set()


def test_children_are_counted_and_their_time_never_falls(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    for pid in (61, 62):
        process(tmp_path, pid, "pt_data_worker", parent=60, cpu=100)
    process(tmp_path, 63, "pt_data_worker", "Z", parent=60, cpu=50)
    process(tmp_path, 64, "sh", parent=61, cpu=1000)
    node = Node(tmp_path)
    node.on_gpu(60)
    row = node[60]
    assert (row["task_children"], row["task_children_cpu_seconds_total"]) == (2, 2.5)
    # One of them ends, and its parent waits for it: the kernel adds its time to that of the children that ended.
    (tmp_path / "proc/62").rename(tmp_path / "over")
    stat = tmp_path / "proc/60/stat"
    stat.write_text(stat.read_text().replace(" 5 0 0 0 20 0 ", " 5 0 90 12 20 0 "))
    node.on_gpu(60)
    row = node[60]
    assert (row["task_children"], row["task_children_cpu_seconds_total"]) == (2, 2.5), "not looked for so soon again"
    row = node[60]
    assert (row["task_children"], row["task_children_cpu_seconds_total"]) == (1, 2.52)


def test_children_of_one_that_is_newly_named_are_looked_for_at_once(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    rank(tmp_path, 70)
    process(tmp_path, 71, "pt_data_worker", parent=70)
    node = Node(tmp_path, children=1000.0)
    node.on_gpu(60)
    node.look()
    node.on_gpu(60, 70)
    assert node[70]["task_children"] == 1


def test_children_are_unknown_while_not_all_processes_can_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank(tmp_path, 60)
    node = Node(tmp_path)
    node.on_gpu(60)

    def fails(self: object) -> None:
        raise ReadFailed("/proc cannot be listed")

    monkeypatch.setattr(tasks.Processes, "stats", fails)
    row = node[60]
    assert row["task_children"] is None
    assert row["task_children_cpu_seconds_total"] is None
    assert row["task_state"] == "R"


def test_no_more_than_the_limit_and_ranks_first(tmp_path: Path) -> None:
    node = Node(tmp_path, most=2)
    for pid in range(60, 65):
        rank(tmp_path, pid)
    node.on_gpu(60, 61, 62, 2**40, 0)
    node.ranks(64)
    assert list(node.look()) == ["task:64", "task:60"]


def test_what_names_no_process_names_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tasks.name(sweep_of({
        "process:0000:1b:00.0/x": {"process_name": "x"}, "process:/": {"process_name": None},
        "rank:slurm/1/0": {"rank_pid": None}, "rank:slurm/1/1": {"rank_pid": "60"}, "rank:slurm/1/2": {"rank_pid": -4},
        "gpu:0000:1b:00.0": {"process_count": 3},
    }, node.clock))  # fmt: skip
    assert node.look() == {}


def test_a_kernel_that_does_not_count_stalls(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    node = Node(tmp_path)
    node.on_gpu(60)
    rows = node.look()
    assert NODE not in rows
    assert "task_io_stall_seconds_total" not in rows[SubjectId("task:60")]


def test_stalls_on_a_host_that_mounts_v2_beside_v1(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    put(tmp_path, {f"sys/fs/cgroup/unified{GROUP}/io.pressure": STALLED})
    node = Node(tmp_path)
    node.on_gpu(60)
    assert node[60]["task_io_stall_seconds_total"] == 2.5


@pytest.mark.parametrize(
    ("groups", "path"),
    [
        ("0::/a/b\n", "a/b"), ("0::/\n", None), ("0::/../../etc\n", None), ("1:cpu:/x\n", None), ("", None),
        ("1:cpu:/x\n0::/a (deleted)\n", "a"), ("0::/a..b\n", "a..b"),
    ],
)  # fmt: skip
def test_where_a_group_lies(groups: str, path: str | None) -> None:
    assert unified_path(groups) == path


def sweeps(source: tasks.TaskRounds) -> list[Sweep]:
    """What comes until the first sweep is over."""
    came: list[Sweep] = []

    def emit(batch: Batch) -> None:
        came.extend(event for event in batch.events if isinstance(event, Sweep))
        source.stop()

    source.run(emit, None)
    return came


def test_a_start_waits_for_those_who_name_processes(tmp_path: Path) -> None:
    gpu_device(host(tmp_path), "0000:1b:00.0")
    rank(tmp_path, 60)
    clock = ManualClock()
    source = build(Settings(patience=Seconds(60.0)), tmp_path, clock)
    came: list[Sweep] = []
    thread = threading.Thread(target=lambda: came.extend(sweeps(source)), daemon=True)
    thread.start()
    source.onlook(sweep_of({"rank:slurm/1/0": {"rank_pid": 60}}, clock, "heartbeats"))
    assert thread.is_alive(), "ranks alone are not what it waits for where there is a GPU"
    source.onlook(sweep_of({"gpu:0000:1b:00.0": {"process_count": 0}}, clock))
    thread.join(10.0)
    assert not thread.is_alive()
    assert list(came[0].rows) == ["task:60"]


def test_a_start_that_waits_can_be_stopped(tmp_path: Path) -> None:
    gpu_device(host(tmp_path), "0000:1b:00.0")
    source = build(Settings(patience=Seconds(600.0)), tmp_path, ManualClock())
    thread = threading.Thread(target=source.run, args=(lambda batch: None, None), daemon=True)
    thread.start()
    source.stop()
    thread.join(10.0)
    assert not thread.is_alive()


def test_it_looks_more_often_while_there_are_ranks(tmp_path: Path) -> None:
    rank(tmp_path, 60)
    clock = ManualClock()
    source = build(Settings(), host(tmp_path), clock)
    source.onlook(sweep_of({"rank:slurm/1/0": {"rank_pid": 60}}, clock, "heartbeats"))
    source.read(clock.now())
    assert source._pause() == 5.0
    source.onlook(sweep_of({}, clock, "heartbeats"))
    source.read(clock.now())
    assert source._pause() == 10.0


@pytest.mark.parametrize("name", ["every", "with_ranks", "deadline", "children", "most"])
def test_settings_that_could_spin_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Settings(**{name: -1})


@pytest.mark.parametrize("machine", NAMES)
def test_the_processes_of_a_recorded_machine(machine: str) -> None:
    clock, root = ManualClock(), NODES / machine
    source = build(Settings(), root, clock)
    pids = sorted(int(path.name) for path in (root / "proc").iterdir() if path.name.isdigit() and int(path.name) > 9999)
    source.onlook(sweep_of({
        "gpu:0000:1b:00.0": {"process_count": len(pids)},
        **{f"process:0000:1b:00.0/{pid}": {"process_name": None} for pid in pids},
    }, clock))  # fmt: skip
    rows = sweeps(source)[0].rows
    assert len(rows) == len(pids) + 1
    assert rows[NODE].keys() == {"io_stall_seconds_total"}
    for pid in pids:
        row = rows[SubjectId(f"task:{pid}")]
        assert row["task_job"] == "slurm/8123"
        assert (row["task_state"], row["task_uid"]) == ("R", 20417)
    known = {quantity.name: quantity for quantity in QUANTITIES}
    for subject, values in rows.items():
        for column, value in values.items():
            assert known[column].of == kind_of(subject)
            assert plausible(known[column], value), (subject, column, value)
