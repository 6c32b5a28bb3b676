"""docs/simulate.md shows what the command says, and leaves out nothing that it prints or can be asked."""

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguard import cli
from gpuguard.commands import simulate
from gpuguard.scheduler.request import Job, Wish

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "docs/simulate.md").read_text()
EXAMPLES = re.findall(r"^\$ gpuguard (simulate .*)\n((?:.*\n)*?)```$", TEXT, flags=re.MULTILINE)
Said = Callable[[str], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    monkeypatch.chdir(CHECKOUT)

    def call(command: str) -> str:
        assert cli.run(shlex.split(command)) == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command[-30:] for command, _ in EXAMPLES])
def test_the_worked_examples(said: Said, command: str, shown: str) -> None:
    """Up to what the run cost, which is another each time."""
    start, _, rest = shown.partition("...\n")
    assert rest == ""
    assert said(command).startswith(start)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


def test_each_figure_is_explained(said: Said) -> None:
    import json

    found: dict[str, Any] = json.loads(said(f"{EXAMPLES[0][0].partition(' --policy')[0]} --json"))
    names = {*found, *(f"placement.{key}" for key in found["placement"])} - {"placement", "fragmentation"}
    missing = [name for name in names if f"`{name}`" not in TEXT and f"`{name.partition('.')[2]}`" not in TEXT]
    assert missing == []


def test_each_option_and_policy_is_explained() -> None:
    parser = argparse.ArgumentParser()
    simulate.arguments(parser)
    options = [word for action in parser._actions for word in action.option_strings if word.startswith("--")]
    assert [word for word in options if word not in TEXT and word != "--help"] == []
    assert [name for name in simulate.POLICIES if f"`{name}`" not in TEXT] == []


def test_each_model_is_named() -> None:
    from gpuguard.simulator.shelf import MODELS

    rows = set(re.findall(r"^\| `(\w+)` \| ", TEXT, flags=re.MULTILINE))
    assert set(MODELS) - rows == set()


def test_each_field_of_a_job_that_is_named_is_one() -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith("| `tier`"))
    named = re.findall(r"`(\w+)`", row)
    assert named
    assert set(named) <= {*Job.__struct_fields__, *Wish.__struct_fields__}
