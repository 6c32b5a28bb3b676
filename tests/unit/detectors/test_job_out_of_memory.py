"""One owner's job of one name, again and again."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gpuguard.detectors.job_out_of_memory import ENDS_KEPT, JobOutOfMemory, Memory, Settings
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, Values
from tests.support.core import instant

DAY = 86400.0


class Jobs:
    """The jobs of a node, looked at again and again."""

    def __init__(self) -> None:
        self.check = JobOutOfMemory(Settings())
        self.memory: Memory = self.check.start()

    def standing(self, mono: float, jobs: Mapping[str, Values]) -> list[str]:
        rows = {
            SubjectId(f"job:{name}"): Row(
                subject=SubjectId(f"job:{name}"), at=instant(mono), source="slurm", values=values
            )
            for name, values in jobs.items()
        }
        memory = msgspec.msgpack.decode(msgspec.msgpack.encode(self.memory), type=Memory)
        assert memory == self.memory
        self.memory, findings = self.check.survey(self.memory, rows)
        assert self.check.survey(self.memory, rows) == (self.memory, findings)  # the same twice
        assert {finding.subject for finding in findings} <= set(rows)
        assert all(finding.severity == "info" and finding.blame == "program" for finding in findings)
        return sorted(finding.subject.removeprefix("job:") for finding in findings if finding.stands)


def job(name: str = "embed", user: str = "ana", oom: int | None = 1, **more: Any) -> Values:  # Any: values of a row
    return {"job_name": name, "job_user": user, "job_out_of_memory": oom, **more}


def test_the_third_within_a_day_is_told_on_it_and_on_the_next_try() -> None:
    jobs = Jobs()
    assert jobs.standing(0.0, {"slurm/1": job()}) == []
    assert jobs.standing(60.0, {"slurm/1": job(), "slurm/2": job()}) == []
    assert jobs.standing(120.0, {"slurm/3": job()}) == ["slurm/3"]
    assert jobs.standing(180.0, {"slurm/4": job(oom=0), "slurm/9": job("other", oom=0)}) == ["slurm/4"]


def test_a_look_is_no_end() -> None:
    jobs = Jobs()
    for mono in range(10):
        assert jobs.standing(float(mono), {"slurm/1": job()}) == []


def test_a_day_later_they_are_forgotten_and_not_counted_anew() -> None:
    jobs = Jobs()
    lingering: dict[str, Values] = {f"kubernetes/{n}": job("embed-abcd" + str(n)) for n in range(3)}
    assert len(jobs.standing(0.0, lingering)) == 3
    for mono in (DAY + 1, 2 * DAY + 2, 3 * DAY + 3):
        assert jobs.standing(mono, lingering) == []
    assert jobs.standing(3 * DAY + 4, {"slurm/9": job("x", oom=0)}) == []
    assert jobs.memory == Memory()


def test_another_owner_or_name_is_another_job() -> None:
    jobs = Jobs()
    different: dict[str, Values] = {"slurm/1": job(), "slurm/2": job(user="ben"), "slurm/3": job("train")}
    assert jobs.standing(0.0, different) == []


def test_a_requeue_into_it_is_one_more() -> None:
    jobs = Jobs()
    told = [jobs.standing(float(n), {"slurm/5": job(job_restarts=n)}) for n in range(3)]
    assert told == [[], [], ["slurm/5"]]


def test_pods_of_one_job_are_the_same_and_other_names_are_not_cut() -> None:
    jobs = Jobs()
    pods: dict[str, Values] = {f"kubernetes/{n}": job(f"embed-{n}xk2p") for n in range(3)}
    assert len(jobs.standing(0.0, pods)) == 3
    jobs = Jobs()
    steps: dict[str, Values] = {f"slurm/{n}": job(f"embed-{n}xk2p") for n in range(3)}
    assert jobs.standing(0.0, steps) == []


def test_of_what_is_not_known_nothing_is_counted() -> None:
    jobs = Jobs()
    unknown: dict[str, Values] = {
        **{f"slurm/{n}": {"job_user": "ana", "job_out_of_memory": 1} for n in range(4)},
        **{f"slurm/1{n}": job(oom=None) for n in range(4)},
    }
    assert jobs.standing(0.0, unknown) == []
    assert jobs.memory == Memory()
    assert jobs.standing(1.0, {}) == []


def test_whatever_a_script_submits_the_memory_is_bounded() -> None:
    jobs = Jobs()
    for n in range(40):
        jobs.standing(float(n), {f"slurm/{n}-{m}": job(f"x{n}\n" * 999, job_restarts=2**70) for m in range(20)})
    assert len(jobs.memory.ends) == ENDS_KEPT
    assert len(msgspec.msgpack.encode(jobs.memory)) < 100_000


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="times"):
        Settings(times=1)
