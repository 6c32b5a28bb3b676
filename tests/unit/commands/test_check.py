"""`check`: words, exit codes and modes, from a cache and by a look of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gpuguard import cli
from gpuguard.model.health import Snapshot
from gpuguard.runtime.cache import Cache
from gpuguard.runtime.clock import read_boot_id
from gpuguard.store.lock import AgentLock
from tests.support.incidents import Machine, lost_gpu
from tests.support.require import require
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
    assert "gpu:0000:4e:00.0 xid79" in capsys.readouterr().out


def test_a_name_that_is_no_check_is_a_usage_error_that_lists_them(
    unfit: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(unfit, "fault_code") == 64
    assert "fault_codes" in capsys.readouterr().err
    assert cli.softened(["check", "fault_code", "--mode", "prolog"], 64) == 0


def test_nothing_wrong_is_ok(fine: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(fine) == 0
    assert capsys.readouterr().out == "OK: nothing stands\n"


class Hung:
    """A node whose agent hangs since long ago, with a memory, and a syslog file with nothing in it."""

    def __init__(self, folder: Path, *, lost: bool) -> None:
        self.machine = Machine(folder, mode="observe")
        self.machine.stop()
        self.machine.clock.reboot(str(read_boot_id()))  # what was before this boot would count for less
        self.machine.start()
        self.machine.publish()
        if lost:
            lost_gpu(self.machine)
        self.silent_for(1e6)
        (folder / "kern.log").write_text(
            "Nov 29 10:00:00 node7 kernel: [    1.000000] usb 1-1: a line of no interest\n"
        )
        self.config = folder / "check.toml"
        self.config.write_text(f'[agent]\nsources = ["logfile"]\n[sources.logfile]\npaths = ["{folder}/kern.log"]\n')

    def silent_for(self, seconds: float) -> None:
        then = time.time() - seconds
        os.utime(self.machine.state_dir / "snapshot.json", (then, then))

    def check(self, *options: str) -> int:
        return cli.run(["check", "--state-dir", str(self.machine.state_dir), "--config", str(self.config), *options])


def test_an_agent_without_sign_of_life_hides_no_critical(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it last published says that nothing stands; its memory on disk knows better."""
    node = Hung(tmp_path, lost=True)
    assert node.check() == 2
    out = capsys.readouterr().out
    assert out.startswith("CRITICAL: c1:00.0 unfit (xid79")
    assert "no sign of life for 1000000 s; see `gpuguard status`" in " ".join(out.split())
    assert node.check("--mode", "prolog") == 2
    assert node.check("log_loss") == 3, "of another check nobody knows"


