"""What `gpuguard jobs` and `gpuguard hang` show at 80 columns, for one story each, names that mean harm among them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.child import stacks
from gpuguard.model.health import Snapshot
from gpuguard.runtime import board
from tests.support.job_stories import STORIES, hung, two_nodes

FOLDER = Path(__file__).parent / "job_commands"
COMMANDS = (["jobs"], ["jobs", "--memory"], ["hang"])
STACKS = """\
Process 41203: python3 train.py --config llama-70b.yaml
Python v3.12.3 (/opt/train/bin/python3.12)

Thread 41203 (idle): "MainThread"
    acquire (train/cache.py:61)
    lookup (train/cache.py:88)
    __getitem__ (train/dataset.py:140)
    next_batch (train/loader.py:52)
    main (train.py:118)
"""

Golden = Callable[[Path, str], None]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_is_shown(
    story: Callable[[], Snapshot], golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = story()
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (taken, "agent"))
    monkeypatch.setattr("socket.gethostname", lambda: "n07.example.org")
    text = f"# {story.__doc__}\n"
    for command in COMMANDS:
        code = cli.run([*command, "--config", "/dev/null"])
        text += f"\n$ gpuguard {' '.join(command)}\n{capsys.readouterr().out}[exit {code}]\n"
        assert cli.run([*command, "--config", "/dev/null", "--json"]) == code
        json.loads(capsys.readouterr().out)
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert max(map(len, text.splitlines())) <= 80
    golden(FOLDER / f"{story.__name__}.txt", text)


def test_what_two_nodes_say_together(
    tmp_path: Path, golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hang").mkdir()
    for node, taken in two_nodes().items():
        monkeypatch.setattr(board, "measured", lambda parts, taken=taken, **rest: (taken, "agent"))
        monkeypatch.setattr("socket.gethostname", lambda node=node: f"{node}.example.org")
        assert cli.run(["hang", "--config", "/dev/null", "--json"]) == 1
        Path("hang", f"{node}.json").write_text(capsys.readouterr().out)
    text = f"# {two_nodes.__doc__}\n"
    for trouble in ("", "n09.json"):
        if trouble:
            Path("hang", trouble).touch()
            text += f"\n# The same, and a file to which a node wrote nothing: {trouble}\n"
        code = cli.run(["hang", "--merge", "hang"])
        text += f"\n$ gpuguard hang --merge hang\n{capsys.readouterr().out}[exit {code}]\n"
    assert max(map(len, text.splitlines())) <= 80
    golden(FOLDER / "two_nodes.txt", text)


def test_stacks_of_the_rank_that_holds_it_up(
    golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "measured", lambda parts, **rest: (hung(), "agent"))
    monkeypatch.setattr("socket.gethostname", lambda: "n07.example.org")
    monkeypatch.setattr(stacks, "stacks", lambda pid, within: STACKS)
    code = cli.run(["hang", "--config", "/dev/null", "--stacks"])
    told = capsys.readouterr()
    shown = told.out[told.out.index("\nstacks of") :]
    golden(FOLDER / "stacks.txt", f"# After the table.\n\n$ gpuguard hang --stacks\n{told.err}{shown}[exit {code}]\n")


@pytest.mark.parametrize(
    ("page", "story", "command"),
    [
        ("hangs", "hung", "hang"), ("hangs", "untold", "hang"), ("hangs", "two_nodes", "hang --merge hang"),
        ("hangs", "stacks", "hang --stacks"), ("jobs", "leftovers", "jobs --memory"),
    ],
)  # fmt: skip
def test_the_docs_show_what_is_shown(page: str, story: str, command: str) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    shown = (FOLDER / f"{story}.txt").read_text().partition(f"$ gpuguard {command}\n")[2].partition("[exit")[0]
    assert f"```\n$ gpuguard {command}\n{shown}```\n" in (docs / f"{page}.md").read_text()
