"""What `gpuguard hang` answers beside its page, which tests/golden holds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.commands import hang
from gpuguard.model.health import Snapshot
from gpuguard.runtime import board
from tests.support import job_stories
from tests.support.job_stories import JOB, gpus, job, rank, snapshot
from tests.support.machines import machine

Shows = Callable[[Snapshot], None]


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> Shows:
    def show(taken: Snapshot) -> None:
        monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))

    return show


def ask(*options: str) -> int:
    return cli.run(["hang", "--config", "/dev/null", *options])


def with_ranks(*rows: job_stories.Rows, **concluded: object) -> Snapshot:
    found = {**gpus(), **job(**concluded)}
    for row in rows:
        found |= row
    return snapshot(found)


@pytest.mark.parametrize(
    ("taken", "code"),
    [
        (job_stories.trains(), 0), (job_stories.hung(), 1), (job_stories.untold(), 2), (job_stories.idle(), 0),
        (job_stories.unattributed(), 2), (with_ranks(job_verdict="hung", job_confidence=0.3), 0),
        (with_ranks(job_verdict="paused", job_confidence=0.9), 1),
    ],
)  # fmt: skip
def test_the_exit_code_is_the_answer(taken: Snapshot, code: int, shows: Shows) -> None:
    shows(taken)
    assert ask() == code


BAR_AT = hang.HEAD.index("0  ")


def test_a_bar_is_as_long_as_the_silence_against_its_limit(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    silences = (0.0, 1.0, 19.0, 38.0, 40.0, 57.0, 76.0, 1e6)
    shows(with_ranks(*(rank(number, silent=silent) for number, silent in enumerate(silences))))
    ask()
    shown = {line[:BAR_AT].split()[0]: line[BAR_AT:] for line in capsys.readouterr().out.splitlines() if "/38s" in line}
    assert [shown[str(number)] for number in range(8)] == [
        "       |", "=      |", "====   |", "=======|", "=======|!", "=======|!!!!", "=======|!!!!!!!",
        "=======|!!!!!!+",
    ]  # fmt: skip


def test_what_cannot_be_said_of_a_rank_is_a_question_mark_and_no_bar(
    shows: Shows, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        **rank(0, rank_limit_seconds=None), **rank(1, rank_gone=1), **rank(2, rank_done=1),
        **rank(3, rank_pid=None, rank_gpu=None, rank_behind_steps=None),
    }  # fmt: skip
    shows(with_ranks(rows))
    assert ask() == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line[:6].strip().isdecimal()}
    assert "|" not in lines["0"]
    assert "1s/?" in lines["0"]
    assert "gone" in lines["1"]
    assert "done" in lines["2"]
    assert lines["3"].split()[1:4] == ["?", "120345", "?"]


def test_ranks_that_stand_well_are_counted_not_shown(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(*(rank(number, silent=float(number % 30)) for number in range(100))))
    ask()
    out = capsys.readouterr().out
    assert "and 68 ranks that stand better; --json has all" in out
    assert "rank 29, for 29 s of the 38 s" in out


def test_a_rank_beyond_its_limit_without_a_verdict_is_not_hushed_up(
    shows: Shows, capsys: pytest.CaptureFixture[str]
) -> None:
    shows(with_ranks(rank(0, silent=41.0)))
    assert ask() == 0
    assert "rank 0 has shown no progress for 41 s, more than its limit of 38 s" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_job_on_two_nodes_is_judged_by_both(
    shows: Shows, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = with_ranks(
        *(rank(8 + number, silent=93.0) for number in range(8)), job_verdict="waiting", job_confidence=0.9,
        job_why="its ranks here wait for one elsewhere",
    )  # fmt: skip
    for name, taken in (("n07", job_stories.hung()), ("n08", waiting)):
        shows(taken)
        monkeypatch.setattr("socket.gethostname", lambda name=name: f"{name}.example.org")
        assert ask("--json") == 1
        (tmp_path / f"{name}.json").write_text(capsys.readouterr().out)
    assert cli.run(["hang", "--merge", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "16 of 16 ranks on 2 nodes" in out
    assert "culprit     rank 3, pid 41203, GPU 3, node n07" in out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith(">")] == [[">", "3", "n07"]]
    assert max(map(len, out.splitlines())) <= 80
    assert cli.run(["hang", "--merge", str(tmp_path), "--json", "--job", "8123"]) == 1
    assert json.loads(capsys.readouterr().out)["jobs"][0]["culprit"] == ["n07", 3]
    assert cli.run(["hang", "--merge", str(tmp_path), "--job", "9"]) == 0
    assert cli.run(["hang", "--merge", str(tmp_path / "none")]) == 2


def test_a_node_whose_ranks_wait_says_where_to_look(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(rank(0, silent=93.0), job_verdict="waiting", job_confidence=0.9))
    assert ask("--job", JOB) == 1
    assert "culprit     what is seen here does not tell; `gpuguard hang --merge`" in capsys.readouterr().out


def test_a_recorded_machine_says_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["hang", "--root", str(machine("l40sx4"))])
    assert code in (0, 2)
    out = " ".join(capsys.readouterr().out.split())
    assert "docs/hangs.md" in out or "no job is here" in out
