"""What `gpuguard hang` answers beside its page, which tests/golden holds."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpuguard import cli
from gpuguard.child import stacks
from gpuguard.commands import hang
from gpuguard.errors import Absent, ReadFailed
from gpuguard.jobs.merge import Merged
from gpuguard.jobs.sights import JobSight, NodeSight, RankSight
from gpuguard.model.flight import FlightSummary, GroupFlight, Waiting
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
    for name, taken in job_stories.two_nodes().items():
        shows(taken)
        monkeypatch.setattr("socket.gethostname", lambda name=name: f"{name}.example.org")
        assert ask("--json", "--job", "8123") == 1
        (tmp_path / f"{name}.json").write_text(capsys.readouterr().out)
    assert cli.run(["hang", "--merge", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "16 of 16 ranks on 2 nodes" in out
    assert "culprit     rank 11, pid 41211, GPU 3, node n08" in out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith(">")] == [[">", "11", "n08"]]
    assert max(map(len, out.splitlines())) <= 80
    assert cli.run(["hang", "--merge", str(tmp_path), "--json", "--job", "8123"]) == 1
    told = msgspec.json.decode(capsys.readouterr().out, type=Merged)
    assert [(job.job, job.verdict, job.rank, job.node) for job in told.jobs] == [(JOB, "hung", 11, "n08")]
    assert len(told.jobs[0].ranks) == 16
    assert cli.run(["hang", "--merge", str(tmp_path), "--job", "9"]) == 2
    assert "no job '9' is known here; known are slurm/8123" in capsys.readouterr().err
    assert cli.run(["hang", "--merge", str(tmp_path / "none")]) == 2
    assert "gpuguard hang --json > NODE.json" in capsys.readouterr().err


def sight(node: str = "n07", *, at: float = 1.7e9, ranks: tuple[RankSight, ...] = (), **more: object) -> NodeSight:
    known: dict[str, object] = {"job": JOB, "ranks": ranks, **more}
    return NodeSight(node=node, at=at, jobs=(JobSight(**known),))  # type: ignore[arg-type]


def together(folder: Path, *sights: NodeSight, more: tuple[str, ...] = ()) -> int:
    for number, one in enumerate(sights):
        (folder / f"{number}.json").write_bytes(msgspec.json.encode(one))
    return cli.run(["hang", "--merge", str(folder), *more])


def overdue(number: int, **more: object) -> RankSight:
    return RankSight(number=number, silent=90.0, limit=30.0, step=7, **more)  # type: ignore[arg-type]


def test_a_node_that_is_late_or_wrote_nonsense_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        (tmp_path / f"x{number:02}.json").write_text("\x1b[2J")
    late = sight("n08", at=1.7e9 - 900.0, ranks=(overdue(1, gone=True),), world=2)
    assert together(tmp_path, sight(ranks=(overdue(0),), world=2), late) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line[:12].strip() for line in lines if line[:12].strip() in ("not read", "stale", "unheard")] == [
        "not read", "stale", "unheard",
    ]  # fmt: skip
    assert "x07.json" in out
    assert "x08.json" not in out
    assert "and 4 more; --json has all" in out
    assert "culprit     most likely on node n08, of which there is no word" in out
    assert "nothing is known of rank 1" in out


def test_ranks_of_which_nobody_told_are_named_also_where_nothing_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = tuple(RankSight(number=number, silent=1.0, limit=30.0) for number in range(2))
    assert together(tmp_path, sight(ranks=fine, world=4)) == 0
    out = capsys.readouterr().out
    assert "missing     nobody told of ranks 2-3" in out
    assert "no hang: no rank is over its limit; longest without progress is rank 0" in " ".join(out.split())


def test_ranks_that_are_waited_for_are_no_culprits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saves = RankSight(number=1, silent=90.0, limit=1800.0, phase="checkpoint", pid=7)
    assert together(tmp_path, sight(ranks=(overdue(0), saves))) == 1
    out = capsys.readouterr().out
    assert "waiting for rank 1, pid 7, node n07" in out
    assert "culprit" not in out


def test_several_ranks_that_hold_a_job_up_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = tuple(overdue(number, gone=number in (1, 2)) for number in range(4))
    assert together(tmp_path, sight(ranks=ranks)) == 1
    assert "culprit     rank 1, node n07; the first of ranks 1-2" in capsys.readouterr().out


EXTREME = (0, -(2**63), 2**63 - 1)


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("seconds", [0.0, -1e308, 1e308, 5e-324])
def test_files_that_were_tampered_with_do_no_harm(
    value: int, seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = job_stories.HOSTILE * 50
    waits = Waiting(number=value, call="send 0->" + "9" * 5000, state="started", shape=text, where=text, p2p=True)
    dump = FlightSummary(groups=(GroupFlight(name=text, about=text, ranks="0-3", enqueued=value, waiting=waits),))
    ranks = tuple(
        RankSight(
            number=number, host=text, pid=value, step=value, behind=value, phase=text, silent=seconds, limit=limit,
            state=text, still=seconds, gpu=text, called=text, activity=seconds, pattern=text, words=text,
            waits_in=text, flight=dump, flight_age=seconds, gone=number == 3,
        )
        for number, limit in ((0, 5e-324), (1, 1e308), (2, -1.0), (3, 0.0), (value, 1.0), (value, None))
    )  # fmt: skip
    job = JobSight(
        job=text, name=text, user=text, world=value, gpus=("9" * 9999, text), activity=seconds, silent=seconds,
        verdict="hung", confidence=seconds, rank=value, gpu=text, why=text, speaks_for=(text,) * 99,
        against=(text,) * 99, ranks=ranks,
    )  # fmt: skip
    bare = JobSight(job="slurm/" + text, gpus=job.gpus, activity=seconds)
    files = (NodeSight(node=text, at=seconds, jobs=(job, bare)), NodeSight(node="n08", at=1.0, jobs=(job,)))
    assert together(tmp_path, *files) in (0, 1, 2)
    out = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("\n") < 400
    assert together(tmp_path, *files[:1]) in (0, 1, 2)
    assert together(tmp_path, *files, more=("--json",)) in (0, 1, 2)


# --- stacks ----------------------------------------------------------------------------------------------------------


def looks(monkeypatch: pytest.MonkeyPatch, answer: str | Exception) -> list[int]:
    """py-spy says this of every process; the processes it was asked of."""
    asked: list[int] = []

    def look(pid: int, within: float) -> str:
        asked.append(pid)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(stacks, "stacks", look)
    return asked


def test_stacks_are_those_of_the_culprit(
    shows: Shows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = looks(monkeypatch, "Thread 1 (idle)\n    wait \x1b[2J (a.py:1)\n" + "x\n" * 200)
    shows(job_stories.hung())
    assert ask("--stacks") == 1
    told = capsys.readouterr()
    assert asked == [41203]
    assert told.err == "looking at rank 3, pid 41203, for 10 s at most ...\n"
    assert "\nstacks of rank 3, pid 41203\n  Thread 1 (idle)\n      wait \\x1b[2J (a.py:1)\n" in told.out
    assert "and 102 lines more" in told.out


@pytest.mark.parametrize(
    ("error", "count", "words"),
    [(ReadFailed("py-spy may not look"), 3, "rank 0: py-spy may not look"),
     (Absent("not installed"), 1, "no stacks: not installed")],
)  # fmt: skip
def test_stacks_that_cannot_be_had_are_a_line(
    error: Exception, count: int, words: str, shows: Shows, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No rank is named: it is asked of the worst three, and no more where py-spy is not there."""
    asked = looks(monkeypatch, error)
    shows(job_stories.two_nodes()["n07"])
    assert ask("--stacks") == 1
    assert len(asked) == count
    assert words in capsys.readouterr().out


