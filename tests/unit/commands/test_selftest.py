"""What selftest finds on a node that lacks this or that, and that its drill can never drain."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.actuators.dry_run import DryRun
from gpuguard.commands import selftest
from gpuguard.kernel_log.reader import parse_text
from gpuguard.model.ids import NODE
from gpuguard.ports import Actuator
from gpuguard.runtime.assembly import Parts, assemble
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.known import Known, look_up
from tests.support.incidents import Scheduler
from tests.support.machines import machine
from tests.support.serving import serving
from tests.support.stories import told


def parts(tmp_path: Path, text: str = "") -> Parts:
    config = tmp_path / "config.toml"
    socket = tmp_path / "no-actuator.sock"
    config.write_text(f'{text}\n[actuators.delegate]\nsocket = "{socket}"\n')
    return assemble(config, with_sources=False)


def known(folder: Path) -> Known:
    return look_up(folder, ManualClock(utc=1_760_000_000.0))


def results(lines: list[selftest.Line]) -> dict[str, str]:
    return {line.name: line.result for line in lines}


def test_a_fresh_node_is_told_what_to_do_next(tmp_path: Path) -> None:
    lines = list(selftest.node(parts(tmp_path), known(tmp_path / "none"), machine("h100x8")))
    found = results(lines)
    assert found["memory"] == "FAIL"
    assert found["agent"] == "WARN"
    assert found["actuator"] == "WARN"
    assert found["GPUs"] == "OK"
    assert all(line.next_step for line in lines if line.result != "OK")


def test_a_node_that_is_to_act_needs_its_actuator(tmp_path: Path) -> None:
    acting = parts(tmp_path, '[policy]\nmode = "drain"')
    assert results(list(selftest.node(acting, known(tmp_path), machine("h100x8"))))["actuator"] == "FAIL"


@pytest.mark.parametrize(
    ("name", "result", "words"),
    [("h100x8", "OK", "570.124.06 tells of 8 GPUs"), ("h100x8-lost", "WARN", "tells of 7 of 8 GPUs")],
)
def test_what_the_driver_tells_is_told(name: str, result: str, words: str, tmp_path: Path) -> None:
    whole = assemble(Path(os.devnull))
    (line,) = selftest.driver(whole, known(tmp_path), machine(name))
    assert (line.result, line.message) == (result, words)


def test_a_driver_that_does_not_answer_is_told_with_the_next_step(tmp_path: Path) -> None:
    shutil.copytree(machine("h100x8"), tmp_path / "root", ignore=shutil.ignore_patterns("nvml.json"))
    (line,) = selftest.driver(assemble(Path(os.devnull)), known(tmp_path), tmp_path / "root")
    assert line.result == "WARN"
    assert "libnvidia-ml.so.1" in line.next_step
    shutil.rmtree(tmp_path / "root/sys/bus/pci/devices")
    assert not list(selftest.driver(assemble(Path(os.devnull)), known(tmp_path), tmp_path / "root"))


SLURM = '[actuator]\ntarget = "slurm"'
ACTS = '[policy]\nmode = "drain"'


@pytest.fixture
def folder() -> Iterator[Path]:
    # A socket's path has 107 bytes at most, which pytest's own folders may exceed.
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as name:
        yield Path(name)


def deaf() -> Scheduler:
    scheduler = Scheduler()
    scheduler.error = "slurmctld does not answer"
    return scheduler


@pytest.mark.parametrize(
    ("text", "target", "result", "step"),
    [
        ("", DryRun(), "OK", ""),
        (ACTS, DryRun(), "WARN", 'set `[actuator] target = "slurm"`'),
        (f"{ACTS}\n{SLURM}", DryRun(), "WARN", "still has its old configuration"),
        (f"{ACTS}\n{SLURM}", deaf(), "FAIL", "`scontrol ping`"),
        (SLURM, deaf(), "WARN", "`scontrol ping`"),
        (f"{ACTS}\n{SLURM}", Scheduler(), "OK", ""),
        (ACTS, None, "FAIL", 'set `[actuator] target = "slurm"`, then systemctl enable'),
        (f"{ACTS}\n{SLURM}", None, "FAIL", "no drain can be written now: systemctl enable"),
    ],
)
def test_the_actuators_next_step_fits_what_it_lacks(
    text: str, target: Actuator | None, result: str, step: str, folder: Path
) -> None:
    asked = parts(folder, text)
    with (
        serving(folder / "no-actuator.sock", target, frozenset({os.geteuid()}))
        if target is not None
        else contextlib.nullcontext()
    ):
        lines = list(selftest.node(asked, known(folder), machine("h100x8")))
    (line,) = (line for line in lines if line.name == "actuator")
    assert line.result == result, line
    assert step in line.next_step
    assert bool(step) == bool(line.next_step)


def test_a_clock_that_was_never_set_is_a_fault(tmp_path: Path) -> None:
    early = look_up(tmp_path, ManualClock(utc=1000.0))
    assert results(list(selftest.node(parts(tmp_path), early, machine("h100x8"))))["clock"] == "FAIL"


def test_a_machine_without_a_kernel_log_fails(tmp_path: Path) -> None:
    assert results(list(selftest.node(parts(tmp_path), known(tmp_path), tmp_path)))["kernel log"] == "FAIL"


def test_the_drill_is_refused_without_an_agent(tmp_path: Path) -> None:
    (line,) = selftest.live(parts(tmp_path), known(tmp_path), device=os.devnull)
    assert (line.name, line.result) == ("drill", "FAIL")


def test_the_drill_writes_nothing_where_the_agent_would_not_believe_it(tmp_path: Path) -> None:
    written = tmp_path / "kmsg"
    written.write_text("")
    running = dataclasses.replace(known(tmp_path), alive=True)
    (line,) = selftest.live(parts(tmp_path), running, device=str(written))
    assert line.result == "FAIL"
    assert "trust_user_records" in line.next_step
    assert written.read_text() == ""


@pytest.mark.parametrize("policy", ["default", "strict", "observe"])
def test_the_drill_line_drains_under_no_policy(policy: str) -> None:
    parsed = parse_text(selftest.DRILL)
    assert parsed is not None
    assert parsed.kind == "log_loss"
    story, lines = told("0 boot A", f"1 kmsg {selftest.DRILL}", given=f"policy={policy}")
    assert not any("owed" in line for line in lines)
    assert story.health is not None
    assert story.health.subject(NODE).state == "healthy"
