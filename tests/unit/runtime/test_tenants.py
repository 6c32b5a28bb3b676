"""Who is on the GPUs: what nobody told is never taken for nobody."""

import pytest

from gpuguard.errors import NotUnderstood
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Values
from gpuguard.runtime.tenants import asked, is_sure, sentence, silence, steps, tenants
from tests.support import job_stories
from tests.support.job_stories import JOB, PCI, finding, gpus, job, process, rank, snapshot


def test_a_job_has_its_ranks_processes_gpus_and_findings() -> None:
    found = tenants(job_stories.hung())
    (one,) = found.jobs
    assert (one.id, one.verdict, one.is_known) == (JOB, "hung", True)
    assert [r.number for r in one.ranks] == list(range(8))
    assert one.ranks[3].task["task_state"] == "S"
    assert [gpu.index for name in one.gpus if (gpu := found.gpu(name))] == list(range(8))
    assert [f.code for f in one.findings] == ["job_hung"]


def test_a_job_of_which_only_its_ranks_are_known_is_there() -> None:
    (one,) = tenants(snapshot(rank(0, "claimed/1000-x"))).jobs
    assert (one.id, one.gpus, one.is_known) == ("claimed/1000-x", (), True)


def test_findings_of_a_job_are_not_those_of_one_whose_name_begins_alike() -> None:
    rows = {**job("slurm/1"), **job("slurm/12")}
    told = (finding("job:slurm/12", "job_hung", "x"), finding("rank:slurm/1/0", "job_hung", "y"))
    found = tenants(snapshot(rows, told))
    assert [(j.id, [f.reason for f in j.findings]) for j in found.jobs] == [("slurm/1", ["y"]), ("slurm/12", ["x"])]


def test_whose_a_gpu_is_may_be_nobodys_or_unknown() -> None:
    rows = {**gpus("", count=1), **gpus(None, count=3), **gpus("", count=1)}
    assert [gpu.jobs for gpu in tenants(snapshot(rows)).gpus] == [(), None, None]
    assert tenants(snapshot({})).gpus == ()


def test_a_job_that_is_over_is_here_only_while_it_holds_memory() -> None:
    over = job("slurm/1", job_ended=1, job_gpus="")
    assert tenants(snapshot(over)).jobs == ()
    assert [j.id for j in tenants(snapshot({**over, **gpus("slurm/1", count=1)})).jobs] == ["slurm/1"]


def test_strange_rows_are_nobodys() -> None:
    rows: dict[str, Values] = {
        "process:nowhere": {"process_name": "x"}, f"process:{PCI[0]}/\u0663": {"process_name": "x"},
        f"process:{PCI[0]}/-1": {"process_name": "x"}, "rank:x/\u00b2": {"rank_pid": 1}, "rank:": {"rank_pid": 1},
        **gpus("", count=1), **process(0, 7),
    }  # fmt: skip
    found = tenants(snapshot(rows))
    assert [p.pid for p in found.gpus[0].processes] == [7]
    assert found.jobs == ()
    assert found.gpu(SubjectId("gpu:none")) is None


def test_a_job_is_meant_by_its_name_or_its_keepers_part() -> None:
    found = tenants(snapshot({**job("slurm/1"), **job("docker/1"), **job("slurm/2")}))
    assert [j.id for j in asked(found, "1")] == ["docker/1", "slurm/1"]
    assert [j.id for j in asked(found, "slurm/2")] == ["slurm/2"]
    assert len(asked(found, None)) == 3
    with pytest.raises(NotUnderstood, match=r"no job '3' is known here; known are docker/1, slurm/1, slurm/2"):
        asked(found, "3")


def test_words_of_a_table() -> None:
    assert [steps(count) for count in (None, -1, 9_999_999, 2**62)] == ["-", "-1", "9999999", "4.61e+18"]
    assert silence({"rank_progress_seconds": 3.0}, "rank_progress") == "3s/?"
    assert silence({}, "job_progress") == "?"
    assert sentence({"job_verdict": "data_starved", "job_confidence": 0.3}) == "perhaps DATA STARVED (30 % sure)"
    assert sentence({"job_verdict": "hung", "job_why": "rank 3 sleeps"}) == "HUNG: rank 3 sleeps"
    assert is_sure({})
