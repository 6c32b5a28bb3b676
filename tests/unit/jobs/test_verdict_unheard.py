"""What holds a job up of whose progress nobody tells, and what slows one down that gets on."""

from dataclasses import replace

import pytest

from gpuguard.jobs.views import JobView, TaskView
from gpuguard.model.ids import JobId
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
    view,
    with_one,
)


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
