"""What is concluded of the jobs on a node."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from gpuguard.health.board import Board
from gpuguard.jobs import activity, tasks, verdict
from gpuguard.jobs.derive import Jobs, Memory, Settings
from gpuguard.jobs.limits import FADES_AT, parse_phases
from gpuguard.model.events import Sweep
from gpuguard.model.ids import NODE, BootId, EventId, JobId, PciAddress, SubjectId, gpu, job, rank, task
from gpuguard.model.instants import Instant
from gpuguard.model.readings import Readings, Values
from gpuguard.model.units import Seconds
from gpuguard.runtime.assets import read_text

SEVEN = JobId("slurm/7")


def card(number: int) -> SubjectId:
    return gpu(PciAddress(f"0000:{number:02x}:00.0"))


class Node:
    """A node to which sweeps come; what is concluded is remembered as the core does."""

    def __init__(self, every: float = 1.0) -> None:
        phases = parse_phases(read_text("rules", "jobs", "phases.toml"))
        self.jobs = Jobs(
            Settings(every=Seconds(every)), verdict.Settings(), activity.Settings(), tasks.Settings(), phases
        )
        self.memory = self.jobs.start()
        self.readings: Readings = {}
        self.now = 1000.0
        self.boot = "A"
        self.told: Mapping[SubjectId, Values] = {}

    def sweep(self, rows: Mapping[SubjectId, Values], after: float = 0.0, valid_for: float = 60.0) -> None:
        self.now += after
        at = Instant(boot=BootId(self.boot), mono=self.now, utc=1e9 + self.now)
        event = Sweep(id=EventId("x"), at=at, source="test", rate="fast", valid_for=valid_for, rows=dict(rows))
        board = Board(self.readings)
        board.age(at)
        board.take(next(iter(rows)).partition(":")[0], "fast", valid_for, rows, event)
        self.memory, told = self.jobs.derive(self.memory, lambda *kinds: board.of(kinds, event), at, rows)
        self.told = told or self.told
        self.readings = board.readings

    def beat(
        self, step: int, *, after: float = 2.0, world: int | None = 2, ranks: Iterable[int] = (0, 1), **more: Any
    ) -> None:
        """Ranks tell that they are at this step; `more` are columns without their `rank_`."""
        told = {"world": world, "restart": 0, "phase": "step", "phase_seconds": 1.0, "progress_seconds": 0.0,
                "via": "library", "done": 0, "gone": 0, **more}  # fmt: skip
        named = {f"rank_{name}": value for name, value in told.items()}
        self.sweep(
            {
                rank(SEVEN, n): {"rank_job": SEVEN, "rank_number": n, "rank_pid": 100 + n, "rank_step": step, **named}
                for n in ranks
            },
            after, valid_for=3.0,
        )  # fmt: skip

    def tasks(self, *pids: int, owner: str | None = SEVEN, **more: Any) -> None:
        self.sweep(
            {
                task(pid): {"task_job": owner, "task_state": "S", "task_name": "python3", "task_gone": 0,
                            "task_started_seconds": 5.0, **more}
                for pid in pids
            },
            2.0,
        )  # fmt: skip

    def on_gpus(self, *pids: int, bytes_: float = 1e9) -> None:
        """Each process holds the GPU of its place."""
        rows: dict[SubjectId, Values] = {card(n): {"process_count": 1, "gpu_index": n} for n in range(2)}
        for n, pid in enumerate(pids):
            name = f"process:{card(n).partition(':')[2]}/{pid}"
            rows[SubjectId(name)] = {
                "process_memory_bytes": bytes_,
                "process_kind": "compute",
                "process_name": "python3",
            }
        self.sweep(rows, 2.0)

    def slurm(self, **more: Any) -> None:
        self.sweep({job(SEVEN): {"job_alive": 1, "job_gpus_asked": 2, "job_gpus_given": "0-1", **more},
                    NODE: {"scheduler_jobs_known": 1}}, 2.0)  # fmt: skip

    def of_job(self) -> Values:
        return dict(self.told.get(job(SEVEN), {}))


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_job_is_known_by_its_ranks(node: Node) -> None:
    for step in range(5):
        node.beat(step)
    told = node.of_job()
    assert (told["job_ranks"], told["job_world"], told["job_step"], told["job_phase"]) == (2, 2, 4, "step")
    assert told["job_progress_seconds"] == 0.0
    assert told["job_progress_limit_seconds"] == 600.0, "nothing is learned yet"
    assert told["job_verdict"] == ""
    assert node.told[rank(SEVEN, 1)]["rank_limit_seconds"] == 600.0
    assert node.told[NODE] == {"jobs_here": 1, "progress_known_ratio": 1.0}


def test_a_verdict_is_sure_once_it_was_the_same_for_a_while(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    sure = []
    for waited in range(2, 46, 2):
        node.beat(29, progress_seconds=float(waited))
        confidence = node.of_job()["job_confidence"]
        assert isinstance(confidence, float)
        if node.of_job()["job_verdict"] == "hung":
            sure.append(confidence >= 0.6)
    assert sure == [False] * 4 + [True] * 4


def test_a_rank_that_tells_no_pid_is_the_process_with_its_number(node: Node) -> None:
    node.beat(1, pid=None)
    node.tasks(100, 107, task_rank="1", task_gone=1)
    node.tasks(101, task_rank="1")
    node.on_gpus(100, 101)
    node.beat(2, pid=None)
    assert node.told[rank(SEVEN, 1)]["rank_gpu"] == card(1), "the one that lives"
    assert "rank_gpu" not in node.told[rank(SEVEN, 0)]


def test_the_limit_is_learned_and_the_hang_found(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    assert node.of_job()["job_progress_limit_seconds"] == 30.0
    for waited in range(2, 42, 2):
        node.beat(29, progress_seconds=float(waited))
    told = node.of_job()
    assert (told["job_verdict"], told["job_judged_rank"]) == ("hung", 0)
    assert told["job_progress_seconds"] == 40.0
    before = node.of_job()["job_progress_limit_seconds"]
    node.beat(30)
    assert node.of_job()["job_verdict"] == ""
    node.beat(31)
    assert node.of_job()["job_progress_limit_seconds"] == before, "nothing is learned from a stall"


def test_a_log_with_a_line_for_every_hundred_steps_has_the_limit_of_its_lines(node: Node) -> None:
    for line in range(30):
        for second in range(0, 60, 5):
            node.beat(100 * line, progress_seconds=float(second), after=5.0)
    assert 300.0 <= float(str(node.of_job()["job_progress_limit_seconds"])) < 360.0
    assert not node.of_job()["job_verdict"]


def test_ranks_that_waited_and_gave_up_leave_the_culprit(node: Node) -> None:
    for step in range(30):
        node.beat(step, world=3, ranks=range(3))
    for waited in range(2, 42, 2):
        node.beat(29, world=3, ranks=range(3), progress_seconds=float(waited))
    assert "job_culprit_rank" not in node.of_job(), "all look the same"
    for waited in range(42, 62, 2):
        node.beat(29, world=3, ranks=(0, 1), progress_seconds=float(waited), gone=1)
        node.beat(29, world=3, ranks=(2,), after=0.0, progress_seconds=float(waited))
    told = node.of_job()
    assert (told["job_verdict"], told["job_culprit_rank"]) == ("hung", 2)


def test_a_rank_that_is_killed_is_the_culprit_however_long_the_others_wait(node: Node) -> None:
    for step in range(30):
        node.beat(step, world=3, ranks=range(3))
    for waited in range(2, 62, 2):
        node.beat(29, world=3, ranks=(2,), progress_seconds=float(waited), gone=1)
        node.beat(29, world=3, ranks=(0, 1), after=0.0, progress_seconds=float(waited))
    told = node.of_job()
    assert (told["job_verdict"], told["job_culprit_rank"]) == ("hung", 2)


def test_a_process_with_the_number_of_a_rank_of_the_boot_before_is_not_that_rank(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.boot, node.now, node.readings = "B", 10.0, {}
    for _ in range(30):
        node.tasks(100, 101, owner="")
    assert job(SEVEN) not in node.told
    assert node.memory.jobs == {}


def test_what_ranks_showed_before_the_agent_was_started_anew_counts(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.tasks(100, 101)
    node.readings = {}
    node.tasks(100, 101, task_children=0)
    assert node.of_job()["job_progress_seconds"] == 4.0


def test_a_source_that_goes_away_makes_nobody_progress(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.on_gpus(100, 101)
    for _ in range(30):
        node.tasks(100, 101, task_cpu_seconds_total=1.0, task_switches_total=5, task_children=0)
    told = node.of_job()
    assert told["job_verdict"] == "hung"
    assert float(str(told["job_progress_seconds"])) > 50.0


def test_between_two_views_ranks_are_followed_all_the_same() -> None:
    node = Node(every=30.0)  # the 49 steps that follow take less
    node.beat(0)
    for step in range(1, 50):
        node.beat(step, after=0.5)
    assert node.of_job()["job_step"] == 0, "no new view was put together"
    node.beat(50, after=6.0)
    assert node.of_job()["job_step"] == 50
    assert 30.0 <= float(str(node.of_job()["job_progress_limit_seconds"])) < 40.0, "of 50 gaps, of which one took 6 s"


def test_what_one_source_told_before_is_no_news_when_another_tells(node: Node) -> None:
    """A page of another job's is looked at every second; what a log showed five seconds ago has not moved since."""
    eight = JobId("slurm/8")
    watched: dict[str, Any] = {"rank_job": eight, "rank_number": 0, "rank_step": 3, "rank_phase": "step"}
    node.sweep({rank(eight, 0): {**watched, "rank_progress_seconds": 100.0}})
    for step in range(4):
        node.beat(step, after=1.0)
    assert node.told[job(eight)]["job_progress_seconds"] == 104.0
    node.sweep({rank(eight, 0): {**watched, "rank_progress_seconds": 105.0}}, 1.0)
    assert node.memory.jobs[eight].limits == {}, "no gap was seen"


