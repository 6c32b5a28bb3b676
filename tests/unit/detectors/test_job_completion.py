"""An end is well when it is proven to be."""

import pytest

from gpuguard.detectors import job_completion
from gpuguard.model.findings import Finding
from gpuguard.model.readings import Value
from tests.support.watched import Watched

JOB = "job:slurm/8123"
LATER = 1000.0  # long after the end


def ended(telling: int = 0, done: int = 0, **how: Value) -> dict[str, Finding]:
    """What stands long after the end of a job that was seen to live."""
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1, job_ranks_telling=telling, job_ranks_done=0)
    job.see(60.0, job_alive=0, job_ranks_telling=telling, job_ranks_done=done, **how)
    return {code: f for code, f in job.see(LATER, job_alive=0, **how).items() if f.stands}


def test_a_job_whose_ranks_said_so_is_complete() -> None:
    assert ended(8, 8, job_exit_code=0, job_state="COMPLETED") == {}


def test_one_that_never_used_the_library_need_not_prove_anything() -> None:
    assert ended(job_exit_code=0) == {}
    assert ended() == {}


def test_exit_code_zero_without_a_word_is_suspicious() -> None:
    (found,) = ended(8, 7, job_exit_code=0, job_state="COMPLETED").values()
    assert (found.code, found.severity, found.blame) == ("job_unproven", "info", "program")
    assert "with exit code 0, and 1 of 8 ranks here" in found.reason
    assert "how is not known" in ended(8, 7)["job_unproven"].reason


def test_a_site_may_have_it_a_warning() -> None:
    job = Watched(job_completion, JOB, warn_unproven=True)
    job.see(0.0, job_alive=1, job_ranks_telling=1, job_ranks_done=0)
    job.see(1.0, job_alive=0, job_exit_code=0)
    found = job.see(40.0, job_alive=0, job_exit_code=0)["job_unproven"]
    assert (found.stands, found.severity, found.advice) == (True, "degraded", "watch")


def test_the_last_word_may_come_after_the_end() -> None:
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1, job_ranks_telling=2, job_ranks_done=0)
    assert job.standing(10.0, job_alive=0, job_exit_code=0, job_ranks_telling=2, job_ranks_done=1) == []
    assert job.standing(39.0, job_alive=0, job_exit_code=0, job_ranks_telling=2, job_ranks_done=2) == []
    assert job.standing(LATER, job_alive=0, job_exit_code=0) == []


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"job_exit_code": 1}, "exit code 1 (mostly"), ({"job_exit_code": 137}, "exit code 137 (SIGKILL"),
        ({"job_exit_code": 139}, "(SIGSEGV"), ({"job_exit_code": 134}, "(SIGABRT"),
        ({"job_exit_code": 135}, "/dev/shm"),
        ({"job_exit_code": 0, "job_exit_signal": 9}, "signal 9 (SIGKILL"), ({"job_exit_code": 3}, "exit code 3"),
        ({"job_exit_code": 128 + 50}, "(signal 50)"), ({"job_exit_code": 255}, "exit code 255"),
        ({"job_state": "FAILED"}, "not known"),
    ],
)  # fmt: skip
def test_any_other_end_is_a_failure(how: dict[str, Value], words: str) -> None:
    (found,) = ended(8, 8, **how).values()
    assert found.code == "job_failed"
    assert words in found.reason


def test_want_of_memory_is_told_apart() -> None:
    assert list(ended(job_out_of_memory=1, job_exit_code=1)) == ["job_failed_memory"]
    assert list(ended(job_state="OUT_OF_MEMORY", job_exit_code=0)) == ["job_failed_memory"]


@pytest.mark.parametrize("state", [*job_completion.STOPPED, "CANCELLED by 1000", "CANCELLED+", "cancelled"])
def test_what_the_scheduler_did_is_no_fault_of_the_program(state: str) -> None:
    (found,) = ended(8, 0, job_state=state, job_exit_code=0, job_exit_signal=15).values()
    assert (found.code, found.blame, found.severity) == ("job_stopped", "unknown", "info")


def test_an_end_that_nobody_witnessed_is_not_judged() -> None:
    job = Watched(job_completion, JOB)
    assert job.see(0.0, job_alive=0, job_exit_code=1) == {}
    assert job.see(LATER, job_alive=0, job_exit_code=1) == {}


def test_one_that_is_started_anew_begins_anew() -> None:
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1, job_ranks_telling=8, job_ranks_done=8)
    assert job.standing(60.0, job_alive=0, job_exit_code=1) == ["job_failed"]
    assert job.standing(90.0, job_alive=1, job_restarts=1, job_ranks_telling=8, job_ranks_done=0) == []
    assert job.standing(120.0, job_alive=0, job_exit_code=0) == []
    assert job.standing(LATER, job_alive=0, job_exit_code=0) == ["job_unproven"]


def test_a_restart_that_nobody_saw_end_and_a_smaller_world_count_anew() -> None:
    for change in ({"job_restarts": 1, "job_world": 8}, {"job_restarts": 0, "job_world": 4}):
        job = Watched(job_completion, JOB)
        job.see(0.0, job_alive=1, job_restarts=0, job_world=8, job_ranks_telling=8, job_ranks_done=0)
        job.see(1.0, job_alive=1, job_ranks_telling=4, job_ranks_done=4, **change)
        job.see(2.0, job_alive=0, job_exit_code=0)
        assert job.standing(LATER, job_alive=0, job_exit_code=0) == []


def test_a_job_of_no_scheduler_ends_when_its_ranks_do() -> None:
    job = Watched(job_completion, "job:claimed/1000-run7")
    assert job.standing(0.0, job_ended=0, job_ranks_telling=2, job_ranks_done=0) == []
    job.see(10.0, job_ended=1, job_ranks_telling=2, job_ranks_done=1)
    assert job.standing(LATER, job_ended=1) == ["job_unproven"]


def test_how_it_ended_stays_known() -> None:
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1)
    job.see(1.0, job_alive=0, job_exit_code=1)
    assert job.standing(2.0, job_alive=0, job_exit_code=None) == ["job_failed"]


def test_of_what_is_not_known_nothing_is_said() -> None:
    for values in ({}, {"job_alive": None}, {"job_alive": None, "job_exit_code": 1}, {"job_alive": 3}):
        assert Watched(job_completion, JOB).see(0.0, **values) == {}


def test_ranks_that_saved_when_told_to_end_have_proven_that() -> None:
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1, job_ranks_telling=8)
    job.see(5.0, job_alive=1, job_ranks_telling=8, job_ranks_obeyed=8)
    found = job.see(10.0, job_alive=0, job_exit_code=0)
    assert found["job_stopped"].stands
    assert "saved" in found["job_stopped"].reason
    assert job.standing(100.0, job_alive=0, job_exit_code=0) == ["job_stopped"]


def test_where_only_some_obeyed_it_is_not_proven() -> None:
    job = Watched(job_completion, JOB)
    job.see(0.0, job_alive=1, job_ranks_telling=8, job_ranks_obeyed=7)
    job.see(10.0, job_alive=0, job_exit_code=0)
    assert job.standing(100.0, job_alive=0, job_exit_code=0) == ["job_unproven"]
