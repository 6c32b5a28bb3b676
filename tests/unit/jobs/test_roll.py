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
    assert (told["job_ranks_telling"], told["job_ranks_done"]) == (3, 1), "one was killed before it saved, one goes on"


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
