"""What holds a job up."""

from dataclasses import replace
from typing import Any

import pytest

from gpuguard.jobs.flight import Comparison
from gpuguard.jobs.verdict import Settings, judge
from gpuguard.jobs.views import GpuView, JobView, Judgement, Pattern, RankView, TaskView
from gpuguard.model.ids import JobId, SubjectId

SETTINGS = Settings()


def gpu(number: int) -> SubjectId:
    return SubjectId(f"gpu:0000:{number:02x}:00.0")


def task(number: int, **more: Any) -> TaskView:
    return TaskView(pid=1000 + number, name="python3", **{"state": "S", "cpu": 0.0, "children_cpu": 0.0, **more})


def spins(number: int, **more: Any) -> TaskView:
    """A process that asks the GPU again and again whether it is done."""
    return task(number, **{"state": "R", "cpu": 1.0, **more})


def still(number: int, **more: Any) -> TaskView:
    return task(number, **{"still": 60.0, **more})


def rank(number: int, **more: Any) -> RankView:
    told: dict[str, Any] = {
        "step": 500, "phase": "step", "silent": 0.5, "limit": 30.0, "learned": True, "gpu": gpu(number),
        "task": spins(number), **more,
    }  # fmt: skip
    return RankView(number=number, pid=1000 + number, **told)


def view(number: int, pattern: Pattern, **more: Any) -> GpuView:
    return GpuView(gpu=gpu(number), **{"pattern": pattern, "pattern_seconds": 60.0, "worked": True, **more})


def job(ranks: list[RankView], patterns: str = "", **more: Any) -> JobView:
    """A job of these ranks; patterns are s(pinning), w(orking), i(dle), t(ooth), ?."""
    words: dict[str, Pattern] = {"s": "spinning", "w": "working", "i": "idle", "t": "sawtooth", "?": "unknown"}
    gpus = tuple(view(number, words[letter]) for number, letter in enumerate(patterns))
    tasks = tuple(one.task for one in ranks if one.task is not None)
    return JobView(job=JobId("slurm/7"), **{"world": len(ranks), "ranks": tuple(ranks), "gpus": gpus, "tasks": tasks,
                                             **more})  # fmt: skip


def silent(seconds: float = 40.0, count: int = 4, **more: Any) -> list[RankView]:
    return [rank(number, silent=seconds, **more) for number in range(count)]


def with_one(ranks: list[RankView], number: int, **more: Any) -> list[RankView]:
    return [replace(one, **more) if one.number == number else one for one in ranks]


def judged(one: JobView) -> Judgement:
    return judge(one, SETTINGS)


def test_a_job_that_gets_on_has_no_verdict() -> None:
    assert judged(job([rank(n) for n in range(4)], "wwww")).verdict is None


def test_silent_within_the_limit_is_no_verdict() -> None:
    assert judged(job(silent(29.0), "ssss")).verdict is None


def test_a_kernel_that_holds_all_of_its_gpu_while_the_others_wait_with_a_few_sms_is_the_culprit() -> None:
    one = job(silent(), "ssss")
    held = replace(one, gpus=tuple(replace(g, sm=1.0 if g.gpu == gpu(1) else 0.12) for g in one.gpus))
    assert (judged(held).verdict, judged(held).rank) == ("hung", 1)
    assert judged(replace(one, gpus=tuple(replace(g, sm=1.0) for g in one.gpus))).rank is None


def test_what_is_evident_waits_for_no_long_limit() -> None:
    long = silent(45.0, limit=600.0)
    assert judged(job(long, "ssss")).verdict == "hung"
    assert judged(job(with_one(long, 1, task=still(1)), "siss")).rank == 1
    assert judged(job(with_one(long, 1, task=task(1, io_bytes_per_second=3e8)), "siss")).verdict is None
    assert judged(job(long, "ssss", elsewhere=True, world=8)).verdict is None
    assert judged(job(silent(45.0, limit=600.0, phase="checkpoint"), "ssss")).verdict is None
    assert judged(job(silent(35.0, limit=600.0), "ssss")).verdict is None


def test_nothing_is_evident_of_ranks_that_wait_with_gpus_at_rest_or_alone() -> None:
    long = [replace(one, task=still(one.number)) for one in silent(45.0, limit=600.0)]
    assert judged(job(long, "iiii")).verdict is None, "they may all wait for a person, or for a file"
    assert judged(job(with_one(long, 1, task=task(1)), "siii")).verdict is None
    assert judged(job(silent(45.0, count=1, limit=600.0), "s")).verdict is None, "nobody waits for it"
    just = job(silent(45.0, limit=600.0), "ssss")
    assert judged(replace(just, gpus=tuple(replace(g, pattern_seconds=20.0) for g in just.gpus))).verdict is None


