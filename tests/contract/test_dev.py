"""The script `./dev` says what to do next on a machine that lacks something."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHONS = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without an environment, in a folder with a blank; programs in `bin` come before the machine's."""
    folder = tmp_path / "a folder"
    (folder / "bin").mkdir(parents=True)
    for name in ("dev", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, folder)
    return folder


def _program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _dev(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{folder / 'bin'}:{os.defpath}:/usr/sbin:/sbin", "HOME": ""}
    return subprocess.run(
        ["sh", str(folder / "dev"), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
    )


def test_help_needs_nothing(bare: Path) -> None:
    done = _dev(bare)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("run", "test", "check", "bench"):
        assert f"\n  {command}" in done.stdout
    assert not (bare / ".venv").exists()


def test_an_unknown_command_is_a_usage_error(bare: Path) -> None:
    done = _dev(bare, "tset")
    assert (done.returncode, done.stdout) == (64, "")
    assert "./dev COMMAND" in done.stderr


def test_an_old_python_is_told_what_is_needed(bare: Path) -> None:
    for name in PYTHONS:
        _program(bare, name, "exit 1")
    done = _dev(bare, "check")
    assert done.returncode == 2
    assert "Python 3.11 or newer" in done.stderr


def test_without_root_the_missing_package_is_named(bare: Path) -> None:
    _program(bare, "id", "echo 1000")
    _program(bare, "python3", 'case "$*" in *ensurepip*) exit 1 ;; *"version_info[:2]"*) echo 3.12 ;; esac')
    done = _dev(bare, "check")
    assert done.returncode == 2
    assert "sudo apt-get install python3.12-venv" in done.stderr


def test_without_root_the_services_are_named(bare: Path) -> None:
    _program(bare, "id", "echo 1000")
    _program(bare, "dpkg-query", "exit 1")
    done = _dev(bare, "test", "--install")
    assert done.returncode == 2
    assert "sudo apt-get install slurm-wlm" in done.stderr


def test_what_ci_runs_is_what_people_run() -> None:
    script = (CHECKOUT / ".ci" / "run").read_text()
    assert [line for line in script.splitlines() if line.startswith("./dev")] == ["./dev check", "./dev test --install"]
    for path in ("dev", ".ci/run"):
        assert os.access(CHECKOUT / path, os.X_OK)
