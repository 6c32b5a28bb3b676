"""What rows come of what is watched: by the site, by a dropped file, by a process, beside a rank that beats."""

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, EventId, JobId, SubjectId
from gpuguard.model.jobs import Owner
from gpuguard.model.readings import Values
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.watchers import QUANTITIES, Settings, Watchers, build
from gpuguard.sources.watchers.looks import Sight
from tests.support.beats import sender
from tests.support.trees import put

UTC = 1_700_000_000.0


def owner(cgroup: str, variables: Mapping[str, str]) -> Owner:
    """The cgroup's last part is the job."""
    job = cgroup.strip().partition("::/")[2]
    return Owner(job=JobId(job) if "/" in job else None)


class Node:
    """A node whose files are watched as time goes by."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root, self.clock = root, ManualClock(utc=UTC)
        self.source = Watchers(Settings(**{"deadline": 30.0} | settings), root, self.clock, owner_of=owner)  # type: ignore[arg-type]

    def looks(self, after: float = 5.0) -> dict[str, Values]:
        now = self.clock.advance(after)
        return {str(subject): row for subject, row in self.source.sweep(now).items()}

    def writes(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        utc = self.clock.now().utc or 0.0
        os.utime(file, (utc, utc))
        return file

    def drops(self, text: str, name: str = "8123.toml") -> Path:
        file = self.root / "run/gpuguard/jobs.d" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o644)
        return file

    def shows(self, rows: Mapping[str, Values], valid_for: float = 10.0) -> None:
        """Another source's sweep is looked on."""
        now = self.clock.now()
        self.source.onlook(
            Sweep(
                id=EventId("x"), at=now, source="other", rate="fast", valid_for=valid_for,
                rows={SubjectId(subject): row for subject, row in rows.items()},
            )
        )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


DROPPED = 'job = "slurm/8123"\nrank = 2\nworld = 4\nfile = "/srv/step"\n'


def test_nothing_is_watched(node: Node) -> None:
    assert node.looks() == {}


def test_a_file_that_the_site_names(tmp_path: Path) -> None:
    node = Node(tmp_path, watch=({"job": "slurm/7", "rank": 1, "file": "/srv/step"},))
    node.writes("srv/step", "5")
    assert node.looks() == {
        "rank:slurm/7/1": {
            "rank_job": "slurm/7", "rank_number": 1, "rank_via": "file", "rank_progress_seconds": 5.0, "rank_step": 5,
            "rank_phase": "step",
        },
        NODE: {"watches": 1, "watches_unknown": 0, "watches_refused": 0, "watches_trouble": ""},
    }  # fmt: skip
    assert node.looks()["rank:slurm/7/1"]["rank_progress_seconds"] == 10.0
    node.writes("srv/step", "6")
    row = node.looks()["rank:slurm/7/1"]
    assert (row["rank_progress_seconds"], row["rank_step"]) == (0.0, 6)


def test_every_column_is_declared(node: Node) -> None:
    node.writes("srv/step", "5")
    node.writes("srv/ckpt/step_4", "x")
    sender(node.root, 50)
    node.drops(f'{DROPPED}pid = 50\nuid = {os.getuid()}\ncheckpoints = "/srv/ckpt"\n')
    rows = [node.looks(61.0), node.looks()]
    columns = {column for row in rows[-1].values() for column in row}
    assert {"rank_world", "rank_pid", "rank_uid", "rank_saved_step", "rank_gone"} <= columns
    assert columns <= {quantity.name for quantity in QUANTITIES}


def test_a_dropped_file_comes_changes_and_goes(node: Node) -> None:
    node.writes("srv/step", "5")
    file = node.drops(DROPPED)
    assert node.looks()["rank:slurm/8123/2"]["rank_world"] == 4
    file.write_text(DROPPED.replace("rank = 2", "rank = 30"))
    assert [name for name in node.looks() if name != NODE] == ["rank:slurm/8123/30"]
    file.unlink()
    assert node.looks() == {}


