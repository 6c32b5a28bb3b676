"""The worked case in docs/topology.md is what the tool says of that machine."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from gpuguard.commands import topo
from gpuguard.model.topology import Difference
from gpuguard.runtime.words import page
from tests.support.wirings import graph, l40sx8

TEXT = (Path(__file__).resolve().parents[2] / "docs/topology.md").read_text()


def shown(command: str) -> str:
    """What stands below a command in the page."""
    found = re.search(rf"^\$ {re.escape(command)}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, command
    return found[1]


def said(lines: Iterable[str]) -> str:
    return page(lines)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_job_across_the_sockets() -> None:
    assert shown("gpuguard topo --between 0,7") == said(topo._between(graph(l40sx8()), ("GPU0", "GPU7")))


def test_the_choice_of_those_that_are_free() -> None:
    free = ("GPU0", "GPU3", "GPU6", "GPU7")
    assert shown("gpuguard topo --best 2 --free 0,3,6,7") == said(topo._best(graph(l40sx8()), 2, free))


def test_every_kind_of_difference_is_explained() -> None:
    kinds = get_args(get_type_hints(Difference)["kind"])
    assert [kind for kind in kinds if f"`{kind}`" not in TEXT] == []
