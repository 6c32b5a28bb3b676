import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.cli import USAGE_ERROR, run
from gpuguard.errors import UsageError
from tests.support.incidents import Machine, ask, lost_gpu

Output = pytest.CaptureFixture[str]
FOR = ("--for", "4h", "--by", "mia", "--reason", "cables")


@pytest.fixture
def node() -> Iterator[Machine]:
    # A control socket's path has 107 bytes at most, which pytest's own folders may exceed.
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder:
        machine = Machine(Path(folder))
        yield machine
        machine.stop()


def test_the_running_agent_keeps_its_hands_off_until_the_time_is_over(node: Machine, capsys: Output) -> None:
    node.listen()
    assert ask(node, "pause", *FOR) == 0
    assert "keeps its hands off this node for 4 h" in " ".join(capsys.readouterr().out.split())
    lost_gpu(node)
    assert node.scheduler.reason == ""
    ask(node, "status")
    text = " ".join(capsys.readouterr().out.split())
    assert "paused gpuguard keeps its hands off until" in text
    assert "mia: cables" in text
    node.clock.advance(4 * 3600.0)
    node.tick(1.0)
    assert node.loop.health.pause is None


def test_without_an_agent_it_is_written_down_and_ended_likewise(node: Machine, capsys: Output) -> None:
    node.stop()
    assert ask(node, "pause", *FOR, "--json", target=node.scheduler) == 0
    assert json.loads(capsys.readouterr().out)["paused"] is True
    node.start()
    pause = node.loop.health.pause
    assert pause is not None
    assert (pause.by, pause.seconds) == ("mia", 4 * 3600.0)
    node.stop()
    assert ask(node, "pause", "--end", target=node.scheduler) == 0
    assert ask(node, "pause", "--end", target=node.scheduler) == 1
    assert "Nothing was paused." in capsys.readouterr().out


@pytest.mark.parametrize("span", ["", "4", "4x", "-1h", "0h", "31d", "1e9h", "\u0664h"])
def test_what_is_no_time_is_a_usage_error(span: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as end:
        run(["pause", f"--for={span}", "--reason", "x"])
    assert end.value.code == USAGE_ERROR
    assert "--for" in capsys.readouterr().err


def test_a_pause_says_why(node: Machine) -> None:
    with pytest.raises(UsageError, match="--reason"):
        ask(node, "pause", "--for", "1h")
