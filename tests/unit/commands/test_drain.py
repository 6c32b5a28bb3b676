import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.cli import USAGE_ERROR, run
from tests.support.incidents import Machine, ask, lost_gpu

Output = pytest.CaptureFixture[str]
WHY = ("--reason", "fans are changed", "--by", "mia")


@pytest.fixture
def node() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder:
        machine = Machine(Path(folder))
        yield machine
        machine.stop()


def test_without_yes_nothing_is_written(node: Machine, capsys: Output) -> None:
    before = node.store.load_state()
    assert ask(node, "drain", *WHY, target=node.scheduler) == 0
    text = capsys.readouterr().out
    assert text.startswith("Nothing was written")
    assert "IDLE, nobody drained it" in text
    assert "gpuguard:<token> node operator mia" in text
    assert node.store.load_state() == before
    assert node.scheduler.flags == ("IDLE",)


def test_the_running_agent_drains_and_the_outcome_is_told(node: Machine, capsys: Output) -> None:
    node.listen()
    assert ask(node, "drain", *WHY, "--yes", target=node.scheduler) == 0
    text = capsys.readouterr().out
    assert text.startswith("The node is drained.\n")
    assert node.scheduler.flags == ("IDLE", "DRAIN")
    assert node.scheduler.reason in " ".join(text.split())
    assert node.loop.health.drain is not None
    assert (node.loop.health.drain.by, node.loop.health.drain.state) == ("mia", "standing")


def test_without_an_agent_the_command_drains(node: Machine, capsys: Output) -> None:
    node.stop()
    assert ask(node, "drain", *WHY, "--yes", "--json", target=node.scheduler) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["result"], answer["written"], answer["agent"]) == ("done", True, False)
    assert node.scheduler.reason == answer["text"] == f"gpuguard:{answer['token']} node operator mia"
    node.start()
    assert node.loop.health.drain is not None
    assert node.loop.health.drain.token == answer["token"]


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_a_foreign_drain_is_left_alone(node: Machine, capsys: Output, yes: tuple[str, ...]) -> None:
    node.stop()
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "NHC: disk full"
    assert ask(node, "drain", *WHY, *yes, target=node.scheduler) == 1
    assert "somebody else" in capsys.readouterr().out
    assert node.scheduler.reason == "NHC: disk full"


def test_a_scheduler_that_does_not_answer_is_waited_for(node: Machine, capsys: Output) -> None:
    node.stop()
    node.scheduler.error = "slurmctld does not answer"
    assert ask(node, "drain", *WHY, "--yes", target=node.scheduler) == 1
    text = capsys.readouterr().out
    assert text.startswith("Not yet: it waits, and is tried again by itself.")
    assert "no agent runs; it is tried again when one does" in " ".join(text.split())
    node.scheduler.error = None
    node.start()
    node.tick(30.0)
    assert node.scheduler.flags == ("IDLE", "DRAIN"), "the next agent carries it on"


def test_a_node_that_is_drained_already_is_not_drained_again(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    reason = node.scheduler.reason
    assert ask(node, "drain", *WHY, target=node.scheduler) == 1
    assert f"already, by gpuguard: {reason}" in " ".join(capsys.readouterr().out.split())
    node.stop()
    assert ask(node, "drain", *WHY, "--yes", target=node.scheduler) == 0
    assert "the node is already drained by gpuguard" in " ".join(capsys.readouterr().out.split())
    assert node.scheduler.reason == reason


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_a_node_that_observes_says_so(tmp_path: Path, capsys: Output, yes: tuple[str, ...]) -> None:
    machine = Machine(tmp_path, mode="observe")
    machine.stop()
    assert ask(machine, "drain", *WHY, *yes) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "Observe-only: nothing is written to the scheduler." in text
    assert '`mode = "drain"` under [policy]' in text


def test_the_reason_is_asked_for() -> None:
    with pytest.raises(SystemExit) as end:
        run(["drain", "--yes"])
    assert end.value.code == USAGE_ERROR


def test_a_hostile_name_cannot_reach_the_scheduler(node: Machine) -> None:
    node.stop()
    name = "x state=resume;\n$(rm)"
    assert ask(node, "drain", "--reason", "y", "--by", name, "--yes", target=node.scheduler) == 0
    assert set(node.scheduler.reason) <= set("gpuardnoetsmx:_ .0123456789abcdef-+")
    assert len(node.scheduler.reason) <= 60


def test_a_refusal_is_told_and_the_next_wish_asks_again(node: Machine, capsys: Output) -> None:
    node.scheduler.refuses = "Slurm knows no node node7"
    lost_gpu(node)
    node.stop()
    node.clock.advance(10.0)
    assert ask(node, "drain", *WHY, "--yes", target=node.scheduler) == 2
    assert "Refused: nothing was written." in capsys.readouterr().out
    node.scheduler.refuses = None
    node.clock.advance(10.0)
    assert ask(node, "drain", *WHY, "--yes", target=node.scheduler) == 0
    assert node.scheduler.flags == ("IDLE", "DRAIN")