def test_a_job_of_one_rank_hangs_alone() -> None:
    found = judged(job(silent(count=1), "s"))
    assert (found.verdict, found.rank) == ("hung", 0)
    assert found.why == "rank 0 shows no progress in step for 40 s (limit 30 s)"


def test_what_is_known_of_the_culprit_makes_the_verdict_surer() -> None:
    alike, one = judged(job(silent(), "ssss")), judged(job(with_one(silent(), 1, behind=1), "ssss"))
    assert alike.confidence == pytest.approx(0.8)
    assert one.confidence == pytest.approx(0.9)
    assert judged(job(silent(learned=False), "ssss")).confidence == pytest.approx(0.75)


def test_who_is_long_in_a_state_does_not_hang_in_the_kernel_for_it() -> None:
    asleep = judged(job(with_one(silent(), 1, task=spins(1, state_seconds=300.0)), "ssss"))
    assert (asleep.verdict, asleep.rank) == ("hung", None)
    moment = judged(job(with_one(silent(), 1, task=spins(1, state="D", state_seconds=2.0)), "ssss"))
    assert (moment.verdict, moment.rank) == ("hung", None)


def test_a_gpu_that_idles_names_nobody_where_others_idle_too() -> None:
    assert judged(job(silent(), "iiss")).rank is None
    assert judged(job(silent(count=2), "i?")).rank is None


def test_a_kernel_that_holds_half_of_a_gpu_or_the_same_as_others_names_nobody() -> None:
    one = job(silent(), "ssss")
    for mine, others in ((0.5, 0.1), (1.0, 0.8), (1.0, None)):
        gpus = tuple(replace(g, sm=mine if g.gpu == gpu(1) else others) for g in one.gpus)
        assert judged(replace(one, gpus=gpus)).rank is None


def test_of_several_that_are_behind_the_farthest_is_the_culprit() -> None:
    ranks = with_one(with_one(silent(), 1, behind=1), 3, behind=7)
    assert judged(job(ranks, "ssss")).rank == 3
    assert judged(job(silent(behind=3), "ssss")).rank is None, "of another node's ranks perhaps"


def test_several_that_stop_while_the_others_go_on_are_no_one_culprit() -> None:
    ranks = with_one(with_one([rank(n, gpu=None, task=None) for n in range(4)], 3, silent=60.0), 2, silent=60.0)
    assert (judged(job(ranks)).verdict, judged(job(ranks)).rank) == ("hung", None)
    elsewhere = judged(job(ranks, elsewhere=True, world=8))
    assert elsewhere.verdict == "hung", "those that go on wait for nobody elsewhere"


def test_files_that_stand_still_for_an_hour_are_a_hang_though_no_process_is_seen() -> None:
    files = [replace(one, pid=None, task=None, gpu=None) for one in silent(SETTINGS.patience)]
    assert judged(job(files)).verdict == "hung"


def test_files_that_stand_still_while_no_process_is_seen_are_no_hang() -> None:
    files = [replace(one, pid=None, task=None, gpu=None) for one in silent()]
    assert judged(job(files)).verdict is None
    assert judged(job(files, tasks=(still(0),))).verdict == "hung"


def test_who_idles_while_the_others_spin_is_the_culprit() -> None:
    found = judged(job(with_one(silent(), 2, task=still(2)), "ssis"))
    assert (found.verdict, found.rank, found.gpu) == ("hung", 2, gpu(2))
    assert found.confidence >= 0.9
    assert any("idles" in words for words in found.speaks_for)


def test_who_is_behind_is_the_culprit_where_nothing_is_known_of_gpus() -> None:
    ranks = [replace(one, gpu=None, task=None) for one in with_one(silent(), 1, step=499, behind=1)]
    found = judged(job(ranks))
    assert (found.verdict, found.rank) == ("hung", 1)
    assert "1 step behind" in found.why


def test_of_ranks_that_all_look_the_same_none_is_named() -> None:
    found = judged(job(silent(), "ssss"))
    assert (found.verdict, found.rank) == ("hung", None)
    assert "every rank" in found.why


def test_who_has_not_called_the_collective_is_the_culprit() -> None:
    ranks = with_one([replace(one, collective=90) for one in silent()], 3, collective=89)
    found = judged(job(ranks, "ssss"))
    assert (found.verdict, found.rank) == ("hung", 3)
    assert "collective 89" in found.speaks_for[0]


