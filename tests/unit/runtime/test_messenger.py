"""What is owed is carried, and a drain that somebody took away is noticed."""

import msgspec
import pytest
import structlog

from gpuguard.model.actions import LET_GO, Action, Outcome
from gpuguard.model.events import ActionOutcome
from gpuguard.model.ids import TokenId
from gpuguard.ports import NodeReport
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.mailbox import Mailbox
from gpuguard.runtime.messenger import Messenger
from tests.support.wishes import remedy, wish

OURS = NodeReport(
    target="slurm", node="n1", state="IDLE+DRAIN", flags=("IDLE", "DRAIN"), reason="gpuguard:7f3a gpu3 lost xid79"
)


class Target:
    name = "slurm"

    def __init__(self) -> None:
        self.report: NodeReport | Exception = OURS
        self.outcome = Outcome(result="done", message="it is so")

    def perform(self, action: Action) -> Outcome:
        return self.outcome

    def read_state(self) -> NodeReport:
        if isinstance(self.report, Exception):
            raise self.report
        return self.report


class Desk:
    def __init__(self, standing: str | None = "7f3a") -> None:
        self.target, self.mailbox, self.let_go = Target(), Mailbox(), list[float]()
        self.messenger = Messenger(
            self.target, ManualClock(100.0), self.mailbox, let_go=self.let_go.append,
            standing=lambda: TokenId(standing) if standing else None,
        )  # fmt: skip

    def heard(self) -> list[ActionOutcome]:
        found: list[ActionOutcome] = []
        while (batch := self.mailbox.get(0.0)) is not None:
            found += [event for event in batch.events if isinstance(event, ActionOutcome)]
        return found


def test_an_outcome_comes_back_as_an_event() -> None:
    desk = Desk()
    desk.messenger.carry(wish("drain"))
    (event,) = desk.heard()
    assert (event.key, event.result, event.message) == ("drain-7f3a", "done", "it is so")
    assert desk.let_go == []


def test_who_has_the_gpus_open_lets_go_while_a_reset_waits_for_that() -> None:
    desk = Desk()
    desk.target.outcome = Outcome(result="deferred", message="ours", retry_after=5.0, node_state=LET_GO)
    desk.messenger.carry(remedy("reset"))
    assert len(desk.let_go) == 1


@pytest.mark.parametrize(
    ("flags", "reason"),
    [(("IDLE",), ""), (("IDLE", "DRAIN"), "bob: fan"), (("MIXED", "DRAIN"), ""),
     (("IDLE", "DRAIN"), "gpuguard:beef gpu3 lost xid79")],
)  # fmt: skip
def test_a_drain_that_was_taken_away_is_told_after_two_looks(flags: tuple[str, ...], reason: str) -> None:
    desk = Desk()
    desk.target.report = msgspec.structs.replace(OURS, state="+".join(flags), flags=flags, reason=reason)
    desk.messenger.look()
    assert desk.heard() == []
    desk.messenger.look()
    (event,) = desk.heard()
    assert (event.key, event.result, event.node_state) == ("update_reason:7f3a:seen", "foreign", "+".join(flags))


@pytest.mark.parametrize(
    "report",
    [
        OURS,
        msgspec.structs.replace(OURS, error="no answer"),
        msgspec.structs.replace(OURS, flags=(), state=""),
        msgspec.structs.replace(OURS, flags=("IDLE", "REBOOT_ISSUED"), state="IDLE+REBOOT_ISSUED", reason=""),
        msgspec.structs.replace(OURS, flags=("HIBERNATING",), state="HIBERNATING", reason=""),
        RuntimeError("crashed"),
    ],
)
def test_what_stands_or_cannot_be_told_is_no_news(report: NodeReport | Exception) -> None:
    desk = Desk()
    desk.target.report = report
    for _ in range(4):
        desk.messenger.look()
    assert desk.heard() == []


def test_one_look_in_between_that_finds_it_begins_anew() -> None:
    desk = Desk()
    gone = msgspec.structs.replace(OURS, state="IDLE", flags=("IDLE",), reason="")
    for report in (gone, OURS, gone, OURS, gone):
        desk.target.report = report
        desk.messenger.look()
    assert desk.heard() == []


def test_nobody_is_asked_while_no_drain_of_ours_stands() -> None:
    desk = Desk(standing=None)
    desk.target.report = RuntimeError("asked")
    desk.messenger.look()
    assert desk.heard() == []


def test_that_nothing_could_be_seen_is_said_once_and_again_after_a_good_look() -> None:
    desk = Desk()
    with structlog.testing.capture_logs() as said:
        for report in (RuntimeError("odd"), RuntimeError("odd"), OURS, RuntimeError("odd")):
            desk.target.report = report
            desk.messenger.look()
    reasons = [line["reason"] for line in said if line["event"] == "drain.unseen"]
    assert reasons == ["slurm crashed with RuntimeError: odd"] * 2
    assert desk.heard() == []
