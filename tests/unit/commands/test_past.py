"""What is remembered of boards and of the machine, as `history` and `why` tell it."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuguard.health.past import DAY, Past, Settings, named, remember
from gpuguard.model.health import SubjectHealth
from gpuguard.model.ids import NODE, GpuSerial, SubjectId
from gpuguard.model.story import Change
from tests.support.incidents import UUID, Machine, ask, lost_gpu

Output = pytest.CaptureFixture[str]
OTHER = "GPU-11112222-3333-4444-5555-666677778888"
LOST_AT = SubjectId("gpu:0000:c1:00.0")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def remembered(node: Machine) -> None:
    """The GPU that is lost now was so ten days ago as well, and so was one that is not here."""
    lost_gpu(node)
    now = node.clock.now()
    assert now.utc is not None
    before = msgspec.structs.replace(now, utc=now.utc - 10 * DAY)
    known = named(Past(), {NODE: {"node_serial": "CZ3X1234ABC"}})
    gone = SubjectHealth(id=SubjectId("gpu:0000:d2:00.0"), since=now, serial=GpuSerial("1650000000002"))
    here = node.loop.health.subjects[LOST_AT]
    for subject, at in ((gone, before), (here, before), (here, now)):
        known = remember(known, subject, "xid79", at, now, Settings())
    node.store.commit(Change(puts={"past": msgspec.msgpack.encode(known)}))


def history(node: Machine, output: Output, *line: str) -> tuple[list[dict[str, object]], str]:
    assert ask(node, "history", "--json", *line) == 0
    facts = json.loads(output.readouterr().out)["past"]
    assert ask(node, "history", *line) == 0
    text = output.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    return facts, " ".join(text.split())


def test_history_tells_of_boards_here_and_gone_and_of_the_machine(node: Machine, capsys: Output) -> None:
    remembered(node)
    facts, text = history(node, capsys)
    assert [(one["of"], one["faults"], one["score"]) for one in facts] == [
        ("GPU 0000:c1:00.0", 2, 1.5), ("node", 3, 2.0), ("not here: serial 1650000000002", 1, 0.5),
    ]  # fmt: skip
    assert "remembered GPU 0000:c1:00.0" in text
    assert "2 faults, the last xid79 2023-11-14" in text
    assert "score 1.50, halved every 10 d" in text
    assert "not here: serial 1650000000002: 1 fault" in text


def test_history_of_one_gpu_tells_of_its_board_alone_wherever_it_is(node: Machine, capsys: Output) -> None:
    remembered(node)
    facts, _ = history(node, capsys, "--gpu", "c1:00")
    assert [(one["uuid"], one["score"]) for one in facts] == [(UUID, 1.5)]
    node.line(f"NVRM: GPU at PCI:0000:c1:00: {OTHER}", after=100.0)
    node.store.commit(Change(puts=past_of(node)))
    facts, text = history(node, capsys, "--gpu", "c1:00")
    assert (facts, "remembered" in text) == ([], False)
    facts, text = history(node, capsys, "--gpu", UUID)
    assert [one["faults"] for one in facts] == [2]
    assert "a GPU that was at 0000:c1:00.0" in text


def past_of(node: Machine) -> dict[str, bytes]:
    """The part of the memory on disk, to be written again after the core, which knows nothing of it, wrote its own."""
    state = node.store.load_state()
    return {"past": state["past"]} if "past" in state else {}


def test_a_node_without_a_past_says_nothing_of_it(node: Machine, capsys: Output) -> None:
    facts, text = history(node, capsys)
    assert (facts, "remembered" in text) == ([], False)


def test_why_tells_it_beside_the_verdict(node: Machine, capsys: Output) -> None:
    remembered(node)
    ask(node, "why", "c1:00", "--json")
    (subject,) = json.loads(capsys.readouterr().out)["subjects"]
    assert (subject["past"]["faults"], subject["past"]["score"], subject["past"]["last_code"]) == (2, 1.5, "xid79")
    ask(node, "why", "c1:00")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "remembered 2 faults, the last xid79" in " ".join(text.split())