def test_whom_the_flight_recorders_name_is_the_culprit() -> None:
    told = Comparison(kind="missing", culprits=(2,), why="rank 2 has not called all_reduce 91", confidence=0.95)
    found = judged(job(silent(), "ssss", flight=told))
    assert (found.verdict, found.rank) == ("hung", 2)
    assert "all_reduce 91" in found.why
    several = judged(job(silent(), "ssss", flight=Comparison(kind="missing", culprits=(1, 2), why="two")))
    assert several.rank is None


def test_one_rank_that_stops_while_the_others_go_on() -> None:
    ranks = with_one([rank(n, gpu=None, task=None) for n in range(4)], 3, silent=60.0)
    found = judged(job(ranks))
    assert (found.verdict, found.rank) == ("hung", 3)


def test_a_rank_that_is_gone_while_the_others_wait() -> None:
    found = judged(job(with_one(silent(21.0), 0, gone=True, silent=25.0), "isss"))
    assert (found.verdict, found.rank) == ("hung", 0)
    assert "gone" in found.why


def test_a_job_of_which_nobody_is_left_waits_for_nobody() -> None:
    assert judged(job(silent(gone=True), "iiii")).verdict is None


def test_a_rank_that_is_gone_while_the_others_go_on_is_no_hang() -> None:
    assert judged(job(with_one([rank(n) for n in range(4)], 0, gone=True), "iwww")).verdict is None


def gave_up(ranks: list[RankView], *numbers: int) -> list[RankView]:
    """Those ended five seconds ago, when their collective had timed out."""
    return [replace(one, gone=True, ended=5.0, task=None) if one.number in numbers else one for one in ranks]


def test_ranks_whose_collective_timed_out_are_not_whom_the_last_one_waits_for() -> None:
    found = judged(job(gave_up(silent(90.0, 3), 0, 1), "iii"))
    assert (found.verdict, found.rank, found.gpu) == ("hung", 2, gpu(2))
    assert found.why == "2 ranks waited and gave up, and rank 2 is left without progress in step for 90 s"


def test_of_several_that_are_left_the_one_that_stands_out_is_the_culprit() -> None:
    found = judged(job(with_one(gave_up(silent(90.0), 0), 2, task=still(2)), "ssis"))
    assert (found.verdict, found.rank) == ("hung", 2)
    assert "1 rank waited and gave up, and 3 are left" in found.why
    assert judged(job(gave_up(silent(90.0), 0), "ssss")).rank is None


def test_of_two_ranks_nobody_knows_which_one_waited() -> None:
    found = judged(job(gave_up(silent(90.0, 2), 0), "ii"))
    assert (found.verdict, found.rank) == ("hung", None)


def test_one_that_was_killed_is_the_culprit_though_others_gave_up_since() -> None:
    ranks = with_one(gave_up(silent(90.0), 0), 3, gone=True, ended=89.0, task=None)
    found = judged(job(ranks, "sssi"))
    assert (found.verdict, found.rank) == ("hung", 3)
    assert "gone" in found.why


def test_one_that_is_stopped_is_paused_though_others_gave_up() -> None:
    ranks = with_one(gave_up(silent(90.0, 3), 0, 1), 2, task=task(2, state="T", state_seconds=88.0))
    found = judged(job(ranks, "iii"))
    assert (found.verdict, found.rank) == ("paused", 2)


def waiting(*places: str) -> list[RankView]:
    """Ranks that sit still in these functions of the kernel."""
    return [replace(one, task=still(one.number, waits_in=place), gpu=None)
            for one, place in zip(silent(count=len(places)), places, strict=True)]  # fmt: skip


def test_who_waits_for_something_else_than_all_others_is_the_culprit() -> None:
    found = judged(job(waiting("futex_do_wait", "futex_do_wait", "anon_pipe_read")))
    assert (found.verdict, found.rank) == ("hung", 2)
    assert found.speaks_for[0] == "rank 2 waits in anon_pipe_read, all others in futex_do_wait"


@pytest.mark.parametrize(
    "places",
    [
        ("futex_do_wait", "futex_do_wait", "futex_do_wait"), ("futex_do_wait", "pipe_read"),
        ("futex_do_wait", "poll", "pipe_read"), ("futex_do_wait", "futex_do_wait", ""), ("", "", "pipe_read"),
    ],
    ids=["the same", "of two", "all apart", "its own unknown", "the others' unknown"],
)  # fmt: skip
def test_where_ranks_wait_names_nobody_without_a_rule_and_one_exception(places: tuple[str, ...]) -> None:
    found = judged(job(waiting(*places)))
    assert (found.verdict, found.rank) == ("hung", None)