def test_without_a_verdict_or_a_process_nobody_is_looked_at(
    shows: Shows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = looks(monkeypatch, "")
    shows(job_stories.trains())
    assert ask("--stacks") == 0
    assert "no stacks: no process here holds a job up" in capsys.readouterr().out
    told = {"job_verdict": "hung", "job_confidence": 0.9}
    shows(with_ranks(rank(0, rank_gone=1), rank(1, rank_pid=None), rank(2, rank_done=1), **told))
    assert ask("--stacks") == 1
    out = capsys.readouterr().out
    assert "rank 0: its process has ended" in out
    assert "rank 1: its process is not known" in out
    assert "rank 2: its" not in out
    assert asked == []


@pytest.mark.parametrize("more", [["--json"], ["--merge", "."], ["--root", "/tmp"]])
def test_stacks_are_of_this_machine_and_for_people(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--stacks", *more) == 64
    assert "--stacks looks at processes of this machine" in capsys.readouterr().err


def test_a_node_whose_ranks_wait_says_where_to_look(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(rank(0, silent=93.0), job_verdict="waiting", job_confidence=0.9))
    assert ask("--job", JOB) == 1
    assert "culprit     what is seen here does not tell; `gpuguard hang --merge`" in capsys.readouterr().out


def test_a_recorded_machine_says_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["hang", "--root", str(machine("l40sx4"))])
    assert code in (0, 2)
    out = " ".join(capsys.readouterr().out.split())
    assert "docs/hangs.md" in out or "no job is here" in out


def test_a_job_that_is_over_is_not_said_to_be_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = tuple(RankSight(number=number, silent=700.0, done=True) for number in range(4))
    assert together(tmp_path, sight(ranks=done)) == 0
    assert "it is over: 4 ranks ended, all of them with done()" in " ".join(capsys.readouterr().out.split())


def test_what_speaks_against_a_hang_is_told_where_a_rank_is_silent_for_long(
    shows: Shows, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = rank(0, step=5, silent=90.0)
    shows(with_ranks(silent, job_signals_against="no process of the job is seen here"))
    assert ask() == 0
    out = capsys.readouterr().out
    assert "other signals speak against one" in out
    assert "against     no process of the job is seen here" in out
    shows(with_ranks(rank(0, step=5), job_signals_against="no process of the job is seen here"))
    assert ask() == 0
    assert "against  " not in capsys.readouterr().out, "nothing speaks for a hang either"


def test_a_job_whose_ranks_are_gone_is_over(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(rank(0, rank_done=1), rank(1, rank_gone=1), job_world=2))
    ask()
    words = " ".join(capsys.readouterr().out.split())
    assert f"it is over: 2 ranks ended, 1 of them without done(); `gpuguard why {JOB}` tells what is known" in words


def test_one_rank_is_no_ranks(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(rank(0), job_world=None))
    ask()
    assert "1 ranks" not in capsys.readouterr().out


def test_a_dump_that_could_not_be_read_is_told(shows: Shows, capsys: pytest.CaptureFixture[str]) -> None:
    shows(with_ranks(rank(0, flight_problem="it takes more memory than is allowed"), rank(1)))
    assert ask() == 0
    assert "not read    dump of rank 0: it takes more memory than is allowed" in capsys.readouterr().out
