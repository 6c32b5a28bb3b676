"""Whose GPU it is, when a job is over, and what is told of it."""

from typing import Any

import msgspec
import pytest

from gpuguard.jobs.derive import Memory, Settings
from gpuguard.jobs.limits import FADES_AT
from gpuguard.model.ids import NODE, JobId, SubjectId, job, rank
from gpuguard.model.readings import Values
from tests.support.job_node import SEVEN, Node, card


@pytest.fixture
def node() -> Node:
    return Node()


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
