"""What holds a job up."""

from dataclasses import replace
from typing import Any

import pytest

from gpuguard.jobs.flight import Comparison
from gpuguard.jobs.views import RankView
from tests.support.job_views import (
    SETTINGS,
    gpu,
    job,
    judged,
    rank,
    silent,
    silent_gpus,
    spins,
    still,
    task,
    with_one,
)


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
