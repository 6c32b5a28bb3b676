"""`agent` on a recorded machine: whose memory and whose configuration it takes."""

from pathlib import Path

import pytest

from gpuguard import cli
from gpuguard.runtime import config
from tests.support.machines import machine


def test_a_recorded_machine_wants_a_memory_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["agent", "--root", str(machine("l40sx4")), "--once"]) == 64
    assert "--state-dir" in capsys.readouterr().err


def test_a_recorded_machine_is_not_under_this_nodes_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("this is no configuration")
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "config.toml")
    place = ["--root", str(machine("l40sx4")), "--state-dir", str(tmp_path / "state")]
    assert cli.run(["agent", *place, "--once"]) == 0
    assert cli.run(["agent", *place, "--once", "--config", str(tmp_path / "config.toml")]) != 0
