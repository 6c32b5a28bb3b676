from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.model.ids import SubjectId, TokenId
from gpuguard.runtime.chain import _next, of_subject, of_token
from gpuguard.runtime.known import find_subject, look_up
from tests.support.incidents import LOST, REMAP, Machine, lost_gpu


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


def chain(node: Machine, whom: str = "node") -> dict[str, object]:
    known = look_up(node.state_dir, node.clock)
    try:
        reader, health = known.memory()
        return of_subject(known, reader, find_subject(health, whom))
    finally:
        known.close()


def test_every_link_carries_the_id_of_the_next(node: Machine) -> None:
    lost_gpu(node)
    facts = chain(node)
    drain, subjects = facts["drain"], facts["subjects"]
    assert isinstance(drain, dict)
    assert isinstance(subjects, list)
    finding = subjects[0]["findings"][0]
    assert drain["subject"] == subjects[0]["subject"]
    assert drain["because"] == [line["event_id"] for line in finding["lines"]]
    assert finding["lines"][0]["raw"] == LOST
    assert finding["incident"] in [incident["id"] for incident in subjects[0]["incidents"]]


def test_the_worst_subject_comes_first(node: Machine) -> None:
    node.line(REMAP)
    node.line(LOST, after=5.0)
    subjects = chain(node)["subjects"]
    assert isinstance(subjects, list)
    assert [subject["remedy"] for subject in subjects] == ["reboot", "reset"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [(("IDLE",), "by itself once it saw that"), (("IDLE", "DRAIN"), "somebody else holds the node")],
)
def test_the_next_step_fits_the_drain(node: Machine, flags: tuple[str, ...], word: str) -> None:
    node.scheduler.flags = flags
    lost_gpu(node)
    steps = chain(node)["next"]
    assert isinstance(steps, list)
    assert "reboot the node" in steps[0]
    assert word in steps[1]
    assert "gpuguard ack xid79 --gpu 0000:c1:00.0" in steps[2]


def test_one_word_an_incident_is_advised_and_no_more(node: Machine) -> None:
    node.line(REMAP)
    node.line(REMAP.replace("64,", "95,").replace("Row Remapper: Error", "Uncontained ECC error"))
    steps = chain(node)["next"]
    assert isinstance(steps, list)
    assert [step for step in steps if "gpuguard ack" in step] == [
        "or, if you know better: `gpuguard ack xid95 --gpu 0000:a4:00.0 --by YOU --reason TEXT`"
    ]


def test_what_another_source_saw_by_itself_is_named_beside_it(node: Machine) -> None:
    lost_gpu(node)
    node.probed("0000:c1:00.0", answers=True)
    node.probed("0000:c1:00.0", answers=False)
    (step,) = (step for step in chain(node)["next"] if "gpuguard ack" in step)  # type: ignore[attr-defined]  # a list
    assert "`gpuguard ack xid79 --gpu 0000:c1:00.0 --by YOU --reason TEXT`" in step
    assert step.endswith(", and the same for gpu_silent, which pci_config saw by itself")


def test_probation_tells_how_it_ends(node: Machine) -> None:
    lost_gpu(node)
    node.person("ack", code="xid79")
    assert "once it stayed clean" in str(chain(node)["next"])


def test_a_pause_is_told_where_one_asks_why(node: Machine) -> None:
    lost_gpu(node)
    node.person("pause", seconds=3600.0, reason="cables")  # type: ignore[arg-type]  # the word has more than texts
    assert "keeps gpuguard's hands off this node (cables)" in str(chain(node)["next"])


def test_a_test_that_cannot_be_made_is_told_with_what_a_person_can_do(node: Machine) -> None:
    lost_gpu(node)
    node.person("ack", code="xid79")
    facts = chain(node)
    refused = {
        "verb": "test",
        "subject": "gpu0",
        "came": "refused",
        "message": "no nvidia-smi",
        "tries": 1,
        "spent": False,
    }
    steps = list(_next({**facts, "remedies": [refused]}))
    assert "the test of gpu0 was refused: no nvidia-smi" in steps
    assert "`gpuguard resume --yes` gives the node back" in steps[-1]
    assert not any("by itself" in step for step in steps)


def test_an_unknown_token_is_an_orphan_and_known_ones_are_not(node: Machine) -> None:
    lost_gpu(node)
    known = look_up(node.state_dir, node.clock)
    try:
        reader, health = known.memory()
        assert health.drain is not None
        assert of_token(known, reader, TokenId("beef"))["orphan"] is True
        assert of_token(known, reader, health.drain.token)["orphan"] is False
        assert of_token(known, reader, health.drain.token)["subjects"][0]["subject"] == SubjectId("gpu:0000:c1:00.0")
    finally:
        known.close()