def test_where_somebody_moves_the_place_of_one_look_says_nothing() -> None:
    ranks = waiting("futex_do_wait", "futex_do_wait", "anon_pipe_read")
    moves = with_one(ranks, 0, task=task(0, waits_in="futex_do_wait"))
    assert not any("waits in" in words for words in judged(job(moves)).speaks_for)


def test_a_rank_that_is_done_is_not_waited_for() -> None:
    assert (
        judged(job(with_one([rank(n) for n in range(2)], 0, done=True, gone=True, silent=900.0), "iw")).verdict is None
    )
    assert judged(job([rank(n, done=True, silent=900.0) for n in range(2)])).verdict is None


def test_a_stopped_process_is_paused_and_not_hung() -> None:
    stopped = task(1, state="T", state_seconds=15.0)
    found = judged(job(with_one(silent(), 1, task=stopped), "siss"))
    assert (found.verdict, found.rank) == ("paused", 1)
    assert "kill -CONT 1001" in found.why
    debugged = judged(job(with_one(silent(), 1, task=replace(stopped, state="t"))))
    assert "debugger" in debugged.why
    assert judged(job(with_one(silent(5.0), 1, task=replace(stopped, state_seconds=3.0)))).verdict is None


def test_who_is_gone_or_gets_on_is_not_paused() -> None:
    held = task(1, state="T", state_seconds=30.0)
    assert judged(job(with_one(silent(5.0), 1, task=held), "wwww")).verdict is None, "it got on since"
    assert judged(silent_gpus("wwww", [replace(held, gone=True)])).verdict is None
    assert judged(silent_gpus("wwww", [replace(held, state_seconds=1.0)])).verdict is None
    assert judged(silent_gpus("wwww", [held])).why.startswith("process 1001 (python3) was stopped")
    named = judged(silent_gpus("wwww", [replace(held, state="t", rank=1)]))
    assert named.why.startswith("rank 1 (pid 1001) is held by a debugger")


def test_others_wait_rightly_for_a_checkpoint() -> None:
    found = judged(job(with_one(silent(), 0, phase="checkpoint", limit=300.0), "isss"))
    assert found.verdict is None
    assert found.against == ("rank 0 is in checkpoint since 40 of 300 s",)


def test_a_checkpoint_beyond_its_limit_is_a_hang() -> None:
    found = judged(job(with_one(silent(400.0), 0, phase="checkpoint", limit=300.0, task=still(0)), "isss"))
    assert (found.verdict, found.rank) == ("hung", 0)
    assert "checkpoint" in found.why


@pytest.mark.parametrize(
    ("life", "patterns"),
    [
        ({"task": task(0, io_bytes_per_second=5e7)}, "isss"),
        ({"task": task(0, cpu=1.2)}, "isss"),
        ({"task": task(0, children=8, children_cpu=4.0)}, "isss"),
        ({"task": spins(0)}, "wsss"),
    ],
    ids=["writes", "computes", "loads", "gpu"],
)
def test_who_works_without_a_word_is_given_patience(life: dict[str, Any], patterns: str) -> None:
    found = judged(job(with_one(silent(120.0), 0, **life), patterns))
    assert found.verdict is None
    assert found.against
    assert "rank 0" in found.against[0]
    late = judged(job(with_one(silent(SETTINGS.patience), 0, **life), patterns))
    assert late.verdict == "hung"


def test_a_processor_that_waits_for_a_spinning_gpu_is_no_work() -> None:
    assert judged(job(silent(), "ssss")).verdict == "hung"


def test_what_the_others_do_is_no_life_of_one_that_stands_alone() -> None:
    ranks = with_one([rank(n) for n in range(4)], 2, silent=45.0, task=still(2))
    found = judged(job(ranks, "wwiw"))
    assert (found.verdict, found.rank) == ("hung", 2)


def test_storage() -> None:
    hanging = task(1, state="D", state_seconds=35.0, waits_in="nfs_wait_bit_killable")
    found = judged(job(with_one(silent(), 1, task=hanging), "siss"))
    assert (found.verdict, found.rank) == ("storage_stalled", 1)
    assert "nfs_wait_bit_killable" in found.why
    waits = task(1, io_stalled=0.9, io_bytes_per_second=2e6)
    assert judged(job(with_one(silent(), 1, task=waits), "siss")).verdict == "storage_stalled"


