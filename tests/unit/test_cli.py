"""The front door: what it does with what people type, and with our own crashes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard import cli
from gpuguard.runtime.cache import Cache
from gpuguard.store.lock import AgentLock
from tests.support.snapshots import full


def outcome(*argv: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "gpuguard.cli", *argv], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_help_lists_every_command_at_80_columns() -> None:
    code, out, _ = outcome("--help")
    assert code == 0
    assert all(name in out for name in cli.COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


def test_no_command_at_all_is_a_usage_error() -> None:
    assert outcome()[0] == 64


def test_a_near_miss_is_told_what_was_meant() -> None:
    code, _, err = outcome("chekc")
    assert code == 64
    assert "gpuguard check" in err


@pytest.mark.parametrize(
    ("argv", "code", "softened"),
    [
        (["check", "--mode", "prolog"], 70, 0),
        (["check", "--mode=epilog", "--bogus"], 64, 0),
        (["check", "--mode", "health"], 70, 0),
        (["check", "--format", "nagios"], 70, 3),
        (["check", "--format=nagios"], 64, 3),
        (["check"], 64, 64),
        (["check", "--mode", "prolog"], 2, 2),
        (["check", "--mode", "prolog"], 3, 0),
        (["check", "--mode", "health"], 2, 0),
        (["check", "--mode=prolog", "--mode", "people"], 1, 1),
        (["check", "--format", "nagios"], 2, 2),
        (["scan", "--mode", "prolog"], 70, 70),
    ],
)
def test_what_a_hooks_mode_promises_holds_for_our_own_failures(argv: list[str], code: int, softened: int) -> None:
    assert cli.softened(argv, code) == softened


def test_a_crash_is_70_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(argv: list[str]) -> int:
        raise ZeroDivisionError("our own bug")

    monkeypatch.setattr(cli, "run", crash)
    monkeypatch.setattr(sys, "argv", ["gpuguard", "status"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert "support-bundle" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m gpuguard.cli xid list | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_check_starts_without_what_it_does_not_need() -> None:
    # Hooks start it on every job; each of these costs more than the rest of the start.
    program = (
        "import sys; from gpuguard import cli; "
        "import gpuguard.commands.check, gpuguard.runtime.cache; "
        "print([m for m in ('msgspec', 'structlog', 'prometheus_client', 'sqlite3', 'tomllib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- standard streams that cannot be written -------------------------------------------------------------------------


@pytest.fixture
def unfit(tmp_path: Path) -> Iterator[str]:
    """The state directory of a node that an agent found CRITICAL."""
    lock = AgentLock(tmp_path)
    Cache(str(tmp_path)).write(msgspec.json.encode(full()))
    yield str(tmp_path)
    lock.release()


def redirected(redirection: str, *argv: str) -> tuple[int, str]:
    """Exit code, and what stood on standard error where that was left alone."""
    line = [f'exec "$@" {redirection}', "sh", sys.executable, "-m", "gpuguard.cli", *argv]
    done = subprocess.run(["bash", "-c", *line], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


MODES = {"people": 2, "prolog": 2, "epilog": 2, "health": 0}
FORMATS = ("text", "nagios", "json", "prom")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2</dev/null"])
def test_nobody_to_complain_to_is_no_error(unfit: str, redirection: str, mode: str, format: str) -> None:
    line = ("check", "--state-dir", unfit, "--mode", mode, "--format", format)
    assert redirected(redirection, *line)[0] == MODES[mode]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_an_answer_that_cannot_be_written_is_unknown_but_a_hooks_code_stands(
    unfit: str, redirection: str, mode: str, format: str
) -> None:
    code, complaint = redirected(redirection, "check", "--state-dir", unfit, "--mode", mode, "--format", format)
    assert code == (3 if mode == "people" else MODES[mode])
    assert "crashed" not in complaint
    written = mode == "people" or format != "text"
    assert ("standard output cannot be written" in complaint) == written
    assert complaint.count("\n") == written + (mode != "people")


@pytest.mark.parametrize("redirection", [">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-"])
def test_nothing_can_be_written_at_all(unfit: str, redirection: str) -> None:
    assert redirected(redirection, "check", "--state-dir", unfit)[0] == 3
    assert redirected(redirection, "check", "--state-dir", unfit, "--mode", "prolog")[0] == 2
    assert redirected(redirection, "check", "--mode", "prolog", "--help")[0] == 0
    assert redirected(redirection, "xid", "list")[0] == 2


@pytest.mark.parametrize(
    ("redirection", "argv", "code", "words"),
    [
        ("2>&-", ["chekc"], 64, ""),
        ("2>/dev/full", ["xid", "explain", "many"], 64, ""),
        ("2>&-", ["xid", "explain", "79"], 0, ""),
        (">/dev/full", ["xid", "explain", "79"], 2, "standard output cannot be written: No space left on device"),
        (">&-", ["xid", "list"], 2, "standard output cannot be written: it is closed"),
        (">/dev/full", ["xid", "list"], 2, "standard output cannot be written"),
        (">/dev/full", ["--help"], 2, "standard output cannot be written"),
        (">&-", ["status", "--help"], 2, "standard output cannot be written"),
        (">/dev/full", ["check", "--help"], 3, "standard output cannot be written"),
    ],
)
def test_every_command_tells_of_its_output(redirection: str, argv: list[str], code: int, words: str) -> None:
    ended, complaint = redirected(redirection, *argv)
    assert ended == code
    assert words in complaint
    assert complaint.count("\n") == bool(words)


@pytest.mark.parametrize("option", ["--json", "--trust-user"])
def test_a_scan_does_not_blame_its_input_for_its_output(tmp_path: Path, option: str) -> None:
    log = tmp_path / "kern.log"
    log.write_text("[    5.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n" * 500)
    code, complaint = redirected(">/dev/full", "scan", str(log), option)
    assert code == 2
    assert complaint.startswith("gpuguard: standard output cannot be written")
    assert str(log) not in complaint


def test_a_hooks_code_stands_when_its_reader_goes_away(unfit: str) -> None:
    line = f"set -o pipefail; {sys.executable} -m gpuguard.cli check --state-dir {unfit} --json --mode prolog | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "gpuguard check: CRITICAL: CRITICAL\n"


def test_no_file_gets_the_number_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    """Else the memory itself could be what a stray print goes to."""
    program = (
        "import os, sys; from gpuguard import cli; cli._guard_streams(); "
        "open(sys.argv[1], 'w').write(str(os.open('/dev/null', os.O_RDONLY)))"
    )
    line = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program, str(tmp_path / "told")]
    assert subprocess.run(line, check=False).returncode == 0
    assert int((tmp_path / "told").read_text()) > 2


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_fills_paragraphs_and_keeps_what_is_indented() -> None:
    text = (
        "First line?\n\n"
        + "word " * 30
        + "\nend.\nMore `here`:\n\n    kept   as\n      it is\n\n"
        + "Exit codes  0 "
        + "done " * 20
        + "\n            2 refused\nExit code 0: fine.\n"
    )
    assert cli.refilled(text).splitlines() == [
        "First line?",
        "",
        " ".join(["word"] * 16),
        " ".join(["word"] * 14) + " end. More",
        "`here`:",
        "",
        "    kept   as",
        "      it is",
        "",
        "Exit codes  0 " + " ".join(["done"] * 13),
        " " * 12 + " ".join(["done"] * 7) + " 2 refused",
        "Exit code 0: fine.",
    ]


def test_a_terminal_obeys_no_error() -> None:
    """A file may be named so that its name, in an error, would clear the screen."""
    assert cli.printable("no file \x1b[2Jx.csv\nnext step") == "no file ?[2Jx.csv\nnext step"