def test_a_dropped_file_that_is_wrong_is_told_and_disturbs_no_other(node: Node) -> None:
    node.writes("srv/step", "5")
    node.drops(DROPPED)
    node.drops("job = 5", "bad\x1b.toml")
    rows = node.looks()
    assert "rank:slurm/8123/2" in rows
    assert rows[NODE]["watches_refused"] == 1
    assert "bad?.toml: Expected `str`" in str(rows[NODE]["watches_trouble"])


def test_a_dropped_file_that_others_may_write_is_not_believed(node: Node) -> None:
    node.drops(DROPPED).chmod(0o666)
    rows = node.looks()
    assert list(rows) == [NODE]
    assert "others than root may write" in str(rows[NODE]["watches_trouble"])


def test_a_file_that_vanishes_is_unknown_and_no_hang(node: Node) -> None:
    file = node.writes("srv/step", "5")
    node.drops(DROPPED)
    assert node.looks()["rank:slurm/8123/2"]["rank_progress_seconds"] == 5.0
    file.unlink()
    rows = node.looks()
    assert rows["rank:slurm/8123/2"]["rank_progress_seconds"] is None
    assert (rows[NODE]["watches_unknown"], rows[NODE]["watches_trouble"]) == (
        1, f"rank:slurm/8123/2: {file}: No such file or directory",
    )  # fmt: skip
    node.writes("srv/step", "6")
    assert node.looks()["rank:slurm/8123/2"]["rank_progress_seconds"] == 0.0


def test_a_pattern_is_waited_for_since_it_is_watched(node: Node) -> None:
    log = node.writes("srv/log", "compiling\n")
    node.drops('job = "slurm/8123"\nlog = "/srv/log"\npattern = "step (\\\\d+)"\n')
    node.looks()
    log.write_text("compiling\nstill compiling\n")
    row = node.looks(60.0)["rank:slurm/8123/0"]
    assert (row["rank_progress_seconds"], row["rank_phase"], row["rank_via"]) == (60.0, "start", "pattern")
    log.write_text("compiling\nstill compiling\nstep 1\n")
    row = node.looks()["rank:slurm/8123/0"]
    assert (row["rank_progress_seconds"], row["rank_phase"], row["rank_step"]) == (0.0, "step", 1)


def test_checkpoints_beside_a_log_tell_what_was_saved(node: Node) -> None:
    node.writes("srv/log", "x\n")
    node.drops('job = "slurm/8123"\nlog = "/srv/log"\ncheckpoints = "/srv/ckpt"\n')
    row = node.looks()["rank:slurm/8123/0"]
    assert (row["rank_saved_seconds"], row["rank_progress_seconds"]) == (None, 5.0)  # no such folder yet
    node.writes("srv/ckpt/step_100", "x")
    node.looks()
    row = node.looks()["rank:slurm/8123/0"]
    assert (row["rank_saved_step"], row["rank_saved_seconds"], row["rank_via"]) == (100, 10.0, "log")


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def test_a_mount_that_hangs_makes_its_ranks_unknown_and_no_other(tmp_path: Path, hanging: threading.Event) -> None:
    """What came back too late is not lost: the look after it knows that the file had moved."""
    node = Node(tmp_path, deadline=0.05, folder="", watch=(
        {"job": "slurm/7", "rank": 0, "file": "/mnt/nfs/step"}, {"job": "slurm/7", "rank": 1, "file": "/srv/step"},
    ))  # fmt: skip
    lines = [f"2{n} 1 0:2{n} / {tmp_path / where} rw - x x rw" for n, where in enumerate(("", "mnt/nfs", "srv"))]
    put(tmp_path, {"proc/self/mountinfo": "\n".join(lines)})
    for where in ("mnt/nfs", "srv"):
        node.writes(f"{where}/step", "5")
    assert [row["rank_progress_seconds"] for name, row in node.looks().items() if name != NODE] == [5.0, 5.0]
    (one,) = (one for one in node.source._asking.values() if one.watch.rank == 0)
    look = one.looks["file"]

    def hangs(utc: float) -> Sight:
        hanging.wait()
        return look(utc)

    one.looks["file"] = hangs
    rows = node.looks()
    assert [row["rank_progress_seconds"] for name, row in rows.items() if name != NODE] == [None, 10.0]
    assert "does not answer" in str(rows[NODE]["watches_trouble"])
    node.writes("mnt/nfs/step", "6")
    hanging.set()
    for thread in node.source._apart._pending.values():
        thread.join()
    row = node.looks()["rank:slurm/7/0"]
    assert (row["rank_progress_seconds"], row["rank_step"]) == (0.0, 6)