def test_no_first_step() -> None:
    ranks = [rank(n, silent=3700.0, limit=3600.0, phase="start", step=None, started=False) for n in range(2)]
    assert judged(job([replace(one, silent=3000.0) for one in ranks], "ii")).verdict is None
    assert judged(job(ranks, "ii")).verdict == "slow_start"


def test_where_some_have_begun_it_is_no_slow_start() -> None:
    ranks = [rank(n, silent=3700.0, limit=3600.0, phase="start", step=None, started=n > 0) for n in range(2)]
    assert judged(job(ranks, "ii")).verdict == "hung"


def test_a_job_with_other_nodes_waits_where_nobody_here_is_suspect() -> None:
    found = judged(job(silent(120.0), "ssss", world=8, elsewhere=True))
    assert found.verdict == "waiting"
    assert "--merge" in found.why
    suspect = judged(job(with_one(silent(120.0), 1, task=still(1)), "siss", world=8, elsewhere=True))
    assert (suspect.verdict, suspect.rank) == ("hung", 1)
    assert judged(job(silent(SETTINGS.patience), "ssss", world=8, elsewhere=True)).verdict == "hung"


# --- nobody tells of progress ---------------------------------------------------------------------------------------


def silent_gpus(patterns: str, tasks: list[TaskView], seconds: float = 80.0, **more: Any) -> JobView:
    one = job([], patterns, tasks=tuple(tasks), **{"world": len(patterns), **more})
    return replace(one, gpus=tuple(replace(g, pattern_seconds=seconds) for g in one.gpus))


def test_gpus_that_all_spin_are_a_hang() -> None:
    found = judged(silent_gpus("ssss", [spins(n) for n in range(4)]))
    assert (found.verdict, found.gpu) == ("hung", None)
    assert judged(silent_gpus("ssss", [spins(n) for n in range(4)], seconds=60.0)).verdict is None


def test_gpus_that_spin_while_one_works_or_most_rest_are_no_hang() -> None:
    assert judged(silent_gpus("sssw", [spins(n) for n in range(4)])).verdict is None
    assert judged(silent_gpus("siii", [spins(n) for n in range(4)])).verdict is None


def test_who_works_while_the_gpus_spin_is_given_patience_and_no_more() -> None:
    tasks = [task(0, io_bytes_per_second=3e8), *[spins(n) for n in range(1, 4)]]
    assert judged(silent_gpus("isss", tasks, seconds=SETTINGS.patience)).verdict == "hung"
    ended = [replace(tasks[0], gone=True), *tasks[1:]]
    assert judged(silent_gpus("isss", ended)).verdict == "hung", "what it wrote it wrote before it ended"


def test_gpus_of_a_job_on_more_nodes_wait_and_not_for_ever() -> None:
    tasks = [spins(n) for n in range(4)]
    assert judged(silent_gpus("ssss", tasks, elsewhere=True, seconds=SETTINGS.patience)).verdict == "hung"
    odd = judged(silent_gpus("ssis", tasks[:2] + tasks[3:], elsewhere=True))
    assert (odd.verdict, odd.gpu) == ("hung", gpu(2)), "the one they wait for is here"


def test_one_that_stands_out_is_told_though_nobody_says_on_how_many_nodes_it_runs() -> None:
    tasks = [spins(n, rank=n, gpu=gpu(n)) for n in range(3)]
    found = judged(silent_gpus("ssss", [*tasks, still(3, rank=3, gpu=gpu(3))], world=None))
    assert (found.verdict, found.rank) == ("hung", 3)
    assert found.why.endswith("; process 1003 sits still")
    idle = judged(silent_gpus("ssis", [spins(0), spins(1), spins(3)], world=None))
    assert (idle.verdict, idle.gpu) == ("hung", gpu(2))
    assert idle.why.endswith("idles, and the others wait for it")


def test_loaders_that_sit_still_are_not_whom_ranks_wait_for() -> None:
    tasks = [*[spins(n, rank=n, gpu=gpu(n)) for n in range(4)], still(9)]
    assert judged(silent_gpus("ssss", tasks)).rank is None
    assert "sits still" not in judged(silent_gpus("ssss", tasks)).why


def test_the_gpu_that_idles_is_named() -> None:
    found = judged(silent_gpus("ssis", [spins(0), spins(1), still(2), spins(3)]))
    assert (found.verdict, found.gpu) == ("hung", gpu(2))


def test_gpus_that_spin_while_one_writes_wait_for_it() -> None:
    tasks = [task(0, io_bytes_per_second=3e8), *[spins(n) for n in range(1, 4)]]
    assert judged(silent_gpus("isss", tasks)).verdict is None


