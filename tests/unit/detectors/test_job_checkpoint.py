"""Old, slow and incomplete checkpoints, by the job's own pace."""

import pytest

from gpuguard.detectors import job_checkpoint
from gpuguard.progress.wire import PARTS
from tests.support.watched import Watched

LATE, BLOCKS, INCOMPLETE = "job_checkpoint_late", "job_save_blocks", "job_checkpoint_incomplete"


def watched(**settings: float) -> Watched:
    return Watched(job_checkpoint, "job:slurm/8123", **settings)


def test_what_it_must_hold_is_what_the_library_can_tell() -> None:
    assert job_checkpoint.Settings().parts == PARTS


def test_older_than_ten_minutes_is_late() -> None:
    job = watched()
    assert job.standing(0.0, job_saved_seconds=600.0) == []
    found = job.see(1.0, job_saved_seconds=601.0)[LATE]
    assert (found.stands, found.severity, found.blame) == (True, "info", "program")
    assert job.standing(5.0, job_saved_seconds=2.0) == []


@pytest.mark.parametrize(("every", "grave_from"), [(300.0, 1800.0), (600.0, 1800.0), (3600.0, 10800.0)])
def test_a_warning_is_measured_by_its_own_pace(every: float, grave_from: float) -> None:
    job = watched()
    for number in range(4):
        job.see(number * every, job_saved_seconds=1.0)
    last = 3 * every
    assert job.see(last + grave_from - 1, job_saved_seconds=grave_from)[LATE].severity == "info"
    grave = job.see(last + grave_from, job_saved_seconds=grave_from + 1)[LATE]
    assert (grave.severity, grave.advice) == ("degraded", "watch")


def test_until_some_were_seen_an_hourly_job_is_believed() -> None:
    job = watched()
    assert job.see(0.0, job_saved_seconds=10800.0)[LATE].severity == "info"
    assert job.see(1.0, job_saved_seconds=10801.0)[LATE].severity == "degraded"


def test_looks_at_one_checkpoint_change_no_memory() -> None:
    job = watched()
    job.see(0.0, job_saved_seconds=0.5)
    before = job.memory
    for mono in (30.0, 61.7, 300.0):
        job.see(mono, job_saved_seconds=mono + 0.4 + mono % 3)
    assert job.memory is before


def test_a_save_that_holds_up_the_loop_is_told() -> None:
    job = watched()
    assert job.standing(0.0, job_save_blocked_seconds=30.0) == []
    assert job.standing(1.0, job_save_blocked_seconds=30.1) == [BLOCKS]
    assert job.standing(2.0, job_save_blocked_seconds=0.0) == []


def test_so_is_one_that_takes_a_share_of_the_time() -> None:
    job = watched()
    job.see(0.0, job_saved_seconds=0.0)
    assert job.standing(300.0, job_saved_seconds=0.0, job_save_blocked_seconds=15.0) == []
    assert job.standing(301.0, job_saved_seconds=1.0, job_save_blocked_seconds=16.0) == [BLOCKS]
    often = watched()
    often.see(0.0, job_saved_seconds=0.0)
    assert often.standing(10.0, job_saved_seconds=0.0, job_save_blocked_seconds=1.9) == []  # somebody tries it out


def test_what_is_missing_is_named() -> None:
    found = watched().see(0.0, job_save_holds="optimizer model")[INCOMPLETE]
    assert found.stands
    assert "loader seeds" in found.reason
    assert watched().standing(0.0, job_save_holds="seeds loader optimizer model sampler") == []


def test_a_job_that_is_over_needs_no_checkpoint() -> None:
    job = watched()
    job.see(0.0, job_saved_seconds=900.0, job_save_blocked_seconds=99.0, job_save_holds="model")
    over = job.see(1.0, job_saved_seconds=901.0, job_ended=1)
    assert {code: finding.stands for code, finding in over.items()} == {LATE: False, BLOCKS: False, INCOMPLETE: False}


def test_of_what_is_not_known_nothing_is_said() -> None:
    for values in (
        {}, {"job_saved_seconds": None}, {"job_save_holds": ""}, {"job_save_holds": None}, {"job_saved_seconds": -1.0},
    ):  # fmt: skip
        assert watched().see(0.0, **values) == {}


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"times": 0.5}, {"share": 0.0}):
        with pytest.raises(ValueError, match="times must be"):
            watched(**wrong)


def test_the_first_checkpoints_of_a_job_are_no_pace_yet() -> None:
    job = watched()
    for at in (0.0, 60.0):
        job.see(at, job_saved_seconds=0.0)
    assert job.see(3660.0, job_saved_seconds=3600.0)[LATE].severity == "info", "it tried to save, and saves every hour"


def test_of_checkpoints_that_come_seldomer_the_longest_time_counts() -> None:
    job = watched()
    for at in (0.0, 60.0, 180.0, 1200.0, 1260.0):
        job.see(at, job_saved_seconds=0.0)
    assert job.see(3900.0, job_saved_seconds=2640.0)[LATE].severity == "info", "only the best are saved"
    assert job.see(4400.0, job_saved_seconds=3140.0)[LATE].severity == "degraded"
