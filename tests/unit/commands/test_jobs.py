"""What `gpuguard jobs` answers beside its table, which tests/golden holds."""

import json
from collections.abc import Callable

import pytest

from gpuguard import cli
from gpuguard.model.health import Snapshot
from gpuguard.runtime import board
from tests.support import job_stories
from tests.support.job_stories import JOB, finding, gpus, job, snapshot
from tests.support.machines import machine

Shows = Callable[[Snapshot], None]


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> Shows:
    def show(taken: Snapshot) -> None:
        monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))

    return show


def ask(*options: str) -> int:
    return cli.run(["jobs", "--config", "/dev/null", *options])


@pytest.mark.parametrize(
    ("taken", "code"),
    [
        (job_stories.trains(), 0), (job_stories.idle(), 0), (job_stories.hung(), 1), (job_stories.leftovers(), 1),
        (job_stories.unattributed(), 2),
        (snapshot({**gpus(), **job(job_verdict="hung", job_confidence=0.3)}), 0),
        (snapshot({**gpus(), **job()}, (finding(f"job:{JOB}", "job_checkpoint_late", "old", "info"),)), 0),
        (snapshot({**gpus(), **job()}, (finding(f"job:{JOB}", "job_checkpoint_late", "old"),)), 1),
    ],
)  # fmt: skip
def test_the_exit_code_says_whether_a_look_is_needed(taken: Snapshot, code: int, shows: Shows) -> None:
    shows(taken)
    assert ask() == code


def test_one_job_alone(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(job_stories.leftovers())
    assert ask("--job", "slurm/2", "--memory") == 0
    out = capsys.readouterr().out
    assert "slurm/2" in out
    assert "801" in out
    assert not {"slurm/1", "miner", "4711"} & set(out.split())
    assert ask("--job", "8123\x1b") == 2
    assert capsys.readouterr().err.startswith("gpuguard jobs: no job '8123\\\\x1b' is known here; known are kubern")


def test_json_has_everything(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(job_stories.leftovers())
    ask("--json")
    facts = json.loads(capsys.readouterr().out)
    assert [one["job"] for one in facts["jobs"]][1:] == ["slurm/1", "slurm/2"]
    assert facts["jobs"][0]["ranks"][0]["readings"]["rank_step"] == 120_345
    assert (facts["gpus"][2]["orphans"], facts["gpus"][3]["strangers"]) == ("4711/880.5", "4712")
    assert facts["gpus"][6]["processes"][0]["readings"]["process_released_seconds"] == 40.0
    shows(job_stories.unattributed())
    ask("--json")
    assert json.loads(capsys.readouterr().out)["gpus"][0]["jobs"] is None


def test_a_node_of_which_nothing_is_known_is_a_refusal_with_a_next_step(
    shows: Shows, capsys: pytest.CaptureFixture[str]
) -> None:
    shows(snapshot({}))
    assert ask() == 2
    assert "gpuguard status" in capsys.readouterr().err


def test_a_recorded_machine_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["jobs", "--root", str(machine("l40sx4"))])
    out = capsys.readouterr().out
    assert code == 0
    assert "slurm/" in out
    assert max(map(len, out.splitlines())) <= 80


def test_what_cannot_be_watched_as_it_was_asked_for_is_told(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "/run/gpuguard/jobs.d/7.toml: pattern: needs the log that it recurs in"
    shows(snapshot({**gpus(), **job(), "node": {"watches_trouble": wrong, "watches_refused": 1}}))
    assert ask() == 0
    assert f"not watched as it was asked for: {wrong}" in " ".join(capsys.readouterr().out.split())
