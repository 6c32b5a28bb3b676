"""What an operator reads at 80 columns, for one story each.

The stories go through the real grammars, core, loop and store on a clock that is moved by hand; see
tests/support/incidents.py. A line that carries the time of this very run is left out of the comparison.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguard.model.health import SourceView
from tests.support.incidents import IDENTITY, LOST, PROGRAM, REMAP, Machine, ask, lost_gpu

FOLDER = Path(__file__).parent / "operator_commands"

Golden = Callable[[Path, str], None]
Output = pytest.CaptureFixture[str]
Story = Callable[[Machine], None]


def healthy(node: Machine) -> None:
    """Nothing ever happened."""
    node.line(IDENTITY[0])
    node.line(IDENTITY[1])


def lost(node: Machine) -> None:
    """One GPU fell off the bus; the node is drained."""
    lost_gpu(node)


def two_faults(node: Machine) -> None:
    """Two bad GPUs: the greater remedy keeps the drain, both are told."""
    node.line(REMAP)
    node.line(LOST, after=900.0)


def came_back(node: Machine) -> None:
    """A GPU that is lost again after its reboot."""
    lost_gpu(node)
    node.reboot(2)
    node.line(LOST, after=300.0)


def mended(node: Machine) -> None:
    """A person acknowledged the fault, probation passed, the node was given back."""
    lost_gpu(node)
    node.clock.advance(3600.0)
    node.person("ack", code="xid79", by="mia", reason="reseated, ticket 4711")
    node.looks()


def foreign(node: Machine) -> None:
    """An administrator had drained the node before the fault came."""
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "kernel update"
    lost_gpu(node)


def deaf_scheduler(node: Machine) -> None:
    """The scheduler does not answer: the drain is owed."""
    node.scheduler.error = "slurmctld does not answer"
    lost_gpu(node)


def held(node: Machine) -> None:
    """A program's faults on one GPU: nothing that drains."""
    node.line(PROGRAM)
    node.line(PROGRAM.replace("3391", "3392"), after=30.0)


def operator(node: Machine) -> None:
    """A person drained the node."""
    node.person("drain", by="mia", reason="fans are being changed")


STORIES: tuple[Story, ...] = (
    healthy, lost, two_faults, came_back, mended, foreign, deaf_scheduler, held, operator,
)  # fmt: skip


def publish(node: Machine) -> None:
    utc = node.clock.now().utc
    kmsg = SourceView(name="kmsg", level="watching", reason="", last_success_utc=utc, lost=0, restarts=0)
    journal = SourceView(
        name="journal", level="degraded", reason="journalctl ended with 1: no journal files were found",
        last_success_utc=None, lost=0, restarts=4,
    )  # fmt: skip
    node.publish(kmsg, journal)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative, so that no name of this run's folders is printed."""
    monkeypatch.chdir(tmp_path)
    return Path()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_status_why_and_history(folder: Path, story: Story, golden: Golden, capsys: Output) -> None:
    node = Machine(folder)
    story(node)
    publish(node)
    node.stop()
    # Two hours and a half: the age of a snapshot is measured by the clock of this machine.
    long_ago = time.time() - 9000.0
    os.utime(node.state_dir / "snapshot.json", (long_ago, long_ago))
    text = f"# {story.__doc__}\n"
    for command in (["status"], ["status", "--live"], ["why"], ["history"]):
        more: dict[str, object] = {"target": node.scheduler} if "--live" in command else {}
        code = ask(node, *command, **more)
        text += f"\n$ gpuguard {' '.join(command)}\n{capsys.readouterr().out}[exit {code}]\n"
    assert max(map(len, text.splitlines())) <= 80
    golden(FOLDER / f"{story.__name__}.txt", text)


@pytest.mark.parametrize("mode", ["drain", "observe"])
def test_the_previews(folder: Path, mode: str, golden: Golden, capsys: Output) -> None:
    node = Machine(folder, mode=mode)  # type: ignore[arg-type]  # pytest gives plain text
    text = f"# What drain and resume would do on a node in mode {mode}; nothing is written.\n"

    def tell(*line: str) -> None:
        nonlocal text
        code = ask(node, *line, target=node.scheduler)
        text += f"\n$ gpuguard {' '.join(line)}\n{capsys.readouterr().out}[exit {code}]\n"

    tell("drain", "--reason", "fans", "--by", "mia")
    tell("resume", "--by", "mia")
    node.person("drain", by="mia", reason="fans")
    tell("drain", "--reason", "fans", "--by", "mia")
    tell("resume", "--by", "mia")
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "gpuguard:beef 3b:00.0 lost xid79"
    tell("resume", "--by", "mia")
    tell("resume", "--by", "mia", "--adopt", "beef")
    node.stop()
    assert max(map(len, text.splitlines())) <= 80
    golden(FOLDER / f"previews_{mode}.txt", text)
