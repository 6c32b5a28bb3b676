"""The front door: what it does with what people type, and with our own crashes."""

import subprocess
import sys

import pytest

from gpuguard import cli


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