def test_high_utilisation_alone_is_no_hang_and_none_is_no_fault() -> None:
    assert judged(silent_gpus("wwww", [spins(n) for n in range(4)], seconds=9000.0)).verdict is None
    assert judged(silent_gpus("iiii", [still(n) for n in range(4)], seconds=9000.0)).verdict is None


def test_gpus_that_never_worked_are_none_of_ours_to_judge() -> None:
    one = silent_gpus("ss", [spins(0), spins(1)])
    assert judged(replace(one, gpus=tuple(replace(g, worked=False) for g in one.gpus))).verdict is None


def test_where_nobody_says_on_how_many_nodes_it_runs_the_verdict_is_unsure_for_longer() -> None:
    tasks = [spins(n) for n in range(4)]
    assert judged(silent_gpus("ssss", tasks, world=None)).verdict == "waiting"
    assert judged(silent_gpus("ssss", tasks, world=None, seconds=700.0)).verdict == "hung"
    assert judged(silent_gpus("ssss", tasks, elsewhere=True)).verdict == "waiting"


@pytest.mark.parametrize(
    "odd", [still(2, rank=2, gpu=gpu(2)), task(2, rank=2, gpu=gpu(2), gone=True), spins(2, rank=2, gpu=gpu(2))],
    ids=["still", "gone", "loops"],
)  # fmt: skip
def test_whoever_stands_out_is_the_culprit_by_the_rank_in_its_environment(odd: TaskView) -> None:
    tasks = [spins(n, rank=n, gpu=gpu(n)) for n in (0, 1, 3)]
    one = silent_gpus("ssss", [*tasks, odd])
    held = replace(one, gpus=tuple(replace(g, sm=1.0 if g.gpu == gpu(2) else 0.1) for g in one.gpus))
    assert (judged(held).verdict, judged(held).rank, judged(held).gpu) == ("hung", 2, gpu(2))


def test_a_rank_that_computes_beside_its_idle_gpu_is_waited_for() -> None:
    tasks = [spins(n, rank=n, gpu=gpu(n)) for n in range(4)]
    assert judged(silent_gpus("isss", tasks)).verdict is None


def test_a_process_that_hangs_in_the_kernel_while_the_gpus_spin() -> None:
    tasks = [task(0, state="D", state_seconds=60.0), *[spins(n) for n in range(1, 4)]]
    assert judged(silent_gpus("isss", tasks)).verdict == "storage_stalled"


def test_a_stopped_process_without_a_word_of_progress() -> None:
    assert judged(silent_gpus("isss", [task(0, state="T", state_seconds=20.0)])).verdict == "paused"


# --- slow, and fed too slowly ---------------------------------------------------------------------------------------


def test_a_rank_that_falls_behind() -> None:
    ranks = with_one([rank(n, step=1000) for n in range(4)], 3, step=900, behind=100, slower=1.6)
    found = judged(job(ranks, "wwww"))
    assert (found.verdict, found.rank) == ("straggler", 3)


def test_ranks_that_are_a_little_behind_or_all_alike_are_no_stragglers() -> None:
    assert judged(job(with_one([rank(n, step=1000) for n in range(4)], 3, behind=9), "wwww")).verdict is None
    late = [rank(n, step=10_000) for n in range(4)]
    assert judged(job(with_one(late, 3, behind=400), "wwww")).verdict is None, "4 % of its steps"
    spread = [rank(n, step=1000, behind=60 + 20 * n) for n in range(4)]
    assert judged(job(spread, "wwww")).verdict is None, "far behind one that is ahead, as all others are"


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile"])
def test_nobody_is_slow_or_starved_while_a_rank_does_something_of_its_own(phase: str) -> None:
    ranks = with_one([rank(n, step=1000, task=task(n, children_cpu=3.0)) for n in range(4)], 3, step=900, behind=100)
    assert judged(job(with_one(ranks, 0, phase=phase), "tttt")).verdict is None


def test_the_rank_whose_gpu_is_always_busy_holds_the_others_up() -> None:
    one = job([rank(n, slower=2.5) for n in range(4)], "wwww")
    busy = replace(one, gpus=tuple(replace(g, activity=0.9 if n == 1 else 0.3) for n, g in enumerate(one.gpus)))
    assert (judged(busy).verdict, judged(busy).rank) == ("straggler", 1)
    even = replace(one, gpus=tuple(replace(g, activity=0.5) for g in one.gpus))
    assert judged(even).verdict is None


