"""What `gpuguard jobs` and `gpuguard hang` show at 80 columns, for one story each, names that mean harm among them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.model.health import Snapshot
from gpuguard.runtime import board
from tests.support.job_stories import STORIES

FOLDER = Path(__file__).parent / "job_commands"
COMMANDS = (["jobs"], ["jobs", "--memory"], ["hang"])

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


@pytest.mark.parametrize(
    ("page", "story", "command"),
    [("hangs", "hung", "hang"), ("hangs", "untold", "hang"), ("jobs", "leftovers", "jobs --memory")],
)
def test_the_docs_show_what_is_shown(page: str, story: str, command: str) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    shown = (FOLDER / f"{story}.txt").read_text().partition(f"$ gpuguard {command}\n")[2].partition("[exit")[0]
    assert f"```\n$ gpuguard {command}\n{shown}```\n" in (docs / f"{page}.md").read_text()
