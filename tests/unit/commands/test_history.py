import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.cli import USAGE_ERROR, run
from gpuguard.errors import NotUnderstood
from tests.support.incidents import LOST, UUID, Machine, ask, job_without_a_number, lost_gpu

Output = pytest.CaptureFixture[str]
OTHER = "GPU-11112222-3333-4444-5555-666677778888"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def entries(node: Machine, output: Output, *line: str) -> list[dict[str, str]]:
    assert ask(node, "history", "--json", *line) == 0
    found: list[dict[str, str]] = json.loads(output.readouterr().out)["entries"]
    return found


def test_the_way_from_fault_to_return_is_told_in_order(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.person("ack", code="xid79", by="mia", reason="reseated")
    node.looks()
    assert ask(node, "history") == 0
    lines = capsys.readouterr().out
    assert max(map(len, lines.splitlines())) <= 80
    text = " ".join(lines.split())
    chain = ["xid79: healthy -> unfit", "[drain]", "owed: drain", ": done; drain written",
             "xid79 (and with it xid45) acknowledged by mia",
             "unfit -> returning", "3 looks in 600 s", "owed: release", ": done; release written"]  # fmt: skip
    places = [text.find(words) for words in chain]
    assert -1 not in places
    assert places == sorted(places)


def test_one_gpu_is_followed_by_its_uuid_after_it_was_taken_out(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.line(f"NVRM: GPU at PCI:0000:c1:00: {OTHER}", after=100.0)
    node.line("NVRM: Xid (PCI:0000:c1:00): 13, pid=77, name=gmx, Graphics Exception: ESR 0x505648=0x1000e", after=5.0)
    old, new = entries(node, capsys, "--gpu", UUID), entries(node, capsys, "--gpu", "c1:00")
    assert any("xid79" in entry["text"] for entry in old)
    assert not any("xid13" in entry["text"] for entry in old)
    assert any("xid13" in entry["text"] for entry in new)
    assert not any("healthy -> unfit" in entry["text"] for entry in new)
    assert ask(node, "history", "--gpu", UUID) == 0
    assert "taken out" in capsys.readouterr().out


def test_a_gpu_that_moved_keeps_its_history(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.line(f"NVRM: GPU at PCI:0000:d2:00: {UUID}", after=100.0)
    found = entries(node, capsys, "--gpu", "d2:00")
    assert any("xid79" in entry["text"] and entry["subject"] == "gpu:0000:c1:00.0" for entry in found)


def test_since_takes_spans_and_dates(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    node.reboot(2)
    node.clock.advance(7200.0)
    boots = ["boot"]
    assert {entry["kind"] for entry in entries(node, capsys, "--since", "3h")} > set(boots)
    assert [entry["kind"] for entry in entries(node, capsys, "--since", "2023-11-14T22:15:00Z")][:1] == boots
    assert entries(node, capsys, "--since", "2024-01-01") == []
    assert ask(node, "history", "--since", "30min") == 0
    assert capsys.readouterr().out.startswith("No fault, no action and no return is on record.\n")


def test_the_newest_are_shown_and_the_rest_is_counted(node: Machine, capsys: Output) -> None:
    lost_gpu(node)
    every = entries(node, capsys)
    assert entries(node, capsys, "--limit", "2") == every[-2:]
    assert ask(node, "history", "--limit", "2") == 0
    assert f"({len(every) - 2} older entries left out" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--since", "soon"], ["--limit", "0"], ["--limit", "-1"]])
def test_what_makes_no_sense_is_a_usage_error(option: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(["history", *option])
    assert end.value.code == USAGE_ERROR


def test_an_unknown_gpu_is_refused(node: Machine) -> None:
    node.line(LOST)
    with pytest.raises(NotUnderstood, match="known are 0000:c1:00"):
        ask(node, "history", "--gpu", "GPU-99999999")


def test_jobs_are_told_by_name_and_one_of_them_alone(node: Machine, capsys: Output) -> None:
    job_without_a_number(node, "slurm/81", "kubernetes/0f1e2d3c-aaaa-bbbb-cccc-0123456789ab")
    assert ask(node, "history") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "job slurm/81: job_loss_nan" in words
    assert "job kubernetes/0f1e2d3c-aaaa-bbbb-cccc-0123456789ab: job_loss_nan" in words
    assert ask(node, "history", "--job", "slurm/81") == 0
    alone = capsys.readouterr().out
    assert "kubernetes" not in alone
    assert "UUID" not in alone, "that is what a GPU has"