def test_a_busy_gpu_is_no_fault_at_the_usual_pace() -> None:
    one = job([rank(n, slower=1.1) for n in range(4)], "wwww")
    busy = replace(one, gpus=tuple(replace(g, activity=0.9 if n == 1 else 0.3) for n, g in enumerate(one.gpus)))
    assert judged(busy).verdict is None


def test_gpus_in_bursts_with_busy_loaders_wait_for_data() -> None:
    fed = [rank(n, task=task(n, children=4, children_cpu=3.0)) for n in range(2)]
    assert judged(job(fed, "tt")).verdict == "data_starved"
    assert judged(job([rank(n, task=task(n)) for n in range(2)], "tt")).verdict is None, "nobody loads anything"
    assert judged(job(fed, "ww")).verdict is None


def test_bursts_of_few_gpus_are_no_want_of_data_and_reading_is_loading() -> None:
    fed = [rank(n, task=task(n, children_cpu=3.0)) for n in range(4)]
    assert judged(job(fed, "twww")).verdict is None
    reads = judged(job([rank(n, task=task(n, io_bytes_per_second=2e8)) for n in range(2)], "tt"))
    assert reads.verdict == "data_starved"
    assert reads.why.endswith("; reads 400 MB/s")


def test_every_verdict_has_words() -> None:
    for one in (job(silent(), "ssss"), silent_gpus("ssss", [spins(0)]), job(with_one(silent(), 1, behind=1), "ssss")):
        found = judged(one)
        assert found.why
        assert found.speaks_for
        assert 0.0 < found.confidence < 1.0


def test_who_saves_when_the_others_have_left_is_not_waited_for() -> None:
    left = with_one([replace(one, gone=True, task=None) for one in silent(200.0)], 0, gone=False)
    declared = with_one(left, 0, task=still(0), phase="checkpoint", limit=1800.0)
    assert judged(job(declared, "iiii")).verdict is None
    writes = with_one(left, 0, task=task(0, io_bytes_per_second=3e8), limit=600.0)
    assert judged(job(writes, "iiii")).verdict is None
    assert judged(job(with_one(left, 0, task=still(0), limit=600.0), "iiii")).verdict == "hung"
    polls = with_one(left, 0, task=spins(0), limit=600.0, gpu=None)
    assert judged(job(polls)).verdict == "hung", "to use a processor is to wait, as far as is known"


def test_gpus_that_compute_excuse_the_longest_silence() -> None:
    assert judged(job(silent(9000.0), "wwww")).verdict is None
    assert judged(job(silent(9000.0), "wwsw")).verdict == "hung"


def test_a_silence_alone_of_steps_that_nobody_knows_is_no_finding() -> None:
    blind = [replace(one, gpu=None, task=None) for one in silent(700.0, limit=600.0, learned=False)]
    assert judged(job(blind)).confidence < 0.6
    assert judged(job([replace(one, learned=True) for one in blind])).confidence >= 0.6
    assert judged(job([replace(one, silent=3700.0) for one in blind])).confidence >= 0.6


@pytest.mark.parametrize("place", ["ep_poll", "do_epoll_wait", "n_tty_read", "inet_csk_accept"])
def test_a_program_that_sleeps_until_it_is_asked_is_not_hung(place: str) -> None:
    asked = [rank(0, silent=9000.0, task=still(0, waits_in=place))]
    assert judged(job(asked, "i")).verdict is None
    assert judged(job([replace(asked[0], task=still(0, waits_in="futex_wait_queue"))], "i")).verdict == "hung"
    several = with_one(silent(), 1, task=still(1, waits_in=place))
    assert judged(job(several, "siss")).verdict == "hung", "others wait for it"


def test_a_server_whose_first_process_waits_for_a_question_keeps_the_others_waiting_rightly() -> None:
    tasks = tuple(replace(spins(n), rank=n, gpu=gpu(n)) for n in range(4))
    gpus = tuple(view(n, "idle" if n == 0 else "spinning", pattern_seconds=900.0) for n in range(4))
    asked = replace(tasks[0], state="S", cpu=0.0, still=900.0, waits_in="inet_csk_accept")
    one = JobView(job=JobId("slurm/7"), world=4, gpus=gpus, tasks=(asked, *tasks[1:]))
    assert judged(one).verdict is None
    assert judged(replace(one, tasks=(replace(asked, waits_in="futex_wait_queue"), *tasks[1:]))).verdict == "hung"


