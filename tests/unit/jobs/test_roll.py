"""What ranks say of themselves, as their job's."""

from gpuguard.jobs.roll import roll_call
from gpuguard.model.jobs import JOB_QUANTITIES
from gpuguard.model.readings import Values, plausible


def test_of_no_ranks_nothing_is_told() -> None:
    assert roll_call({}) == {}


def test_gone_are_those_that_ended_without_a_word() -> None:
    ranks: dict[int, Values] = {
        0: {"rank_via": "library", "rank_done": 1, "rank_gone": 1},
        1: {"rank_via": "library", "rank_done": 0, "rank_gone": 1},
        7: {"rank_via": "log", "rank_gone": 1},
        2: {"rank_via": "library", "rank_done": 0, "rank_gone": 0},
    }
    told = roll_call(ranks)
    assert (told["job_ranks"], told["job_ranks_gone"], told["job_gone_ranks"]) == (4, 2, "1 7")
    assert (told["job_ranks_telling"], told["job_ranks_done"]) == (3, 1)


def test_a_rank_that_was_told_to_end_and_saved_did_not_end_without_a_word() -> None:
    told = roll_call({
        0: {"rank_via": "library", "rank_gone": 1, "rank_preempt": 3},
        1: {"rank_via": "library", "rank_gone": 1, "rank_preempt": 2},
        2: {"rank_via": "library", "rank_gone": 0, "rank_preempt": 3},
    })  # fmt: skip
    assert (told["job_ranks_telling"], told["job_ranks_done"], told["job_ranks_obeyed"]) == (3, 0, 2)


def test_a_log_cannot_say_that_it_is_done() -> None:
    assert roll_call({0: {"rank_via": "log"}, 1: {"rank_via": "datagram", "rank_done": 1}})["job_ranks_telling"] == 0


def test_the_newest_checkpoint_counts_and_the_save_that_blocked_longest() -> None:
    told = roll_call({
        0: {"rank_saved_seconds": 30.0, "rank_saved_step": 900, "rank_save_holds": "model optimizer",
            "rank_save_blocked_seconds": 2.0},
        1: {"rank_saved_seconds": 700.0, "rank_saved_step": 100, "rank_save_holds": "model",
            "rank_save_blocked_seconds": 40.0},
        2: {"rank_saved_seconds": None},
    })  # fmt: skip
    assert (told["job_saved_seconds"], told["job_saved_step"], told["job_save_holds"]) == (30.0, 900, "model optimizer")
    assert told["job_save_blocked_seconds"] == 40.0


def test_a_job_that_never_saved_has_no_age_of_a_checkpoint() -> None:
    told = roll_call({0: {"rank_step": 5, "rank_save_holds": ""}, 1: {"rank_saved_seconds": None}})
    assert not {name for name in told if name.startswith("job_save")}


def test_the_loss_of_the_dead_does_not_count() -> None:
    ranks: dict[int, Values] = {
        0: {"rank_loss_nan": 1},
        1: {"rank_loss_nan": 1, "rank_gone": 1},
        2: {"rank_loss_nan": None},
    }
    assert roll_call(ranks)["job_loss_nan"] == 1


def test_every_column_is_declared_and_can_be() -> None:
    known = {quantity.name: quantity for quantity in JOB_QUANTITIES}
    many: dict[int, Values] = {n: {"rank_gone": 1, "rank_saved_seconds": 1.0, "rank_saved_step": 3} for n in range(500)}
    for name, value in roll_call(many).items():
        assert known[name].of == "job"
        assert plausible(known[name], value)
    assert len(str(roll_call(many)["job_gone_ranks"])) < 200


def test_who_ended_before_the_last_start_is_no_rank_of_it() -> None:
    before: Values = {"rank_via": "library", "rank_gone": 1, "rank_restart": 0}
    now: Values = {"rank_via": "library", "rank_gone": 0, "rank_restart": 1}
    told = roll_call({0: now, 1: now, 2: before})
    assert (told["job_ranks"], told["job_ranks_gone"], told["job_ranks_telling"]) == (2, 0, 2)
    ended = now | {"rank_gone": 1, "rank_done": 1}
    assert roll_call({0: ended, 1: ended, 2: before})["job_ranks_telling"] == 2


def test_who_saved_when_told_to_end_obeyed() -> None:
    ranks: dict[int, Values] = {n: {"rank_via": "library", "rank_preempt": 3, "rank_gone": 1} for n in range(2)}
    assert roll_call(ranks)["job_ranks_obeyed"] == 2
    assert roll_call(ranks | {2: {"rank_via": "library", "rank_done": 1}})["job_ranks_obeyed"] == 3
    assert roll_call({0: {"rank_via": "library", "rank_done": 1}})["job_ranks_obeyed"] == 0


def test_a_loss_that_was_none_once_is_a_step_that_was_skipped() -> None:
    once: Values = {"rank_via": "library", "rank_loss_nan": 1, "rank_loss_flat_steps": 0}
    assert roll_call({0: once})["job_loss_nan"] == 0
    assert roll_call({0: once | {"rank_loss_flat_steps": 100}})["job_loss_nan"] == 1
    assert roll_call({0: once | {"rank_via": "datagram"}})["job_loss_nan"] == 1, "nobody counts there"
