"""Selftest with the real agent behind it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuguard.commands import selftest
from gpuguard.runtime.rehearsal import Rehearsal


def test_every_link_of_the_chain_works() -> None:
    lines = list(selftest.rehearse())
    assert [line.name for line in lines] == [
        "rehearsal", "event and verdict", "owed action", "outcome", "metrics", "why",
    ]  # fmt: skip
    assert all(line.result == "OK" and line.seconds is not None for line in lines), lines


class BusFirst(Rehearsal):
    """The bus tells of the loss before the kernel's log does."""

    def say(self, records: Sequence[str]) -> None:
        """The records stand in the log once the other witness was heard."""
        assert self.wait_for("verdict", after=0, within=20.0, finding="gpu_silent", state="watched") is not None
        super().say(records)


def test_whichever_witness_speaks_first_the_chain_is_whole(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder, BusFirst("h100x8", Path(folder)) as rehearsal:
        lines = list(selftest._chain(rehearsal, selftest._Watch()))
    assert [line.result for line in lines] == ["OK"] * 5, lines
    assert "watched -> unfit" in lines[0].message


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
