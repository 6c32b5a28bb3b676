"""One verdict at a time, once it is sure, again and again."""

from typing import get_args

import pytest

from gpuguard.detectors import job_progress
from gpuguard.model.jobs import Verdict
from tests.support.watched import Watched

JOB = "job:slurm/8123"


def watched(**settings: float) -> Watched:
    return Watched(job_progress, JOB, **settings)


def test_every_verdict_has_a_name() -> None:
    assert set(job_progress.VERDICTS) == set(get_args(Verdict))
    assert {meaning.code for meaning in job_progress.VERDICTS.values()} == {f"job_{word}" for word in get_args(Verdict)}


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_each_stands_alone_and_is_never_critical(verdict: str) -> None:
    found = watched().see(0.0, job_verdict=verdict, job_confidence=0.6)
    assert [code for code, finding in found.items() if finding.stands] == [f"job_{verdict}"]
    assert {finding.severity for finding in found.values()} <= {"info", "degraded"}
    assert found[f"job_{verdict}"].reason


def test_it_waits_until_it_is_sure_and_then_does_not_flap() -> None:
    job = watched()
    assert job.standing(0.0, job_verdict="hung", job_confidence=0.59) == []
    assert job.standing(1.0, job_verdict="hung", job_confidence=0.6) == ["job_hung"]
    assert job.standing(2.0, job_verdict="hung", job_confidence=0.45) == ["job_hung"]
    assert job.standing(3.0, job_verdict="hung", job_confidence=0.44) == []
    assert job.standing(4.0, job_verdict="hung", job_confidence=0.5) == []


def test_a_job_that_went_on_and_hangs_again_is_told_again() -> None:
    job = watched()
    hung, well = {"job_verdict": "hung", "job_confidence": 0.9}, {"job_verdict": "", "job_confidence": 0.0}
    told = [job.standing(float(mono), **values) for mono, values in enumerate((hung, well, hung, well, hung))]
    assert told == [["job_hung"], [], ["job_hung"], [], ["job_hung"]]


def test_another_verdict_takes_its_place_only_when_it_is_sure() -> None:
    job = watched()
    job.see(0.0, job_verdict="hung", job_confidence=0.9)
    assert job.standing(1.0, job_verdict="straggler", job_confidence=0.5) == []
    assert job.standing(2.0, job_verdict="straggler", job_confidence=0.7) == ["job_straggler"]


def test_a_job_that_is_over_is_held_up_by_nothing() -> None:
    job = watched()
    job.see(0.0, job_verdict="hung", job_confidence=0.9)
    assert job.standing(1.0, job_verdict="hung", job_confidence=0.9, job_ended=1) == []
    assert len(job.see(2.0, job_ended=1)) == len(job_progress.VERDICTS)


@pytest.mark.parametrize(
    "values",
    [{}, {"job_verdict": None}, {"job_verdict": "hung"}, {"job_verdict": "hung", "job_confidence": None},
     {"job_verdict": "cursed", "job_confidence": 1.0}, {"job_verdict": 7, "job_confidence": 1.0},
     {"job_ended": None}, {"job_ended": 0}],
)  # fmt: skip
def test_of_what_is_not_known_nothing_is_said(values: dict[str, str | float | None]) -> None:
    assert watched().see(0.0, **values) == {}


def test_the_reason_says_where_and_for_how_long_and_what_next() -> None:
    reason = watched().see(
        0.0, job_verdict="straggler", job_confidence=0.8, job_why="rank 5 is 12 steps behind", job_culprit_rank=5,
        job_judged_rank=2, job_culprit_gpu="gpu:0000:b7:00.0", job_phase="step", job_progress_seconds=95.0,
        job_progress_limit_seconds=60.0, job_signals_for="behind by 12 steps; clocks low",
    )["job_straggler"].reason  # fmt: skip
    assert reason.startswith("rank 5 is 12 steps behind; on gpu:0000:b7:00.0; next: ")
    plain = watched().see(
        0.0, job_verdict="hung", job_confidence=0.8, job_judged_rank=2, job_phase="step", job_progress_seconds=95.0,
        job_progress_limit_seconds=60.0,
    )["job_hung"].reason  # fmt: skip
    assert plain.startswith("no rank gets on: rank 2 in step without progress for 95 s (its limit is 60 s); next: ")
    starved = watched().see(0.0, job_verdict="data_starved", job_confidence=0.8)["job_data_starved"].reason
    assert all(
        word in starved for word in ("num_workers", "pin_memory", "prefetch_factor=4", "persistent_workers=True")
    )


def test_what_a_job_says_of_itself_cannot_break_the_line() -> None:
    found = watched().see(
        0.0, job_verdict="hung", job_confidence=1.0, job_phase="x\n" * 400, job_why="\x1b" * 5000,
        job_signals_for="\u2028" * 5000, job_culprit_gpu="g" * 900,
    )  # fmt: skip
    assert found["job_hung"].reason.isprintable()
    assert len(found["job_hung"].reason) < 1000


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"sure": 0.3}, {"kept": 0.0}, {"sure": 1.2}):
        with pytest.raises(ValueError, match="sure"):
            watched(**wrong)
