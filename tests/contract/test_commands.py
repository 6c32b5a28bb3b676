"""Each sub-command holds to the shelf's shape; its help is true, and fits a terminal of 80 columns."""

import argparse
import contextlib
import io
import shlex
from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.commands import COMMANDS, module_of

FOLDER = Path(cli.__file__).parent / "commands"
NAMES = sorted(COMMANDS)


def _called(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.run(list(argv))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else -1
    return code, out.getvalue(), err.getvalue()


def test_the_index_is_the_folder() -> None:
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py") if not path.stem.startswith("_")}
    assert files == set(COMMANDS)


def test_the_listing_names_each_command() -> None:
    code, out, _ = _called("--help")
    assert code == 0
    for name, purpose in COMMANDS.items():
        assert f"  {name}" in out
        assert purpose in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    module = module_of(name)
    assert module.__doc__
    code, out, err = _called(name, "--help")
    assert (code, err) == (0, "")
    assert module.EXAMPLE in out
    assert out.startswith(f"usage: gpuguard {name}")
    assert " ".join(module.__doc__.split()) in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_a_command_line_that_it_understands(name: str) -> None:
    module = module_of(name)
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    module.arguments(parser)
    words = shlex.split(module.EXAMPLE)
    place = words.index("gpuguard")
    assert words[place + 1] == name
    rest = words[place + 2 :]
    for mark in ("|", ">", "&&"):
        rest = rest[: rest.index(mark)] if mark in rest else rest
    parser.parse_args(rest)


@pytest.mark.parametrize("name", NAMES)
def test_a_typing_error_is_64_and_names_the_next_step(name: str) -> None:
    code, out, err = _called(name, "--no-such-option-at-all")
    assert (code, out) == (64, "")
    assert f"gpuguard {name} --help" in err
