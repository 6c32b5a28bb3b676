from pathlib import Path

import pytest

from gpuguard.model.health import Drain
from gpuguard.model.ids import NODE, BootId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.ports import NodeReport
from gpuguard.runtime.person import name_of_caller, outcome_of, owner_of, wrote_nothing
from tests.support.incidents import LOST, Machine
from tests.support.stored import owed

DRAIN = Drain(
    token=TokenId("7f3a"), subject=NODE, code="xid79", reason="gpuguard:7f3a node lost xid79",
    since=Instant(boot=BootId("b"), mono=1.0),
)  # fmt: skip


def report(*flags: str, reason: str = "", error: str | None = None) -> NodeReport:
    return NodeReport(
        target="slurm", node="node7", state="+".join(flags), flags=flags, drained="DRAIN" in flags,
        reason=reason, error=error,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "holder", "token"),
    [
        (report("IDLE"), "nobody", None),
        (report("IDLE", reason="gpuguard:7f3a node lost xid79"), "nobody", None),
        (report("IDLE", "DRAIN", reason="gpuguard:7f3a node lost xid79"), "ours", "7f3a"),
        (report("IDLE", "DRAIN", reason="gpuguard:c0de gpu3 lost xid79"), "ours", "c0de"),
        (report("IDLE", "DRAIN", reason="gpuguard:beef gpu3 lost xid79"), "orphan", "beef"),
        (report("IDLE", "DRAIN", reason="gpuguard:7f3a node lost xid79, do not touch"), "foreign", None),
        (report("IDLE", "DRAIN"), "foreign", None),
        (report(error="no answer"), "unknown", None),
    ],
)
def test_the_holder_is_told_by_the_reason_and_our_records(seen: NodeReport, holder: str, token: str | None) -> None:
    owner = owner_of(seen, DRAIN, [owed(1)])
    assert (owner.holder, owner.token) == (holder, token)


def test_without_any_record_every_token_is_an_orphan() -> None:
    assert owner_of(report("IDLE", "DRAIN", reason=DRAIN.reason), None, ()).holder == "orphan"


def test_a_wish_and_its_outcome_are_found_by_the_wishs_id(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    node.person("drain")
    drain = node.loop.health.drain
    assert drain is not None
    came = outcome_of(node.state_dir, drain.because[0], "drain", patience=0.0)
    assert came.action is not None
    assert (came.action.state, came.action.action.token) == ("done", drain.token)
    assert came.answer == f"a drain is owed as {drain.token}"
    node.stop()


def test_a_wish_that_led_to_nothing_has_its_answer(tmp_path: Path) -> None:
    node = Machine(tmp_path)
    node.line(LOST)
    node.person("drain")
    asked = node.store.story()[-1].event_id
    came = outcome_of(node.state_dir, str(asked), "drain", patience=0.0)
    assert came.action is None
    assert came.answer.startswith("the node is already drained by gpuguard")
    assert outcome_of(node.state_dir, "nobody asked", "drain", patience=0.0).answer == ""
    node.stop()


def test_the_caller_is_the_person_behind_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "mia")
    assert name_of_caller() == "mia"
    monkeypatch.delenv("SUDO_USER")
    assert name_of_caller()


def test_words_alone_are_no_write() -> None:
    import msgspec

    done = owed(1, state="done")
    assert not wrote_nothing(done)
    assert wrote_nothing(msgspec.structs.replace(done, message="dry run: would drain; nothing was written"))
