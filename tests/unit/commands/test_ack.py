import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.cli import USAGE_ERROR, run
from gpuguard.errors import ActionRefused, NotUnderstood, StoreFailed, UsageError
from gpuguard.store.reader import DATABASE_NAME, open_reader
from tests.support.incidents import Machine, ask, job_without_a_number, lost_gpu

Output = pytest.CaptureFixture[str]
WHO = ("--by", "mia", "--reason", "board reseated")


@pytest.fixture
def node() -> Iterator[Machine]:
    # A control socket's path has 107 bytes at most, which pytest's own folders may exceed.
    with tempfile.TemporaryDirectory(prefix="gg-", dir="/tmp") as folder:
        machine = Machine(Path(folder))
        lost_gpu(machine)
        yield machine
        machine.stop()


def kept(node: Machine) -> list[str]:
    reader = open_reader(node.state_dir / DATABASE_NAME)
    try:
        return [entry.text for entry in reader.story() if entry.kind == "acknowledged"]
    finally:
        reader.close()


def test_the_running_agent_hears_it(node: Machine, capsys: Output) -> None:
    node.listen()
    assert ask(node, "ack", "xid79", "--gpu", "c1:00", *WHO) == 0
    text = capsys.readouterr().out
    assert "GPU 0000:c1:00.0: unfit -> returning; cleared: xid79; with it xid45" in " ".join(text.split())
    assert "written down" in text
    assert kept(node) == ["xid79 (and with it xid45) acknowledged by mia: board reseated"]
    assert node.loop.health.subjects[next(s for s in node.loop.health.subjects if "c1" in s)].state == "returning"


def test_without_an_agent_the_command_writes_it_itself(node: Machine, capsys: Output) -> None:
    node.stop()
    assert ask(node, "ack", "XID79", *WHO, target=node.scheduler) == 0
    assert "no agent runs" in " ".join(capsys.readouterr().out.split())
    assert kept(node) == ["xid79 (and with it xid45) acknowledged by mia: board reseated"]
    node.start()
    assert {s.state for s in node.loop.health.subjects.values()} == {"healthy", "returning"}


def test_an_agent_that_holds_the_lock_and_does_not_listen_is_an_error(node: Machine) -> None:
    from gpuguard.errors import ReadFailed

    with pytest.raises(ReadFailed, match="the agent does not answer"):
        ask(node, "ack", "xid79", *WHO)
    assert kept(node) == []


def test_a_finding_that_does_not_stand_is_refused_with_those_that_do(node: Machine) -> None:
    with pytest.raises(ActionRefused, match=r"xid48 does not stand; what stands is .*xid79 on 0000:c1:00\.0"):
        ask(node, "ack", "xid48", *WHO)
    with pytest.raises(ActionRefused, match=r"does not stand on gpu:0000:a4:00\.0"):
        ask(node, "ack", "xid79", "--gpu", "a4:00", *WHO)
    with pytest.raises(NotUnderstood):
        ask(node, "ack", "xid79", "--gpu", "77:00", *WHO)


def test_a_name_and_a_reason_are_asked_for(node: Machine) -> None:
    with pytest.raises(UsageError, match="--by must say something"):
        ask(node, "ack", "xid79", "--by", " ", "--reason", "x")
    with pytest.raises(
        UsageError, match="--reason holds bytes that are no UTF-8, so it cannot be kept; try --reason '"
    ):
        ask(node, "ack", "xid79", "--by", "mia", "--reason", "\udcff")
    with pytest.raises(UsageError, match="--reason must say something"):
        ask(node, "ack", "xid79", "--by", "mia", "--reason", "")
    assert UsageError.exit_code == USAGE_ERROR
    assert kept(node) == []
    with pytest.raises(SystemExit) as end:
        run(["ack", "xid79", "--by", "mia"])
    assert end.value.code == USAGE_ERROR


def test_json_tells_what_follows(node: Machine, capsys: Output) -> None:
    node.stop()
    assert ask(node, "ack", "xid79", "--json", *WHO, target=node.scheduler) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["finding"], answer["drain"]) == (True, "xid79", "standing")
    (subject,) = answer["subjects"]
    assert (subject["before"], subject["state"], subject["findings"]) == ("unfit", "returning", [])
    assert subject["cleared"] == ["xid79", "xid45"]


def test_what_another_source_saw_by_itself_still_stands(node: Machine, capsys: Output) -> None:
    node.probed("0000:c1:00.0", answers=True)
    node.probed("0000:c1:00.0", answers=False)
    node.stop()
    assert ask(node, "ack", "xid79", *WHO, target=node.scheduler) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "unfit -> unfit; cleared: xid79; with it xid45; still stands: gpu_silent" in text


def test_a_damaged_memory_is_left_alone(node: Machine) -> None:
    node.stop()
    path = node.state_dir / DATABASE_NAME
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(StoreFailed):
        ask(node, "ack", "xid79", *WHO)
    assert path.read_bytes() == b"junk" * 1000


def test_an_agent_that_could_not_write_has_not_cleared_it(node: Machine) -> None:
    node.listen(writes=False)
    with pytest.raises(StoreFailed, match="has not written it down yet"):
        ask(node, "ack", "xid79", *WHO)


def test_one_job_alone_is_acknowledged(node: Machine, capsys: Output) -> None:
    job_without_a_number(node, "slurm/81", "slurm/82")
    node.stop()
    said = ["ack", "job_loss_nan", "--job", "slurm/81", "--by", "mia", "--reason", "seen"]
    assert ask(node, *said) == 0
    assert "job slurm/81: watched -> healthy" in capsys.readouterr().out
    assert ask(node, "why", "slurm/82") == 1
