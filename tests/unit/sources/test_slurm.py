"""Jobs of this node as Slurm tells them: what is known, unknown, over, and how seldom it is asked."""

import re
from pathlib import Path

import pytest

from gpuguard.errors import Absent
from gpuguard.model.events import Sweep
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.jobs import REPORTED
from gpuguard.model.readings import Values, plausible
from gpuguard.runtime.clock import ManualClock
from gpuguard.sources.slurm import QUANTITIES, Settings, Slurm, build
from tests.support.slurm_site import Site, record

NODE = SubjectId("node")


class Bench(Site):
    """A node `node1` with a spool folder, Slurm's programs, and a clock."""

    def __init__(self, folder: Path, **settings: object) -> None:
        super().__init__(folder)
        (folder / "spool").mkdir()
        self.config()
        self.clock = ManualClock(mono=1000.0)
        self.source = Slurm(
            Settings(scontrol=str(folder / "scontrol"), node="node1", **settings),  # type: ignore[arg-type]
            Path("/"), self.clock, {},
        )  # fmt: skip

    def config(self, private: str = "none") -> None:
        """What the cluster is set to. `scontrol show config` has no fifth word."""
        text = f"SlurmdSpoolDir          = {self.folder}/spool\nPrivateData             = {private}\n"
        (self.folder / "job_").write_text(text)

    def step(self, name: str) -> Path:
        path = self.folder / "spool" / name
        path.touch()
        return path

    def look(self, later: float = 30.0) -> dict[str, Values]:
        """The rows of the next round."""
        self.clock.advance(later)
        self.source.rest()
        return {str(name): values for name, values in self.source.sweep(self.clock.now()).items()}

    def asked(self) -> int:
        """How many questions about jobs were asked so far."""
        calls = self.folder / "calls"
        return sum(len(call.split()) > 1 for call in calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def name_of(row: str) -> SubjectId:
    return SubjectId(f"job:slurm/{row}")


def test_a_job_that_runs_here(bench: Bench) -> None:
    bench.step("node1_1.4294967291")
    bench.step("node1_1.0")
    bench.step("node12_9.0")
    bench.step("cred_state")
    bench.put("1", record("train\x1b[31m", number="1"))
    rows = bench.look()
    assert rows == {
        "job:slurm/1": {
            "job_alive": 1, "job_name": "train?[31m", "job_user": "jo", "job_state": "RUNNING", "job_gpus_asked": 3,
            "job_gpus_given": "0,3-4", "job_nodes": 2, "job_restarts": 0, "job_requeueable": 1,
            "job_run_seconds": 93784.0,
        },
        "node": {"scheduler_jobs_known": 1},
    }  # fmt: skip
    declared = {quantity.name: quantity for quantity in QUANTITIES}
    assert all(plausible(declared[column], value) for values in rows.values() for column, value in values.items())
    assert {quantity.name for quantity in REPORTED} < declared.keys()


def test_no_jobs_is_an_answer_too(bench: Bench) -> None:
    assert bench.look() == {"node": {"scheduler_jobs_known": 1}}


def test_a_job_that_goes_on_is_not_asked_for_in_each_round(bench: Bench) -> None:
    bench.step("node1_1.0")
    bench.put("1", record("train"))
    for _ in range(9):
        bench.look()
    assert bench.asked() == 1
    assert bench.look()["job:slurm/1"]["job_run_seconds"] == 93784.0 + 270.0
    bench.look()
    assert bench.asked() == 2


def test_how_a_job_ended_is_told_for_a_while(bench: Bench) -> None:
    step = bench.step("node1_1.0")
    bench.put("1", record("train"))
    bench.look()
    step.unlink()
    ended = record("train", state="OUT_OF_MEMORY").replace("GRES=gpu:h100:3(IDX:0,3-4)", "GRES=")
    bench.put("1", ended)
    row = bench.look()["job:slurm/1"]
    assert (row["job_alive"], row["job_exit_code"], row["job_exit_signal"], row["job_out_of_memory"]) == (0, 2, 9, 1)
    assert (row["job_gpus_asked"], row["job_gpus_given"]) == (3, "0,3-4")
    asked = bench.asked()
    assert "job:slurm/1" in bench.look(800.0)
    assert "job:slurm/1" not in bench.look(200.0)
    assert bench.asked() == asked


def test_a_controller_that_is_away_means_unknown_and_never_none(bench: Bench) -> None:
    first = bench.step("node1_1.0")
    bench.put("1", record("train"))
    bench.look()
    (bench.folder / "scontrol").rename(bench.folder / "kept")
    (bench.folder / "scontrol").write_text(
        "#!/bin/sh\necho x y >>calls\nexit 1\n".replace("calls", f"{bench.folder}/calls")
    )
    (bench.folder / "scontrol").chmod(0o755)
    first.unlink()
    bench.step("node1_2.0")
    rows = bench.look()
    assert rows["node"] == {"scheduler_jobs_known": None}
    assert rows["job:slurm/1"]["job_alive"] is None
    assert rows["job:slurm/1"]["job_state"] is None
    asked = bench.asked()
    for _ in range(20):
        assert bench.look()["node"] == {"scheduler_jobs_known": None}
    assert bench.asked() - asked <= 5, "it is asked less and less"
    (bench.folder / "kept").rename(bench.folder / "scontrol")
    bench.put("2", record("other", number="2"))
    rows = bench.look(600.0)
    assert (rows["job:slurm/2"]["job_alive"], rows["node"]) == (1, {"scheduler_jobs_known": 1})


def test_a_job_that_runs_stays_alive_while_the_controller_is_away(bench: Bench) -> None:
    bench.step("node1_1.0")
    bench.put("1", record("train"))
    bench.look()
    (bench.folder / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    rows = bench.look(400.0)
    assert (rows["job:slurm/1"]["job_alive"], rows["node"]) == (1, {"scheduler_jobs_known": 1})


def test_a_job_that_slurm_hides_is_unknown_and_not_over(bench: Bench) -> None:
    bench.config("accounts,jobs")
    bench.step("node1_1.0")
    rows = bench.look()
    assert rows["job:slurm/1"] == {"job_alive": None, "job_state": None}
    assert rows["node"] == {"scheduler_jobs_known": None}
    assert "operator" in bench.source.why


def test_a_job_that_slurm_has_forgotten_is_over_where_it_hides_none(bench: Bench) -> None:
    bench.source.onlook(tasks("slurm/7"))
    assert bench.look()["job:slurm/7"]["job_alive"] == 0


def tasks(*jobs: str) -> Sweep:
    rows: dict[SubjectId, Values] = {SubjectId(f"task:{n}"): {"task_job": job} for n, job in enumerate(jobs)}
    return Sweep(id=EventId("t"), at=ManualClock().now(), source="tasks", rate="medium", valid_for=90.0, rows=rows)


def test_jobs_that_others_name_are_asked_for_as_well(bench: Bench) -> None:
    bench.put("5", record("old", number="5", state="COMPLETED"))
    bench.source.onlook(tasks("slurm/5", "kubernetes/x", "", "slurm/5;rm", "slurm/all"))
    rows = bench.look()
    assert rows["job:slurm/5"]["job_alive"] == 0
    assert set(rows) == {"job:slurm/5", "node"}
    assert "job:slurm/5" in bench.look(5000.0), "as long as something is left of it"


def test_a_flood_of_named_jobs_is_cut(bench: Bench) -> None:
    bench.source.onlook(tasks(*(f"slurm/{n}" for n in range(1, 1000))))
    assert len(bench.source._named) == 64


def test_a_job_that_was_started_anew_is_asked_for_again(bench: Bench) -> None:
    step = bench.step("node1_1.0")
    bench.put("1", record("train"))
    assert bench.look()["job:slurm/1"]["job_restarts"] == 0
    step.unlink()
    bench.put("1", record("train", state="PENDING", restarts=1))
    assert bench.look()["job:slurm/1"]["job_alive"] == 0
    bench.step("node1_1.0")
    bench.put("1", record("train", restarts=1))
    row = bench.look()["job:slurm/1"]
    assert (row["job_alive"], row["job_restarts"]) == (1, 1)


def test_a_record_that_can_be_read_in_two_ways_is_unknown(bench: Bench) -> None:
    bench.step("node1_1.0")
    bench.put("1", record("x UserId=a(0) GroupId=b(0) MCS_label=N/A"))
    rows = bench.look()
    assert rows["job:slurm/1"]["job_alive"] is None
    assert rows["node"] == {"scheduler_jobs_known": None}


def test_sockets_of_an_unknown_shape_are_not_passed_over(bench: Bench) -> None:
    bench.step("node1_sABC.0")
    assert bench.look()["node"] == {"scheduler_jobs_known": None}


def test_a_folder_that_may_not_be_listed_is_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("gpuguard.sources.slurm.os.scandir", denied)
    assert bench.look()["node"] == {"scheduler_jobs_known": None}


def test_the_first_round_asks_nobody_and_nodes_begin_at_different_moments(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step("node1_1.0")
    assert bench.source.sweep(bench.clock.now()) == {NODE: {"scheduler_jobs_known": None}}
    assert bench.asked() == 0
    starts = []
    for number in range(200):
        source = Slurm(Settings(node=f"node{number}"), Path("/"), bench.clock, {})
        starts.append(source.rest())
        assert source.rest() == 30.0
    assert all(0.0 <= start < 30.0 for start in starts)
    assert all(sum(third <= start < third + 10.0 for start in starts) > 40 for third in (0.0, 10.0, 20.0))


def test_no_more_is_asked_than_there_is_time_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    for number in range(1, 6):
        bench.step(f"node1_{number}.0")
        bench.put(str(number), record("x", number=str(number)))
    bench.look()
    asked, moments = bench.asked(), iter([0.0, 1.0, 2.9, 3.1, 3.2])
    bench.source._noted.clear()
    monkeypatch.setattr("gpuguard.sources.slurm.time.monotonic", lambda: next(moments))
    monkeypatch.setattr(bench.source._jobs, "ask", lambda number, node, until: None)
    assert bench.look()["node"] == {"scheduler_jobs_known": None}
    assert (len(bench.source._noted), bench.asked()) == (2, asked)


def test_a_recorded_machine_has_no_slurm(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="recorded"):
        build(Settings(), tmp_path, ManualClock()).read(ManualClock().now())


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuguard.child.slurm.PLACES", (str(tmp_path),))
    with pytest.raises(Absent, match="no scontrol"):
        build(Settings(node="n1"), Path("/"), ManualClock()).read(ManualClock().now())
    bench = Bench(tmp_path)
    (tmp_path / "spool").rmdir()
    with pytest.raises(Absent, match="no slurmd"):
        bench.look()


@pytest.mark.parametrize("change", [{"every": 0.0}, {"spool": "spool"}, {"node": "a,b"}, {"node": "ALL"}])
def test_settings_that_cannot_be(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=re.escape(next(iter(change)))):
        Settings(**change)  # type: ignore[arg-type]
