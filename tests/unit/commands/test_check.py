"""`check`: words, exit codes and modes, from a cache and by a look of its own."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from gpuguard import cli
from gpuguard.model.health import Snapshot
from gpuguard.runtime.cache import Cache
from gpuguard.store.lock import AgentLock
from tests.support.snapshots import full


class Node:
    """A state directory with the cache of an agent that seems to run."""

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        self.folder = folder
        self.lock = AgentLock(folder)
        Cache(str(folder)).write(msgspec.json.encode(snapshot))


@pytest.fixture
def unfit(tmp_path: Path) -> Node:
    return Node(tmp_path, full())


@pytest.fixture
def fine(tmp_path: Path) -> Node:
    clean = msgspec.structs.replace(full(), level=0, confirmed=False, line="nothing stands", subjects=())
    return Node(tmp_path, clean)


def check(node: Node, *options: str) -> int:
    return cli.run(["check", "--state-dir", str(node.folder), *options])


def test_critical_in_words_and_code(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(unfit) == 2
    first, *details = capsys.readouterr().out.splitlines()
    assert first == "CRITICAL: CRITICAL"
    assert any("fell off the bus" in row for row in details)
    assert all(len(row) <= 80 for row in details)


@pytest.mark.parametrize(("mode", "code"), [("people", 2), ("prolog", 2), ("epilog", 2), ("health", 0)])
def test_a_confirmed_critical_by_mode(unfit: Node, mode: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(unfit, "--mode", mode) == code
    if mode != "people":
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("mode", ["prolog", "epilog", "health"])
def test_doubt_never_keeps_a_job_away(
    tmp_path: Path, level: int, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, msgspec.structs.replace(full(), level=level, confirmed=False, line="doubt"))
    assert check(node, "--mode", mode) == 0
    assert "doubt" in capsys.readouterr().err
    assert check(node) == level


@pytest.mark.parametrize("mode", ["prolog", "epilog"])
def test_an_unconfirmed_critical_never_keeps_a_job_away(tmp_path: Path, mode: str) -> None:
    assert check(Node(tmp_path, msgspec.structs.replace(full(), confirmed=False)), "--mode", mode) == 0


def test_json_is_json_and_nothing_else(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(unfit, "--json") == 2
    out = json.loads(capsys.readouterr().out)
    assert (out["status"], out["code"], out["from"], out["confirmed"]) == ("CRITICAL", 2, "cache", True)
    assert out["subjects"][0]["findings"][0]["check"] == "fault_codes"


def test_nagios_is_one_line_with_performance(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(unfit, "--format", "nagios") == 2
    out = capsys.readouterr().out
    assert out == "GPUGUARD CRITICAL: CRITICAL | healthy=0 watched=0 unfit=1 returning=0\n"


def test_prom_is_for_the_textfile_collector(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    check(unfit, "--format", "prom")
    out = capsys.readouterr().out
    assert "gpuguard_check_status 2\n" in out
    assert 'gpuguard_check_subjects{state="unfit"} 1\n' in out


def test_names_limit_the_answer(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(unfit, "log_loss") == 0
    assert check(unfit, "fault_codes") == 2
    assert "gpu:0000:4e:00.0 xid 79" in capsys.readouterr().out


def test_a_name_that_is_no_check_is_a_usage_error_that_lists_them(
    unfit: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(unfit, "fault_code") == 64
    assert "fault_codes" in capsys.readouterr().err
    assert cli.softened(["check", "fault_code", "--mode", "prolog"], 64) == 0


def test_nothing_wrong_is_ok(fine: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(fine) == 0
    assert capsys.readouterr().out == "OK: nothing stands\n"


def test_an_agent_without_sign_of_life_is_unknown(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(unfit.folder / "snapshot.json", (1e9, 1e9))
    assert check(unfit) == 3
    assert "gpuguard status" in capsys.readouterr().out
    assert check(unfit, "--mode", "prolog") == 0


def test_a_cache_of_another_version_is_unknown(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    Cache(str(unfit.folder)).write(b'{"level": 9, "subjects": []}')
    assert check(unfit) == 3
    assert "restart the agent" in capsys.readouterr().out


def test_a_configuration_that_cannot_be_read_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("[agent\n")
    assert cli.run(["check", "--config", str(tmp_path / "c.toml")]) == 3
    assert "correct the file" in " ".join(capsys.readouterr().out.split())


def test_the_state_directory_comes_from_the_configuration(unfit: Node) -> None:
    config = unfit.folder / "c.toml"
    config.write_text(f'[agent]\nstate_dir = "{unfit.folder}"\n')
    assert cli.run(["check", "--config", str(config)]) == 2


def test_without_an_agent_it_looks_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kmsg").write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    options = ["check", "--root", str(root), "--state-dir", str(tmp_path / "none"), "--json"]
    code = cli.run(options)
    out = json.loads(capsys.readouterr().out)
    assert out["from"] == "look"
    assert [s["id"] for s in out["subjects"] if s["state"] != "healthy"] == ["gpu:0000:3b:00.0"]
    assert code == out["code"] != 0


def test_a_machine_that_cannot_be_read_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "--root", str(tmp_path), "--state-dir", str(tmp_path / "none")]) == 3
    assert "kmsg" in capsys.readouterr().out