@pytest.mark.parametrize("ago", [101.0, 1e6, -101.0, -1e6])
def test_an_agent_without_sign_of_life_is_unknown_when_nothing_else_is(
    tmp_path: Path, ago: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by a file whose time is far ahead: the clock was set back."""
    node = Hung(tmp_path, lost=False)
    node.silent_for(ago)
    assert node.check() == 3
    assert "no sign of life" in capsys.readouterr().out
    assert node.check("--mode", "prolog") == 0
    node.machine.stop()
    assert node.check() == 0, "an agent that is not there is no doubt"


# As another user, what `check` says about that node.
AS_NOBODY = """
import contextlib, io, os, sys
from gpuguard import cli
with contextlib.redirect_stdout(io.StringIO()):
    cli.run([*sys.argv[1:], "--fresh"])  # everything is loaded: nobody may not be allowed into the checkout
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(("age", "code", "words"), [(0.0, 0, "OK"), (1e6, 3, "may not read its memory")])
def test_another_user_is_answered_from_the_fresh_snapshot_alone(
    tmp_path: Path, age: float, code: int, words: str
) -> None:
    require("root", os.geteuid() == 0, "only root can look through another user's eyes")
    node = Hung(tmp_path, lost=False)
    node.silent_for(age)
    for folder in (node.machine.state_dir, *node.machine.state_dir.parents):
        if "pytest-" in str(folder):
            folder.chmod(0o755)
    options = ["check", "--state-dir", str(node.machine.state_dir), "--config", str(node.config)]
    told = subprocess.run([sys.executable, "-c", AS_NOBODY, *options], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (code, "")
    assert words in " ".join(told.stdout.split())


@pytest.mark.parametrize(
    "broken",
    [
        {"level": float("inf")}, {"level": -1}, {"level": 4}, {"subjects": 5}, {"subjects": [{}]},
        {"subjects": [{"id": "gpu:x", "state": "unfit", "remedy": None, "uuid": None, "findings": [{"code": "x"}]}]},
    ],
)  # fmt: skip
def test_a_cache_that_is_not_all_there_is_unknown(
    unfit: Node, broken: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads(msgspec.json.encode(full()))
    Cache(str(unfit.folder)).write(json.dumps({**whole, **broken}).encode())
    assert check(unfit) == 3
    assert "restart the agent" in " ".join(capsys.readouterr().out.split())


def test_a_cache_of_another_version_is_unknown(unfit: Node, capsys: pytest.CaptureFixture[str]) -> None:
    Cache(str(unfit.folder)).write(b'{"level": 9, "subjects": []}')
    assert check(unfit) == 3
    assert "restart the agent" in capsys.readouterr().out


def test_a_configuration_that_cannot_be_read_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text("[agent\n")
    assert cli.run(["check", "--config", str(tmp_path / "c.toml")]) == 3
    assert "correct the file" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 20_000, "far too many; correct the file"),
        ('[agent]\nstate_dir = "/var/\\u0000"\n', "state_dir: is not a path"),
        ("[agent]\nstate_dir = 5\n", "state_dir: is not a path"),
        ("", "no regular file"),
    ],
)
def test_a_configuration_that_is_a_trap_is_unknown(
    tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    if text:
        path.write_text(text)
    else:
        os.mkfifo(path)
    assert cli.run(["check", "--config", str(path)]) == 3
    assert words in " ".join(capsys.readouterr().out.split())
    assert cli.run(["check", "--config", str(path), "--mode", "prolog"]) == 0


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


def test_why_is_named_only_where_there_is_a_memory(
    unfit: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "`gpuguard why` tells the whole story"
    check(unfit)
    assert hint in capsys.readouterr().out
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kmsg").write_text("4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    options = ["check", "--root", str(root), "--state-dir"]
    cli.run([*options, str(tmp_path / "none")])
    out = capsys.readouterr().out
    assert "xid 79" in out.replace("xid79", "xid 79")
    assert hint not in out
    machine = Machine(tmp_path, mode="observe")
    machine.stop()
    cli.run([*options, str(machine.state_dir)])
    assert hint in capsys.readouterr().out


def test_this_machines_memory_says_nothing_of_a_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Machine(tmp_path)
    lost_gpu(here)
    here.stop()
    monkeypatch.setattr("gpuguard.commands.check.STATE_DIR", str(here.state_dir))
    monkeypatch.setattr("gpuguard.commands.check.CONFIG", str(tmp_path / "none.toml"))
    root = tmp_path / "root"
    (root / "dev").mkdir(parents=True)
    (root / "dev/kmsg").write_text("4,1,1000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06\n")
    cli.run(["check", "--root", str(root), "--json"])
    assert json.loads(capsys.readouterr().out)["subjects"] == []
    cli.run(["check", "--root", str(root), "--state-dir", str(here.state_dir), "--json"])
    assert json.loads(capsys.readouterr().out)["subjects"] != []


def test_a_machine_that_cannot_be_read_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "--root", str(tmp_path), "--state-dir", str(tmp_path / "none")]) == 3
    assert "kmsg" in capsys.readouterr().out


def held(folder: Path, *, dry_run: bool = False) -> Node:
    """An unfit node whose drain the fleet's budget holds."""
    snapshot = full()
    assert snapshot.drain is not None
    message = "not drained: 5 nodes began a drain within 10 min and 5 may, of 1250: a person is to decide"
    drain = msgspec.structs.replace(snapshot.drain, state="held", message=message, dry_run=dry_run)
    return Node(folder, msgspec.structs.replace(snapshot, drain=drain))


@pytest.mark.parametrize("mode", ["prolog", "epilog", "health"])
def test_while_the_fleets_budget_holds_its_drain_no_hook_drains_the_node(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(held(tmp_path), "--mode", mode) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    if mode != "health":
        assert err.startswith("gpuguard check: jobs may come all the same, not drained: 5 nodes began a drain")
    assert "CRITICAL" in err


def test_people_are_told_the_verdict_whatever_holds_the_drain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = held(tmp_path)
    assert check(node) == 2
    assert check(node, "--format", "nagios") == 2
    capsys.readouterr()
    assert check(node, "--json") == 2
    assert json.loads(capsys.readouterr().out)["held"].startswith("not drained: 5 nodes")


def test_what_was_only_noted_holds_nothing(tmp_path: Path) -> None:
    assert check(held(tmp_path, dry_run=True), "--mode", "prolog") == 2