def asks(node: Node, pid: int, *variables: str, **more: object) -> None:
    """A process with these variables; its root is that of the tree, and it works in /work of it."""
    sender(node.root, pid, uid=os.getuid(), **more)  # type: ignore[arg-type]
    folder = node.root / "proc" / str(pid)
    (folder / "environ").write_bytes(b"\0".join(variable.encode() for variable in variables))
    for name, target in (("root", node.root), ("cwd", node.root / "home")):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)


def test_a_process_asks_by_its_environment(node: Node) -> None:
    node.writes("home/train.log", "step 3\n")
    asks(node, 50, "GPUGUARD_WATCH_LOG=train.log", r"GPUGUARD_WATCH_PATTERN=step (\d+)", "RANK=1", cgroup="0::/slurm/9")
    asks(node, 51, "RANK=2", cgroup="0::/slurm/9")
    assert node.looks() == {}  # nobody named it yet
    node.shows({"process:0000:1b:00.0/50": {"process_name": "python"}, "task:51": {"task_name": "python"}})
    row = node.looks()["rank:slurm/9/1"]
    assert (row["rank_step"], row["rank_pid"], row["rank_uid"], row["rank_gone"]) == (3, 50, os.getuid(), 0)
    (node.root / "proc/50/environ").unlink()  # it is read but once
    assert node.looks()["rank:slurm/9/1"]["rank_step"] == 3
    (node.root / "proc/50/stat").unlink()
    assert node.looks()["rank:slurm/9/1"]["rank_gone"] == 1
    assert node.looks(599.0)
    assert node.looks(1.0) == {}


def test_what_a_process_asks_in_vain_is_told_as_long_as_it_lives(node: Node) -> None:
    asks(node, 50, "GPUGUARD_WATCH_PATTERN=x")
    node.shows({"task:50": {"task_name": "python"}})
    for _ in range(2):
        assert node.looks()[NODE]["watches_trouble"] == "process 50: pattern: needs the log that it recurs in"
    (node.root / "proc/50/stat").unlink()
    assert node.looks() == {}


def test_a_program_with_another_s_rights_asks_for_nothing(node: Node) -> None:
    """It has the environment of who started it, and could read for them what they may not."""
    asks(node, 50, "GPUGUARD_WATCH_FILE=/etc/secret")
    put(node.root, {"proc/50/status": "Name:\tx\nUid:\t1000\t0\t0\t0"})
    node.shows({"task:50": {"task_name": "sudo"}})
    assert node.looks() == {}


def test_a_site_may_leave_environments_alone(tmp_path: Path) -> None:
    node = Node(tmp_path, environments=False)
    asks(node, 50, "GPUGUARD_WATCH_FILE=f")
    node.shows({"task:50": {"task_name": "python"}})
    assert node.looks() == {}


def test_a_rank_that_beats_is_not_contradicted(node: Node) -> None:
    node.writes("srv/step", "5")
    node.drops(DROPPED)
    node.shows({"rank:slurm/8123/2": {"rank_via": "library", "rank_progress_seconds": 0.5, "rank_step": None}})
    row = node.looks()["rank:slurm/8123/2"]
    assert "rank_via" not in row
    assert "rank_progress_seconds" not in row
    assert row["rank_step"] == 5
    assert node.looks(6.0)["rank:slurm/8123/2"]["rank_via"] == "file"


def test_the_site_comes_first(tmp_path: Path) -> None:
    node = Node(tmp_path, watch=({"job": "slurm/8123", "rank": 2, "log": "/srv/log"},))
    node.writes("srv/step", "5")
    node.writes("srv/log", "x")
    node.drops(DROPPED)
    assert node.looks()["rank:slurm/8123/2"]["rank_via"] == "log"


def test_it_is_built_as_every_source_is(tmp_path: Path) -> None:
    source = build(Settings(), tmp_path, ManualClock())
    assert (source.name, source.every) == ("watchers", 5.0)