@pytest.mark.parametrize("every", [1.0, 30.0])
def test_what_a_gpu_did_for_the_job_before_says_nothing_of_the_next(every: float) -> None:
    node = Node(every=every)
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    for step in range(60):
        node.sweep({card(0): {"utilization_ratio": 1.0, "tensor_active_ratio": 0.5}}, 0.4)
        node.beat(step, after=0.6)
    assert node.memory.gpus[card(0)].has_worked()
    assert node.memory.gpus[card(0)].job == SEVEN
    node.tasks(200, 201, owner="slurm/8")
    node.on_gpus(200, 201)
    assert node.memory.gpus[card(0)].job == "slurm/8", "though no look came with it"
    assert not node.memory.gpus[card(0)].has_worked()


def test_what_a_gpu_did_is_kept_while_nobody_knows_whose_it_is(node: Node) -> None:
    node.tasks(100)
    node.on_gpus(100)
    for _ in range(5):
        node.sweep({card(0): {"utilization_ratio": 1.0, "tensor_active_ratio": 0.5}}, 5.0)
    node.on_gpus(100, 300)
    node.on_gpus(300)
    assert node.memory.gpus[card(0)].job == SEVEN
    assert node.memory.gpus[card(0)].has_worked()


def test_a_rank_of_which_nobody_tells_and_that_nobody_sees_is_forgotten(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    for _ in range(40):
        node.sweep({card(0): {"utilization_ratio": 0.0}}, 2.0)
    assert node.of_job().get("job_verdict", "") == ""
    assert "job_ranks" not in node.of_job()


def test_everything_is_dropped_when_the_job_starts_anew(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.beat(0, restart=1, phase="start")
    told = node.of_job()
    assert told["job_progress_limit_seconds"] == 3600.0
    node.beat(1, restart=1)
    assert node.of_job()["job_progress_limit_seconds"] == 600.0


def test_another_number_of_ranks_is_another_job(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    for step in range(30, 33):
        node.beat(step, world=3, ranks=(0, 1, 2))
    assert node.of_job()["job_progress_limit_seconds"] == 600.0


def test_ranks_of_an_earlier_start_are_no_part_of_a_job_that_goes_on_with_fewer(node: Node) -> None:
    for step in range(3):
        node.beat(step, world=3, ranks=range(3))
    node.beat(2, world=3, ranks=(2,), gone=1)
    for step in range(30):
        node.beat(step, restart=1)
        node.beat(2, world=3, ranks=(2,), after=0.0, gone=1, progress_seconds=2.0 * step)
    told = node.of_job()
    assert (told["job_world"], told["job_ranks"], told["job_ranks_gone"]) == (2, 2, 0)
    assert told["job_progress_limit_seconds"] == 30.0, "learned since, and not forgotten again"


def test_a_rank_whose_source_counts_no_starts_is_of_the_newest(node: Node) -> None:
    node.beat(1, ranks=(0,), restart=2)
    for step in range(30):
        node.beat(step, ranks=(0,), restart=2)
        node.beat(step, ranks=(1,), after=0.0, restart=None)
    told = node.of_job()
    assert (told["job_ranks"], told["job_progress_limit_seconds"]) == (2, 30.0)


def test_a_job_that_gives_every_phase_another_name_takes_no_more_memory_for_it(node: Node) -> None:
    for step in range(400):
        node.beat(step, phase=f"epoch-{step}")
    told = node.of_job()
    assert len(node.memory.jobs[SEVEN].limits) == 33, "with that of all others together"
    assert node.memory.jobs[SEVEN].limits["other"].total > 300
    assert float(str(told["job_progress_limit_seconds"])) < 600.0, "learned from phases of other names"


def test_what_an_old_process_left_behind_says_nothing(node: Node) -> None:
    node.beat(5, restart=1)
    node.beat(99, restart=0, progress_seconds=900.0)
    assert node.of_job()["job_step"] == 5


def test_whose_gpu_it_is(node: Node) -> None:
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    assert node.told[card(0)]["gpu_job"] == SEVEN
    told = node.of_job()
    assert (told["job_gpus"], told["job_gpus_held"]) == (f"{card(0)},{card(1)}", 2)
    assert told["job_gpu_memory_bytes"] == 2e9
    assert node.told[SubjectId("process:0000:00:00.0/100")]["process_job"] == SEVEN
    assert node.told[NODE]["progress_known_ratio"] == 0.0


def test_a_rank_is_on_the_gpu_that_its_process_holds(node: Node) -> None:
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    node.beat(1)
    assert node.told[rank(SEVEN, 1)]["rank_gpu"] == card(1)


def test_a_process_outside_of_any_keeper_belongs_to_the_job_that_its_rank_names(node: Node) -> None:
    node.beat(1)
    node.tasks(100, 101, owner="")
    node.on_gpus(100, 101)
    node.beat(2)
    assert node.told[card(1)]["gpu_job"] == SEVEN


def test_of_a_process_of_which_nothing_is_known_nothing_is_said(node: Node) -> None:
    node.on_gpus(100, 101)
    assert node.told[card(0)]["gpu_job"] is None
    assert job(SEVEN) not in node.told


def test_a_job_that_its_scheduler_has_is_here_before_it_does_anything(node: Node) -> None:
    node.slurm()
    assert node.of_job()["job_gpus_held"] == 0
    node.slurm(job_alive=0)
    assert node.of_job() == {"job_ended": 1}


def test_a_job_whose_ranks_are_done_is_over_and_then_forgotten(node: Node) -> None:
    for step in range(3):
        node.beat(step)
    node.beat(3, done=1, gone=1)
    node.beat(3, done=1, gone=1)
    assert (node.of_job()["job_ended"], node.of_job()["job_ranks_done"]) == (1, 2)
    assert "job_verdict" not in node.of_job()
    for _ in range(200):
        node.beat(3, done=1, gone=1)
    assert job(SEVEN) not in node.told
    assert SEVEN not in node.memory.jobs


def test_ranks_that_ended_before_anybody_saw_them_are_no_job(node: Node) -> None:
    node.beat(3, gone=1)
    assert job(SEVEN) not in node.told


def test_a_process_that_is_gone_holds_memory_of_nobody(node: Node) -> None:
    node.slurm()
    node.tasks(101)
    node.tasks(100, task_gone=1, owner=None)
    node.on_gpus(100, 101, bytes_=3e9)
    assert node.told[card(0)]["gpu_orphan_bytes"] == 3e9
    assert str(node.told[card(0)]["gpu_orphans"]).startswith("100/")


def test_ranks_elsewhere_are_known_by_their_number_or_by_the_nodes(node: Node) -> None:
    def verdict_of(**more: Any) -> object:
        node.memory, node.readings = node.jobs.start(), {}
        if more:
            node.slurm(**more)
        for step in range(30):
            node.beat(step, world=8 if not more else None)
        for waited in range(2, 62, 2):
            if more:
                node.slurm(**more)
            node.beat(29, world=8 if not more else None, progress_seconds=float(waited))
        return node.of_job()["job_verdict"]

    assert verdict_of() == "waiting", "six of eight are elsewhere"
    assert verdict_of(job_nodes=2) == "waiting"
    assert verdict_of(job_nodes=1) == "hung"


def test_who_is_done_or_gone_is_not_judged_by_its_silence(node: Node) -> None:
    for step in range(5):
        node.beat(step)
    node.beat(4, ranks=(0,), gone=1, progress_seconds=50.0)
    node.beat(5, ranks=(1,), progress_seconds=1.0)
    assert (node.of_job()["job_judged_rank"], node.of_job()["job_progress_seconds"]) == (1, 1.0)
    node.beat(5, ranks=(1,), gone=1, progress_seconds=5.0)
    assert node.of_job()["job_ended"] == 1


def test_a_rank_is_gone_where_only_its_process_says_so(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.tasks(100)
    node.tasks(101, task_gone=1)
    for waited in range(2, 42, 2):
        node.beat(29, progress_seconds=float(waited))
    told = node.of_job()
    assert (told["job_verdict"], told["job_culprit_rank"]) == ("hung", 1)


def test_steps_behind_are_counted_from_the_farthest_rank(node: Node) -> None:
    node.beat(10, ranks=(0,))
    node.beat(7, ranks=(1,))
    behind = [node.told[rank(SEVEN, n)]["rank_behind_steps"] for n in range(2)]
    assert behind == [0, 3]
    assert node.of_job()["job_step"] == 7


def test_what_its_gpus_do_is_told_only_where_it_is_known_of_all(node: Node) -> None:
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    busy: Values = {"utilization_ratio": 1.0, "tensor_active_ratio": 0.5, "sm_active_ratio": 0.8,
                    "memory_used_bytes": 30.0, "memory_total_bytes": 40.0}  # fmt: skip
    node.sweep({card(0): busy}, 5.0)
    assert "job_gpu_activity_ratio" not in node.of_job()
    assert "job_gpu_memory_peak_ratio" not in node.of_job()
    node.sweep({card(0): busy, card(1): {**busy, "sm_active_ratio": 0.0, "tensor_active_ratio": 0.0,
                                         "utilization_ratio": 0.0, "memory_used_bytes": 10.0}}, 5.0)  # fmt: skip
    told = node.of_job()
    assert told["job_gpu_activity_ratio"] == pytest.approx(0.4)
    assert told["job_gpus_working"] == 1
    assert (told["job_gpu_memory_peak_ratio"], told["job_gpu_memory_peak_bytes"]) == (0.75, 30.0)


def test_a_job_of_which_nothing_is_seen_for_long_is_over(node: Node) -> None:
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    for _ in range(45):
        node.sweep({NODE: {"job_alive": None}, card(0): {"utilization_ratio": 0.0}}, 2.0)
    assert node.of_job()["job_ended"] == 0, "rows of processes hold for a minute, a job for two more"
    for _ in range(60):
        node.sweep({card(0): {"utilization_ratio": 0.0}}, 2.0)
    assert node.of_job()["job_ended"] == 1


def test_only_a_look_at_processes_is_one(node: Node) -> None:
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    for step in range(5):
        node.beat(step)
    assert len(node.memory.tasks[100].marks) == 1
    (held,) = {record.seen.mono for record in node.memory.holdings.records.values()}
    assert held == node.now - 10.0, "five beats ago"


def test_more_jobs_than_are_remembered_are_left_out() -> None:
    node = Node()
    rows: dict[SubjectId, Values] = {
        rank(JobId(f"claimed/0-{n}"), 0): {"rank_job": f"claimed/0-{n}", "rank_number": 0, "rank_step": 1,
                                           "rank_progress_seconds": 0.0, "rank_pid": n, "rank_gone": 0}
        for n in range(400)
    }  # fmt: skip
    node.sweep(rows)
    assert len(node.memory.jobs) == 256
    node.slurm()
    assert SEVEN in node.memory.jobs, "a scheduler's job is not left out for jobs that somebody claims to be"


def test_a_loss_is_flat_where_it_is_for_every_rank_that_tells_of_it(node: Node) -> None:
    node.beat(300, ranks=(0,), loss_flat_steps=250)
    node.beat(300, ranks=(1,), loss_flat_steps=40)
    assert node.of_job()["job_loss_flat_steps"] == 40


def test_only_columns_that_are_declared_are_concluded(node: Node) -> None:
    node.slurm()
    node.tasks(100, 101)
    node.on_gpus(100, 101)
    node.beat(1, loss=2.0, saved_step=1, saved_seconds=3.0, save_blocked_seconds=1.0, save_holds="model")
    columns = {column for values in node.told.values() for column in values}
    assert columns <= set(node.jobs.yields), columns - set(node.jobs.yields)


def test_memory_is_of_a_kind_that_can_be_written_down(node: Node) -> None:
    import msgspec

    node.tasks(100, 101)
    node.on_gpus(100, 101)
    for step in range(30):
        node.beat(step)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(node.memory), type=Memory) == node.memory


def test_a_step_that_leaps_is_counted_as_far_as_it_can_be_written_down(node: Node) -> None:
    """A job says what it likes; what is remembered of it must fit into 64 bits, or nothing more is written to disk."""
    for turn in range(20):
        node.beat((2**63 - 1) * (1 if turn % 2 else -1), ranks=range(8), world=8)
    msgspec.msgpack.encode(node.memory)
    assert node.memory.jobs[SEVEN].limits["step"].total <= 8 * FADES_AT


def test_jobs_that_a_user_made_up_push_out_none_that_a_keeper_knows(node: Node) -> None:
    made_up: dict[SubjectId, Values] = {
        rank(JobId(f"claimed/1000-{n}"), 0): {
            "rank_job": f"claimed/1000-{n}", "rank_number": 0, "rank_progress_seconds": 0.0, "rank_gone": 0,
        }
        for n in range(Settings().most + 8)
    }  # fmt: skip
    node.sweep(made_up)
    assert len(node.memory.jobs) == Settings().most
    node.beat(1)
    assert SEVEN in node.memory.jobs
    assert len(node.memory.jobs) == Settings().most
    assert node.of_job()["job_ranks"] == 2


def test_a_job_that_ended_while_the_agent_was_away_does_not_hang(node: Node) -> None:
    """Nobody tells of its ranks any more, nor sees their processes: that is no silence."""
    for step in range(30):
        node.beat(step)
    node.memory = msgspec.msgpack.decode(msgspec.msgpack.encode(node.memory), type=Memory)
    node.readings = {}
    told = []
    for _ in range(14):
        node.sweep({card(0): {"process_count": 0, "utilization_ratio": 0.0}}, 10.0)
        told.append(node.of_job().get("job_verdict"))
    assert "hung" not in told
    assert node.of_job() == {"job_ended": 1}


def test_a_job_that_hangs_hangs_still_after_the_agent_was_away(node: Node) -> None:
    """A rank that hangs announces itself to nobody: its process, seen to live, is what stands for it."""
    for step in range(30):
        node.beat(step)
    node.memory = msgspec.msgpack.decode(msgspec.msgpack.encode(node.memory), type=Memory)
    node.readings = {}
    for _ in range(12):
        node.on_gpus(100, 101)
        node.tasks(100, 101)
        node.now += 6.0
    assert node.of_job()["job_verdict"] == "hung"
    assert node.of_job()["job_ranks"] == 2


def test_a_rank_that_tells_alone_is_not_alone_where_its_job_has_the_other_gpus_here(node: Node) -> None:
    node.on_gpus(100, 101)
    node.tasks(100, 101, task_cpu_seconds_total=1.0, task_switches_total=5, task_children=0)
    for step in range(30):
        node.beat(step, ranks=(0,))
    for waited in range(2, 42, 2):
        node.beat(29, ranks=(0,), progress_seconds=float(waited))
        node.tasks(100, 101, task_cpu_seconds_total=1.0, task_switches_total=5, task_children=0)
        node.on_gpus(100, 101)
    assert node.of_job()["job_verdict"] == "hung", "and does not wait for another node"


def test_the_world_is_that_of_the_living(node: Node) -> None:
    for step in range(3):
        node.beat(step, world=3, ranks=(0, 1, 2))
    node.beat(3, world=3, ranks=(2,), gone=1)
    node.beat(4, world=2)
    assert node.of_job()["job_world"] == 2


def test_a_zombie_is_gone(node: Node) -> None:
    for step in range(30):
        node.beat(step, via="file")
    for waited in range(2, 32, 2):
        node.tasks(101, task_state="Z")
        node.beat(29, via="file", progress_seconds=float(2 * waited), after=0.0)
    assert "gone" in str(node.of_job()["job_why"])


def test_a_loss_that_is_none_is_not_one_that_stands_still(node: Node) -> None:
    node.beat(300, ranks=(0,), loss_flat_steps=250, loss=0.0)
    node.beat(300, ranks=(1,), loss_flat_steps=100, loss_nan=1)
    assert (node.of_job()["job_loss_flat_steps"], node.of_job()["job_loss"]) == (250, 0.0)


def test_what_its_scheduler_suspended_is_paused(node: Node) -> None:
    for step in range(30):
        node.beat(step)
    node.slurm(job_state="SUSPENDED")
    for waited in range(2, 42, 2):
        node.beat(29, progress_seconds=float(waited))
    assert node.of_job()["job_verdict"] == "paused"
