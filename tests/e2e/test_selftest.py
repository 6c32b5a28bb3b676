"""Selftest with the real agent behind it."""

import json
import subprocess
import sys
from pathlib import Path

from gpuguard.commands import selftest


def test_every_link_of_the_chain_works() -> None:
    lines = list(selftest.rehearse())
    assert [line.name for line in lines] == [
        "rehearsal", "event and verdict", "owed action", "outcome", "metrics", "why",
    ]  # fmt: skip
    assert all(line.result == "OK" and line.seconds is not None for line in lines), lines


def test_the_exit_code_is_that_of_the_worst_line(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[agent]\nstate_dir = "{tmp_path / "none"}"\n')
    answer = subprocess.run(
        [sys.executable, "-m", "gpuguard.cli", "selftest", "--json", "--config", str(config)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert answer.returncode == 2, answer.stderr
    assert [row["result"] for row in rows if row["name"] == "memory"] == ["FAIL"]
    assert list(rows[0]) == ["name", "result", "message", "next_step", "seconds"]


def test_a_wrong_configuration_is_one_of_its_findings(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[agent]\nstate_dri = 1\n")
    answer = subprocess.run(
        [sys.executable, "-m", "gpuguard.cli", "selftest", "--json", "--config", str(config)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.returncode == 2
    assert "state_dri" in answer.stdout
