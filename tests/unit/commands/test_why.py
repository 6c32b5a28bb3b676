import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from gpuguard.commands.why import DRAINS
from gpuguard.errors import NotUnderstood, StoreFailed
from gpuguard.model.health import DrainState
from gpuguard.runtime.chain import AFTERWARDS
from tests.support.incidents import IDENTITY, LOST, REMAP, UUID, Machine, ask, job_without_a_number, lost_gpu

Output = pytest.CaptureFixture[str]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def told(node: Machine, output: Output, code: int, *line: str) -> str:
    assert ask(node, "why", *line) == code
    text = output.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_a_drained_node_leads_back_to_the_kernels_line(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    text = told(node, capsys, 1)
    chain = [
        "stands reason gpuguard:",
        "c1:00.0 lost xid79",
        "by gpuguard for GPU 0000:c1:00.0",
        "drain done; drain written",
        "node was IDLE",
        "GPU 0000:c1:00.0: unfit, needs a reboot",
        "xid79, with xid45",
        "critical, self-evident",
        "NVIDIA says RESTART_BM",
        "ended by a reboot, a new part or `gpuguard ack`",
        "event kmsg:b0070000:4",
        LOST,
        "reboot the node",
        "`gpuguard ack xid79 --gpu 0000:c1:00.0 --by YOU --reason TEXT`",
    ]
    places = [text.find(words) for words in chain]
    assert -1 not in places, dict(zip(chain, places, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize(
    "spelling",
    ["c1:00", "c1:00.0", "0000:C1:00.0", "PCI:0000:c1:00", "00000000:c1:00", UUID, UUID[:14], "1663924000417"],
)
def test_a_gpu_has_many_names(node: Machine, capsys: Output, spelling: str) -> None:
    lost_gpu(node)
    assert "GPU 0000:c1:00.0: unfit" in told(node, capsys, 1, spelling)


def test_the_healthy_neighbour_has_nothing_to_say_about_the_drain(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    text = told(node, capsys, 0, "a4:00")
    assert "xid31 info" in text
    assert "c1:00" not in text


def test_an_unknown_gpu_is_answered_with_those_known(node: Machine) -> None:
    lost_gpu(node)
    with pytest.raises(NotUnderstood, match=r"no GPU '7' is known here; known are 0000:a4:00\.0, 0000:c1:00\.0"):
        ask(node, "why", "7")


def test_no_memory_is_a_failure(node: Machine) -> None:
    node.stop()
    (node.state_dir / "gpuguard.db").unlink()
    with pytest.raises(StoreFailed, match="no agent has run here"):
        ask(node, "why")


def test_nothing_stands(node: Machine, capsys: Output) -> None:
    assert told(node, capsys, 0) == "node: nothing stands against it."


def test_a_token_leads_to_the_same_chain(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    drain = node.loop.health.drain
    assert drain is not None
    assert told(node, capsys, 1, drain.token) == told(node, capsys, 1, "node")
    assert told(node, capsys, 1, f"gpuguard:{drain.token}") == told(node, capsys, 1, "node")


def test_a_token_without_a_record_is_an_orphan(node: Machine, capsys: Output) -> None:
    text = told(node, capsys, 1, "beef")
    assert "beef: an orphan." in text
    assert "`gpuguard resume --adopt beef`" in text


def test_a_drain_that_is_over_keeps_its_story(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    assert node.loop.health.drain is not None
    token = node.loop.health.drain.token
    node.person("ack", code="xid79", reason="reseated")
    node.looks()
    assert node.loop.health.drain is None
    text = told(node, capsys, 0, token)
    assert f"the drain {token} is over" in text
    assert f"release {token}: done" in text
    assert LOST in text


def test_an_operators_drain_says_who_asked_and_why(node: Machine, capsys: Output) -> None:
    node.person("drain", by="mia", reason="fans are being changed")
    text = told(node, capsys, 1)
    assert "node operator mia" in text
    assert "mia asked for drain (fans are being changed)" in text
    assert "`gpuguard resume --yes` gives the node back" in text


def test_an_observing_node_says_that_nothing_was_written(tmp_path: Path, capsys: Output) -> None:
    machine = Machine(tmp_path, mode="observe")
    lost_gpu(machine)
    text = told(machine, capsys, 1)
    machine.stop()
    assert "(observe-only: nothing was written)" in text
    assert 'set `mode = "drain"` under [policy]' in text


def test_a_fault_that_came_back_says_after_what(node: Machine, capsys: Output) -> None:
    node.line(LOST)
    node.reboot(2)
    node.line(LOST, after=30.0)
    text = told(node, capsys, 1)
    assert "tried reboot for xid79" in text
    assert "came back after a reboot" in text
    assert "needs a new part" in text
    assert "have the part replaced; its serial is not known" in text


def test_a_gpu_on_probation_says_so(node: Machine, capsys: Output) -> None:
    node.line(REMAP)
    node.person("ack", code="xid64")
    text = told(node, capsys, 1, "a4:00")
    assert "returning" in text
    assert "returning clean since 2023" in text


def test_a_hostile_line_cannot_move_the_cursor(node: Machine, capsys: Output) -> None:
    node.line(LOST.replace("lammps", "a\x1b[2Jb"))
    assert ask(node, "why") == 1
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_json_has_the_whole_chain(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    assert ask(node, "why", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    gpu = answer["subjects"][0]
    assert (answer["token"], answer["drain"]["because"]) == (answer["drain"]["token"], ["kmsg:b0070000:4"])
    assert (gpu["uuid"], gpu["serial"], gpu["state"]) == (UUID, IDENTITY[1].split()[-1], "unfit")
    assert [finding["code"] for finding in gpu["findings"]] == ["xid79", "xid45"]
    assert gpu["findings"][0]["lines"][0]["raw"] == LOST
    assert gpu["incidents"][0]["members"] == ["xid79", "xid45"]


def test_jobs_are_named_and_a_reboot_is_no_advice_for_them(node: Machine, capsys: Output) -> None:
    job_without_a_number(node, "slurm/81", "slurm/82")
    text = told(node, capsys, 1)
    for name in ("slurm/81", "slurm/82"):
        assert f"job {name}: watched" in text
        assert f"`gpuguard hang --job {name}`" in text
        assert f"`gpuguard ack job_loss_nan --job {name} --by YOU --reason TEXT`" in text
    assert "ended by the job going on or ending or `gpuguard ack`" in text
    assert "reboot" not in text
    assert "slurm/82" not in told(node, capsys, 1, "slurm/81")


def test_every_state_of_a_drain_has_words() -> None:
    assert set(DRAINS) == set(get_args(DrainState))
    assert set(AFTERWARDS) <= set(DRAINS)
