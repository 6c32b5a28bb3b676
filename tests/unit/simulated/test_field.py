"""What an operator of many nodes meets in the first week: nobody cries wolf, and what is true is found."""

from tests.support.field import Field, Job


def trains(node: Field, name: str = "slurm/7", count: int = 4, seconds: float = 120.0) -> Job:
    """A job that has made steps for a while."""
    made = node.job(name, range(count))
    node.run(seconds, step=1.0)
    return made


def test_a_notebook_whose_cell_is_done_waits_for_its_person() -> None:
    node = Field(gpus=1)
    notebook = trains(node, count=1)
    notebook.do("locked")
    notebook[0].task = {"task_waits_in": "do_epoll_wait"}
    node.run(300)
    assert node.codes() == set()


def test_a_server_whose_workers_wait_in_a_broadcast_for_the_next_question() -> None:
    node = Field(gpus=4)
    server = node.job("slurm/7", range(4), tells=())
    node.run(60)
    server.do("wait")
    server[0].doing, server[0].task = "locked", {"task_waits_in": "inet_csk_accept"}
    node.run(300)
    assert node.codes() == set()


def test_steps_of_forty_minutes_that_nobody_can_look_at() -> None:
    node = Field(gpus=2, looks=30.0)
    node.away = {"nvml", "tasks"}
    node.job("slurm/7", range(2))
    node.run(2500, step=2400.0)
    assert node.codes() == set()


def test_the_first_rank_writes_the_last_checkpoint_when_the_others_have_left() -> None:
    node = Field(gpus=4)
    job = trains(node)
    for process in job.processes[1:]:
        process.gone = True
    job[0].doing = "save"
    node.run(200)
    assert node.codes() == set()


def test_of_several_programs_in_one_job_one_ends_and_the_others_go_on() -> None:
    node = Field(gpus=4)
    job = trains(node)
    job[1].gone = True
    node.run(150, step=1.0)
    assert node.codes() == set()


def test_a_rank_that_is_killed_is_found_and_told_twice() -> None:
    node = Field(gpus=4)
    job = trains(node)
    job.do("wait")
    job[2].gone = True
    node.run(120)
    assert node.standing(job.name) == {"job_hung", "job_half_dead"}
    assert node.told(job.name)["job_culprit_rank"] == 2


def test_a_job_of_which_one_rank_tells_hangs_in_another() -> None:
    node = Field()
    job = node.job("slurm/7", range(8), tells=(0,))
    node.run(120, step=1.0)
    job.do("wait")
    job[3].doing = "locked"
    node.run(90)
    assert node.standing(job.name) == {"job_hung"}
    assert (node.told(job.name)["job_culprit_rank"], node.told(job.name)["job_culprit_gpu"]) == (
        3, f"gpu:{node.address(3)}"
    )  # fmt: skip


def test_fewer_ranks_after_a_restart_are_neither_half_a_job_nor_unproven() -> None:
    node = Field()
    job = trains(node, count=8)
    for process in job.processes[6:]:
        process.gone, process.tells = True, {"rank_world": 8, "rank_restart": 0}
    node.run(5)
    job.world, job.restart = 6, 1
    for process in job.processes[:6]:
        node.forget(process)
    node.run(120, step=1.0)
    for process in job.processes[:6]:
        process.done = process.gone = True
    assert job.says is not None
    job.says |= {"job_alive": 0, "job_state": "COMPLETED", "job_exit_code": 0}
    node.run(100)
    assert node.codes() == set()


def test_instances_of_which_no_load_is_measured_are_not_idle() -> None:
    node = Field(gpus=2, looks=30.0)
    unknown = ("utilization_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "memory_copy_ratio")
    node.cards = {"mig_mode": 1, **dict.fromkeys(unknown)}
    node.job("slurm/7", [0])
    node.job("slurm/8", [1], tells=())
    node.run(2200, step=1.0)
    assert node.codes() == set()


def test_a_job_that_slurm_suspended_is_paused_and_not_idle() -> None:
    node = Field(gpus=2)
    job = trains(node, count=2)
    job.do("stopped")
    assert job.says is not None
    job.says["job_state"] = "SUSPENDED"
    node.run(2400)
    assert node.codes() == {"job_paused"}
    assert "scontrol resume" in node.reason(job.name, "job_paused")


def test_a_container_that_is_paused() -> None:
    node = Field(gpus=2)
    node.schedules = None
    job = node.job("docker/ab", range(2), slurm=False)
    node.run(120, step=1.0)
    job.do("locked")
    for process in job.processes:
        process.task = {"task_waits_in": "do_freezer_trap"}
    node.run(90)
    assert node.codes() == {"job_paused"}
    for process in job.processes:
        process.task = {}
    job.do("work")
    node.run(60, step=1.0)
    assert node.standing(job.name) == set()


def test_a_scheduler_that_is_silent_for_an_hour_makes_nobody_a_stranger_or_an_orphan() -> None:
    node = Field(gpus=4, looks=30.0)
    job = trains(node, count=2)
    assert job.says is not None
    job.says["job_alive"], node.schedules = None, None
    node.job("slurm/9", [3], slurm=False)
    node.run(1800, step=1.0)
    assert node.codes() == set()


def test_what_is_left_over_of_a_job_that_is_over_is_an_orphan() -> None:
    node = Field(gpus=2)
    job = trains(node, count=2)
    for process in job.processes:
        process.done = True
    node.run(3)
    job[1].gone, job[0].doing, job.telling = True, "locked", ()
    assert job.says is not None
    job.says |= {"job_alive": 0, "job_state": "COMPLETED", "job_exit_code": 0}
    node.run(360)
    assert node.standing("0") == {"gpu_orphan_memory"}
    assert node.standing("1") == set()
    assert node.standing(job.name) == set()


def test_eight_jobs_that_end_at_once() -> None:
    node = Field()
    jobs = [node.job(f"slurm/{number}", [number]) for number in range(8)]
    node.run(60, step=1.0)
    for job in jobs:
        job[0].done = job[0].gone = True
        assert job.says is not None
        job.says |= {"job_alive": 0, "job_state": "COMPLETED", "job_exit_code": 0}
    node.run(100)
    assert node.codes() == set()


def test_a_job_that_was_requeued_is_judged_anew() -> None:
    node = Field(gpus=2)
    job = trains(node, count=2)
    assert job.says is not None
    for process in job.processes:
        process.gone = True
    job.says |= {"job_state": "PENDING", "job_alive": 0}
    node.run(60)
    assert node.standing(job.name) == {"job_stopped"}
    job.says |= {"job_state": "RUNNING", "job_alive": 1, "job_restarts": 1}
    job.restart = 1
    for process in job.processes:
        node.forget(process)
    node.run(120, step=1.0)
    assert node.standing(job.name) == set()
    job.do("wait")
    job[1].doing = "locked"
    node.run(90)
    assert node.standing(job.name) == {"job_hung"}


def test_an_agent_that_was_away_while_the_job_went_on() -> None:
    node = Field(gpus=2)
    trains(node, count=2)
    node.away = {"nvml", "tasks", "heartbeats", "slurm"}
    node.run(300, step=1.0)
    node.away = set()
    node.run(90, step=1.0)
    assert node.codes() == set()


def test_a_hang_is_found_while_the_driver_does_not_answer() -> None:
    node = Field(gpus=4)
    job = trains(node)
    node.away = {"nvml"}
    node.run(120, step=1.0)
    job.do("wait")
    job[2].doing = "locked"
    node.run(90)
    assert node.standing(job.name) == {"job_hung"}
    assert node.told(job.name)["job_culprit_rank"] == 2
