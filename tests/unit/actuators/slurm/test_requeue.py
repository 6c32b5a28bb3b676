"""A hung job is put back into the queue once, and only if it is this node's, runs, and may be."""

import time
from pathlib import Path

import pytest

from gpuguard.actuators import slurm
from gpuguard.actuators.slurm.jobs import complaint
from gpuguard.child.program import Answer
from gpuguard.errors import ActionDeferred, ActionRefused
from tests.support.fake_scontrol import FakeScontrol
from tests.support.wishes import requeue


@pytest.fixture
def fake(tmp_path: Path) -> FakeScontrol:
    return FakeScontrol(tmp_path)


def here(fake: FakeScontrol) -> slurm.Slurm:
    return slurm.build(slurm.Settings(scontrol=str(fake.path), node=fake.node))


def test_a_job_that_runs_here_is_requeued(fake: FakeScontrol) -> None:
    fake.put_job("8123")
    outcome = here(fake).perform(requeue())
    assert (outcome.result, outcome.node_state) == ("done", "RUNNING")
    assert "Slurm started it anew already: Restarts=1" in outcome.message
    assert fake.writes == ["requeue 8123"]


@pytest.mark.parametrize(
    ("fields", "result", "words"),
    [
        ({"Requeue": "0"}, "refused", "--requeue"),
        ({"BatchFlag": "0"}, "refused", "interactive"),
        ({"NodeList": "n[1-4]"}, "foreign", "not on here"),
        ({"Restarts": "1"}, "done", "already"),
        ({"JobState": "PENDING", "NodeList": ""}, "done", "PENDING"),
        ({"JobState": "COMPLETING"}, "done", "COMPLETING"),
        ({"JobState": "FAILED"}, "done", "FAILED"),
        ({"JobState": "HOVERING"}, "deferred", "does not know"),
    ],
)
def test_what_hinders_it_writes_nothing(fields: dict[str, str], result: str, words: str, fake: FakeScontrol) -> None:
    fake.put_job("8123", **fields)
    outcome = here(fake).perform(requeue())
    assert outcome.result == result
    assert words in outcome.message
    assert fake.writes == []


def test_a_job_that_is_gone_needs_nothing(fake: FakeScontrol) -> None:
    assert here(fake).perform(requeue()).result == "done"
    assert fake.writes == []


def test_without_the_count_that_makes_it_harmless_nothing_is_asked(fake: FakeScontrol) -> None:
    fake.put_job("8123")
    assert here(fake).perform(requeue(restarts=None)).result == "refused"
    assert fake.calls == []


def test_a_task_of_an_array_is_named_as_one(fake: FakeScontrol) -> None:
    fake.put_job("8123")
    (record,) = fake.folder.glob("job_8123")
    task = record.read_text().replace("JobId=8123 ", "JobId=8123 ArrayJobId=8123 ArrayTaskId=3 ")
    record.write_text(task)
    (fake.folder / "job_8123_3").write_text(task)
    outcome = here(fake).perform(requeue())
    assert outcome.result == "done"
    assert fake.writes == ["requeue 8123_3"], "the bare number is that of the whole array"


def test_slurm_that_takes_it_and_does_nothing_is_asked_again(fake: FakeScontrol) -> None:
    fake.put_job("8123")
    fake.trap("requeue", "exit 0")
    outcome = here(fake).perform(requeue())
    assert (outcome.result, outcome.node_state) == ("deferred", "RUNNING")


def test_somebody_who_was_quicker_is_no_trouble(fake: FakeScontrol) -> None:
    fake.put_job("8123")
    fake.trap("requeue", "sed -i 's/Restarts=0/Restarts=1/; s/=RUNNING/=PENDING/' job_8123")
    outcome = here(fake).perform(requeue())
    assert (outcome.result, "already" in outcome.message) == ("done", True)


def test_whether_a_job_runs_here(fake: FakeScontrol) -> None:
    fake.put_job("1")
    fake.put_job("2", JobState="COMPLETED")
    fake.put_job("3", NodeList="elsewhere")
    fake.put_job("4", JobState="HOVERING")
    until = time.monotonic() + 30
    assert [here(fake).runs_here(number, until) for number in "12345"] == [True, False, False, None, False]
    fake.trap("show", "exit 1")
    assert here(fake).runs_here("1", until) is None


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Job is pending execution for job 1", None),
        ("Invalid job id specified for job 1", None),
        ("Requested operation is presently disabled for job 1", ActionRefused),
        ("Only batch jobs are accepted or processed for job 1", ActionRefused),
        ("Access/permission denied for job 1", ActionRefused),
        ("Unable to contact slurm controller (connect failure)", ActionDeferred),
    ],
)
def test_complaints(said: str, kind: type[Exception] | None) -> None:
    error = complaint(Answer(1, "", said), "1")
    assert error is None if kind is None else type(error) is kind