def test_of_a_job_of_which_one_rank_tells_another_may_be_the_culprit() -> None:
    silent_ones = tuple(replace(spins(n), rank=n, gpu=gpu(n)) for n in range(4))
    one = replace(job(silent(count=1), "ssss", world=4), tasks=silent_ones)
    assert (judged(one).verdict, judged(one).rank) == ("hung", None), "all look the same"
    locked = replace(silent_ones[2], state="S", cpu=0.0, still=60.0)
    found = judged(replace(one, tasks=(*silent_ones[:2], locked, silent_ones[3])))
    assert (found.verdict, found.rank, found.gpu) == ("hung", 2, gpu(2))
    itself = replace(silent_ones[0], state="S", cpu=0.0, still=60.0)
    found = judged(replace(one, ranks=(replace(one.ranks[0], task=itself),), tasks=(itself, *silent_ones[1:])))
    assert (found.verdict, found.rank) == ("hung", 0)


def test_ranks_that_drift_apart_wait_for_nobody() -> None:
    drifting = [rank(n, step=900 - 200 * n, behind=200 * n, slower=1.0) for n in range(4)]
    assert judged(job(drifting, "wwww")).verdict is None
    slowed = with_one([rank(n, slower=1.0) for n in range(4)], 3, step=400, behind=100, slower=2.0)
    assert (judged(job(slowed, "wwww")).verdict, judged(job(slowed, "wwww")).rank) == ("straggler", 3)


@pytest.mark.parametrize(("place", "state"), [("do_freezer_trap", "S"), ("__refrigerator", "D")])
def test_a_frozen_group_is_paused_and_neither_hung_nor_stalled(place: str, state: str) -> None:
    frozen = [replace(one, task=still(one.number, waits_in=place, state=state, state_seconds=60.0)) for one in silent()]
    assert judged(job(frozen, "iiii")).verdict == "paused"
    assert "cgroup.freeze" in judged(job(frozen, "iiii")).why
    assert judged(replace(job(frozen, "iiii"), ranks=())).verdict == "paused"


def test_what_its_scheduler_has_suspended_is_not_for_others_to_let_go_on() -> None:
    stopped = with_one(silent(), 1, task=task(1, state="T", state_seconds=15.0))
    found = judged(job(stopped, "siss", suspended=True))
    assert (found.verdict, found.rank) == ("paused", None)
    assert "scontrol resume" in found.why
    assert "kill" not in found.why
    assert judged(job(silent(), "ssss", suspended=True)).verdict == "paused"
    assert judged(job([rank(n) for n in range(4)], "wwww", suspended=True)).verdict is None, "it has gone on since"


def test_one_that_sits_still_while_the_others_poll_is_found_without_a_look_at_gpus() -> None:
    assert judged(job(with_one(silent(), 2, task=still(2)), "????")).verdict == "hung"
    assert judged(job(with_one(silent(), 2, task=task(2, cpu=1.0, children_cpu=3.0)), "????")).verdict is None
    counts = [replace(one, task=still(one.number)) for one in silent()]
    assert judged(job(with_one(counts, 0, task=spins(0)), "????")).verdict is None, "it counts a score for the others"


def test_who_tells_of_no_progress_may_be_a_server_that_reads_what_it_is_asked() -> None:
    asks = task(0, io_bytes_per_second=1e6)
    one = JobView(job=JobId("kubernetes/7"), gpus=(view(0, "sawtooth"),), tasks=(asks,))
    assert judged(one).verdict is None
    assert judged(replace(one, tasks=(replace(asks, io_bytes_per_second=5e7),))).verdict == "data_starved"


def test_gaps_too_short_to_be_seen_show_in_steps_gpus_and_loaders_together() -> None:
    loads = [rank(n, slower=2.0, task=task(n, cpu=0.1, children_cpu=6.0)) for n in range(2)]
    idle = tuple(view(n, "working", activity=0.3, pattern_seconds=120.0) for n in range(2))
    starved = replace(job(loads), gpus=idle)
    assert judged(starved).verdict == "data_starved"
    for other in (
        replace(starved, gpus=tuple(replace(one, activity=0.9) for one in idle)),
        replace(starved, gpus=(idle[0], replace(idle[1], activity=None))),
        replace(starved, gpus=(idle[0], replace(idle[1], pattern_seconds=20.0))),
        replace(starved, ranks=(loads[0], replace(loads[1], slower=1.0))),
        replace(starved, ranks=(loads[0], replace(loads[1], phase="evaluation"))),
        replace(starved, tasks=(task(0, children_cpu=0.9), task(1, children_cpu=0.9))),
    ):
        assert judged(other).verdict is None
