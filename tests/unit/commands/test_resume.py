import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import ActionRefused, UsageError
from gpuguard.model.actions import Outcome
from gpuguard.ports import NodeReport
from gpuguard.runtime import control, person
from tests.support.incidents import LOST, REMAP, Machine, ask, lost_gpu

Output = pytest.CaptureFixture[str]
WHO = ("--by", "mia", "--reason", "mended")


@pytest.fixture
def node() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder:
        machine = Machine(Path(folder))
        yield machine
        machine.stop()


def resume(node: Machine, *options: str) -> int:
    return ask(node, "resume", *WHO, *options, target=node.scheduler)


def test_without_yes_nothing_is_written(node: Machine, capsys: Output) -> None:
    node.person("drain")
    reason = node.scheduler.reason
    assert resume(node) == 0
    assert "then        the node is given back" in capsys.readouterr().out
    assert node.scheduler.reason == reason != ""


def test_our_drain_is_given_back_through_the_agent(node: Machine, capsys: Output) -> None:
    node.person("drain")
    node.listen()
    assert resume(node, "--yes") == 0
    assert capsys.readouterr().out.startswith("The node is given back.\n")
    assert (node.scheduler.flags, node.scheduler.reason) == (("IDLE",), "")
    assert node.loop.health.drain is None


def test_our_drain_is_given_back_without_an_agent(node: Machine, capsys: Output) -> None:
    node.person("drain")
    node.stop()
    assert resume(node, "--yes", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["result"], answer["written"]) == ("done", True)
    assert node.scheduler.flags == ("IDLE",)


def test_while_a_gpu_is_unfit_it_is_refused_with_the_way_out(node: Machine) -> None:
    lost_gpu(node)
    with pytest.raises(ActionRefused, match=r"c1:00\.0 is unfit \(xid79\).*gpuguard ack xid79 --gpu 0000:c1:00\.0"):
        resume(node, "--yes")
    assert "DRAIN" in node.scheduler.flags


def test_somebody_elses_drain_is_left_alone(node: Machine, capsys: Output) -> None:
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "admin: moving racks"
    assert resume(node, "--yes") == 1
    assert "not ours" in capsys.readouterr().out
    assert node.scheduler.reason == "admin: moving racks"


def test_a_reason_that_a_person_changed_since_is_left_alone(node: Machine) -> None:
    node.person("drain")
    node.scheduler.reason += " (mia: do not touch)"
    changed = node.scheduler.reason
    node.stop()
    assert resume(node, "--yes") == 1
    assert (node.scheduler.flags, node.scheduler.reason) == (("IDLE", "DRAIN"), changed)


def test_nothing_of_ours_is_no_failure(node: Machine, capsys: Output) -> None:
    assert resume(node, "--yes") == 0
    assert "there is nothing to give back" in " ".join(capsys.readouterr().out.split())


def test_the_history_of_the_part_is_a_warning(node: Machine, capsys: Output) -> None:
    for _ in range(2):
        node.line(LOST, after=1000.0)
        node.person("ack", code="xid79")
        node.person("release")
        assert node.scheduler.flags == ("IDLE",)
    node.line(LOST, after=1000.0)
    node.person("ack", code="xid79")
    assert resume(node) == 0
    assert "this part was given back twice before and failed again: 2023-11-14" in " ".join(
        capsys.readouterr().out.split()
    )


def test_an_orphan_is_adopted_and_then_given_back(node: Machine, capsys: Output) -> None:
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "gpuguard:beef gpu2 lost xid79"
    node.stop()
    assert resume(node, "--yes") == 1
    assert "`gpuguard resume --adopt beef` takes it over" in " ".join(capsys.readouterr().out.split())
    assert resume(node, "--adopt", "beef") == 0
    assert node.scheduler.reason == "gpuguard:beef gpu2 lost xid79"
    assert resume(node, "--adopt", "beef", "--yes") == 0
    assert "The drain beef is ours now." in capsys.readouterr().out
    assert node.scheduler.reason == "gpuguard:beef gpu2 lost xid79", "the first cause keeps its words"
    node.clock.advance(1.0)
    assert resume(node, "--yes") == 0
    assert node.scheduler.flags == ("IDLE",)


