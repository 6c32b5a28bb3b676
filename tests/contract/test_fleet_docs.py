"""docs/fleet-simulation.md shows what the command says, and leaves out nothing that it prints."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from gpuguard import cli
from gpuguard.commands import simulate
from gpuguard.simulator.fleet.causes import Sight
from gpuguard.simulator.fleet.faults import Recipe
from gpuguard.simulator.fleet.noise import RATES
from gpuguard.simulator.fleet.policies import DEFAULT, POLICIES

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = (CHECKOUT / "docs/fleet-simulation.md").read_text()
(COMMAND, SHOWN), *_ = re.findall(r"^\$ gpuguard (simulate fleet .*)\n((?:.*\n)*?)```$", TEXT, flags=re.MULTILINE)
Said = Callable[[str], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(command: str) -> str:
        assert cli.run(shlex.split(command)) == 0
        return capsys.readouterr().out

    return call


def test_the_worked_example(said: Said) -> None:
    """Up to what the run cost, which is another each time."""
    start, _, rest = SHOWN.partition("...\n")
    assert rest == ""
    printed = said(COMMAND)
    assert printed.startswith(start)
    assert max(map(len, printed.splitlines())) <= 80


def test_each_figure_is_explained(said: Said) -> None:
    found = json.loads(said("simulate fleet --node-days 20 --json"))
    names = {*found, *found["detection_s"], *found["probation"], *found["doubtful"]} - {"faults"}
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_policies_and_numbers_are_those_of_the_code() -> None:
    assert (*POLICIES,) == simulate.FLEET_POLICIES
    assert DEFAULT == simulate.DEFAULT
    assert [name for name in POLICIES if f"`{name}`" not in TEXT] == []
    assert [word for word in get_args(Sight) if f"| {word} |" not in TEXT] == []
    recipe = Recipe()
    words = TEXT.replace("\n", " ")
    for said in (
        f"{recipe.rate:g} in 1,000 node-days", f"leads to {recipe.again:g} more", f"mean of {recipe.soon:g} days",
        f"One day in {recipe.common_days:g} hits {100 * recipe.common_low:g} to {100 * recipe.common_high:g} %",
        f"{RATES['burst']:g} bursts", f"{RATES['slow_call']:g} NVML calls over 5 s", f"{RATES['flap']:g} links down",
        f"{RATES['crash']:g} crashes of the agent", f"default: {simulate.FLEET_NODE_DAYS:,}",
    ):  # fmt: skip
        assert said in words, said
