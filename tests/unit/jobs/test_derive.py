"""What is concluded of the jobs on a node."""

from typing import Any

import pytest

from gpuguard.model.ids import NODE, JobId, job, rank
from tests.support.job_node import SEVEN, Node, card


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


def test_a_lull_in_what_works_for_long_without_a_word_is_no_hang_yet(node: Node) -> None:
    """As a save that nobody told of, and that waits for its server for half a minute."""
    for step in range(30):
        node.beat(step)
    silent = 0.0

    def wait(seconds: float, cpu: float) -> list[object]:
        nonlocal silent
        told: list[object] = []
        for _ in range(int(seconds / 10)):
            silent += 10.0
            node.spent += 10.0 * cpu
            node.beat(29, after=8.0, progress_seconds=silent - 2.0)
            node.tasks(100, 101, task_cpu_seconds_total=node.spent, task_switches_total=5, task_children=0)
            told.append(node.of_job()["job_confidence"] if node.of_job()["job_verdict"] else 0.0)
        return told

    assert set(wait(900.0, cpu=0.9)) == {0.0}, "it works"
    assert max(map(float, map(str, wait(80.0, cpu=0.0)))) <= 0.5, "for a while it does not"
    assert float(str(wait(120.0, cpu=0.0)[-1])) > 0.6, "and then it does not for good"


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


def test_a_new_job_is_known_with_its_first_word() -> None:
    """A limit needs twenty steps: of a job that stops after three seconds some would be missed until the next view."""
    node = Node(every=30.0)
    node.sweep({card(0): {"utilization_ratio": 0.0}})
    node.beat(1, after=0.5)
    node.beat(40, after=0.8)
    node.beat(40, after=31.0, progress_seconds=31.0)
    assert node.of_job()["job_progress_limit_seconds"] == 30.0


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