@pytest.mark.parametrize("token", ["beef", "gpuguard:beef"])
def test_only_the_token_that_the_node_carries_can_be_adopted(node: Machine, token: str) -> None:
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), "gpuguard:cafe gpu2 lost xid79"
    with pytest.raises(ActionRefused, match="does not carry the token beef"):
        resume(node, "--adopt", token, "--yes")


def test_our_own_token_needs_no_adoption(node: Machine) -> None:
    node.person("drain")
    assert node.loop.health.drain is not None
    with pytest.raises(ActionRefused, match="is on record here already"):
        resume(node, "--adopt", node.loop.health.drain.token)


def test_what_is_no_token_is_refused(node: Machine) -> None:
    for token in ("everything", ""):
        with pytest.raises(UsageError, match=r"--adopt: .*status --live"):
            resume(node, "--adopt", token)


@pytest.mark.parametrize("words", [("--by", " ", "--reason", "x"), ("--by", "mia", "--reason", "")])
def test_a_name_and_a_reason_that_say_nothing_are_a_usage_error(node: Machine, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="must say something"):
        ask(node, "resume", *words, target=node.scheduler)


def test_one_word_a_fault_is_asked_for(node: Machine) -> None:
    node.line(REMAP)
    node.line(REMAP.replace("64,", "95,").replace("Row Remapper: Error", "Uncontained ECC error"))
    with pytest.raises(ActionRefused) as refused:
        resume(node, "--yes")
    assert str(refused.value).count("`gpuguard ack ") == 1
    node.person("ack", code=str(refused.value).partition("`gpuguard ack ")[2].split()[0])
    assert resume(node) == 0


def test_without_an_answer_nothing_is_adopted(node: Machine) -> None:
    node.scheduler.error = "slurmctld does not answer"
    with pytest.raises(ActionRefused, match="could not be asked"):
        resume(node, "--adopt", "beef", "--yes")


def test_an_observing_node_forgets_what_it_only_noted(tmp_path: Path, capsys: Output) -> None:
    machine = Machine(tmp_path, mode="observe")
    machine.person("drain")
    machine.stop()
    assert ask(machine, "resume", *WHO, "--yes") == 1
    assert "Observe-only: nothing was written" in capsys.readouterr().out
    machine.start()
    assert machine.loop.health.drain is None
    machine.stop()


def test_a_drain_of_ours_that_somebody_wrote_again_can_be_adopted(node: Machine, capsys: Output) -> None:
    node.person("drain")
    reason = node.scheduler.reason
    node.person("release")
    node.scheduler.flags, node.scheduler.reason = ("IDLE", "DRAIN"), reason
    token = reason.split()[0].removeprefix("gpuguard:")
    node.stop()
    assert resume(node, "--yes") == 1
    assert f"`gpuguard resume --adopt {token}` takes it over" in " ".join(capsys.readouterr().out.split())
    assert ask(node, "status", "--live", target=node.scheduler) == 1
    assert f"the drain {token} is over here" in " ".join(capsys.readouterr().out.split())
    node.clock.advance(1.0)
    assert resume(node, "--adopt", token, "--yes") == 0
    node.clock.advance(1.0)
    assert resume(node, "--yes") == 0
    assert node.scheduler.flags == ("IDLE",)


def test_a_fault_that_overtakes_the_release_is_told(
    node: Machine, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.person("drain")
    node.listen()
    speak = person.speak

    def spoken(*args: Any, **named: Any) -> control.Answer:  # Any: whatever `speak` takes
        answer = speak(*args, **named)
        lost_gpu(node)
        return answer

    report = NodeReport(
        target="slurm", node="node7", state="IDLE+DRAIN", flags=("IDLE", "DRAIN"), drained=True,
        reason=node.scheduler.reason,
    )  # fmt: skip
    monkeypatch.setattr(person, "speak", spoken)
    monkeypatch.setattr(node.scheduler, "read_state", lambda: report)
    monkeypatch.setattr(
        node.scheduler, "perform", lambda _: Outcome(result="deferred", message="slurmctld does not answer")
    )
    assert resume(node, "--yes") == 1
    out = capsys.readouterr().out
    assert out.startswith("Called off: the node is to stay drained.\n")
    assert "`gpuguard why` tells which" in " ".join(out.split())
