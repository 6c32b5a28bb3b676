"""The loop: on disk first, then outside; retries, refusals and a disk that says no."""

import msgspec
import pytest

from gpuguard.errors import StoreFailed
from gpuguard.health import policy
from gpuguard.health.state import Health
from gpuguard.model.actions import Action, Question
from gpuguard.model.events import ActionOutcome, Batch, Cursor, LogLine
from gpuguard.model.health import Transition
from gpuguard.model.ids import EventId
from gpuguard.model.story import Change, OwedAction
from gpuguard.runtime.clock import ManualClock
from gpuguard.runtime.loop import Loop, Settings
from gpuguard.runtime.tally import Tally
from tests.support.core import ACTING, detectors, line

FAULT = "NVRM: Xid (PCI:0000:3b:00): 120, GSP task exception"
PROGRAM = "NVRM: Xid (PCI:0000:3b:00): 43, pid=812, name=train, Ch 00000008"


class MemoryStore:
    """Keeps changes in a list; says no while `refusing`."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.known: dict[str, OwedAction] = {}
        self.refusing = False

    def commit(self, change: Change) -> None:
        if self.refusing:
            raise StoreFailed("the disk is full; free some space")
        if change:
            self.changes.append(change)
            self.known.update({o.action.key: o for o in change.actions})

    def actions(self) -> tuple[OwedAction, ...]:
        return tuple(self.known.values())


class Bench:
    """A loop with everything around it in reach."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        settings: Settings | None = None,
        rules: policy.Settings = ACTING,
    ) -> None:
        self.clock = ManualClock(mono=1000.0)
        self.store = store or MemoryStore()
        self.sent: list[Action] = []
        self.asked: list[Question] = []
        self.told: list[Transition] = []
        self.tally = Tally(version="0", mode="drain", policy="default")
        self.loop = Loop(
            store=self.store, health=Health(now=self.clock.now()), detectors=detectors(), clock=self.clock,  # type: ignore[arg-type]
            tally=self.tally, rules=rules, settings=settings or Settings(), act=self.sent.append,
            ask=self.asked.append, told=self.told.append,
        )  # fmt: skip

    def hear(self, text: str, position: str = "1") -> LogLine:
        now = self.clock.now()
        event = msgspec.structs.replace(line(text, now.mono), at=now, id=EventId(f"kmsg:{position}"))
        cursor = Cursor(source="kmsg", boot=now.boot, position=position)
        self.loop.take(Batch(source="kmsg", events=(event,), cursor=cursor))
        return event

    def answer(self, result: str, retry_after: float | None = None, node_state: str | None = None) -> None:
        action = self.sent[-1]
        now = self.clock.now()
        outcome = ActionOutcome(
            id=EventId(f"o{now.mono}"),
            at=now,
            key=action.key,
            result=result,
            message="",
            retry_after=retry_after,
            node_state=node_state,
        )
        self.loop.take(Batch(source="actuator", events=(outcome,)))


def test_the_verdict_is_on_disk_before_the_action_is_sent() -> None:
    bench = Bench()
    seen: list[int] = []
    bench.loop._act = lambda action: seen.append(len(bench.store.changes))
    bench.hear(FAULT)
    assert seen == [1]
    change = bench.store.changes[0]
    assert change.actions[0].state == "owed"
    assert change.cursors[0].position == "1"
    assert [e.raw for e in change.events] == [FAULT]
    assert any(key.startswith("subject/gpu:") for key in change.puts)


def test_counts_alone_wait_and_their_cursor_waits_with_them() -> None:
    bench = Bench()
    bench.hear(PROGRAM, "1")
    written = len(bench.store.changes)
    for n in range(2, 50):
        bench.hear(PROGRAM, str(n))
    assert len(bench.store.changes) == written
    bench.clock.advance(5.0)
    bench.loop.write_when_due()
    assert bench.store.changes[-1].cursors[0].position == "49"


def test_nothing_is_acted_on_while_the_disk_refuses_and_all_of_it_afterwards() -> None:
    bench = Bench()
    bench.store.refusing = True
    bench.hear(FAULT)
    assert bench.sent == []
    assert bench.tally.store_errors == 1
    assert any(t.finding == "degraded_store" for t in bench.told)
    bench.store.refusing = False
    bench.clock.advance(2.0)
    bench.loop.write_when_due()
    bench.loop.send_owed()
    assert [a.verb for a in bench.sent] == ["drain"]
    assert bench.store.changes[0].cursors[0].position == "1"
    bench.clock.advance(1.0)
    bench.loop.write_when_due(now=True)
    assert any(t.finding == "degraded_store" and t.state == "healthy" for t in bench.told)


def test_a_disk_that_refuses_is_not_asked_all_the_time() -> None:
    bench = Bench()
    bench.store.refusing = True
    bench.hear(FAULT)
    for n in range(100):
        bench.hear(PROGRAM, str(n))
    assert bench.tally.store_errors == 1


def test_a_deferred_action_is_sent_again_later_and_later() -> None:
    bench = Bench()
    bench.hear(FAULT)
    waits = []
    for _ in range(4):
        bench.answer("deferred", retry_after=2.0)
        assert bench.loop.idle_for() > 1.0
        wait = 0.0
        before = len(bench.sent)
        while len(bench.sent) == before:
            bench.clock.advance(0.5)
            wait += 0.5
            bench.loop.send_owed()
        waits.append(wait)
    assert waits == [2.0, 4.0, 8.0, 16.0]
    assert len({a.key for a in bench.sent}) == 1


def test_tries_are_finite_and_the_end_is_told() -> None:
    bench = Bench(settings=Settings(tries=3))
    bench.hear(FAULT)
    for _ in range(3):
        bench.answer("deferred", retry_after=1.0)
        bench.clock.advance(10.0)
        bench.loop.send_owed()
    assert bench.loop.owed == {}
    owed = bench.store.known[bench.sent[0].key]
    assert (owed.state, owed.tries) == ("refused", 3)
    assert "gave up" in owed.message


def test_what_was_owed_is_sent_again_after_a_restart() -> None:
    first = Bench()
    first.hear(FAULT)
    again = Bench(store=first.store)
    again.loop.send_owed()
    assert [a.key for a in again.sent] == [first.sent[0].key]


def test_what_is_done_is_not_sent_again_after_a_restart() -> None:
    first = Bench()
    first.hear(FAULT)
    first.answer("done")
    again = Bench(store=first.store)
    again.loop.send_owed()
    assert again.sent == []
    assert again.loop.action_counts()["done"] == 1


@pytest.mark.parametrize("result", ["refused", "done"])
def test_an_answer_that_ends_it_ends_it(result: str) -> None:
    bench = Bench()
    bench.hear(FAULT)
    bench.answer(result)
    bench.clock.advance(1000.0)
    bench.loop.send_owed()
    assert len(bench.sent) == 1
    assert bench.store.known[bench.sent[0].key].state == result


def test_a_foreign_drain_is_looked_at_again_much_later() -> None:
    bench = Bench()
    bench.hear(FAULT)
    bench.answer("foreign")
    bench.clock.advance(299.0)
    bench.loop.send_owed()
    assert len(bench.sent) == 1
    bench.clock.advance(1.5)
    bench.loop.send_owed()
    assert len(bench.sent) == 2


def test_one_action_at_a_time() -> None:
    bench = Bench()
    bench.hear(FAULT)
    bench.loop.send_owed()
    bench.loop.send_owed()
    assert len(bench.sent) == 1


def test_an_unconfirmed_fault_asks_for_a_witness_once_it_is_on_disk() -> None:
    bench = Bench()
    bench.store.refusing = True
    bench.hear("NVRM: Xid (PCI:0000:3b:00): 109, pid=1, name=x, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x1")
    assert bench.asked == []
    bench.store.refusing = False
    bench.clock.advance(2.0)
    bench.loop.write_when_due()
    assert [q.code for q in bench.asked] == ["xid109"]


def test_an_idle_loop_sleeps_until_its_tick() -> None:
    bench = Bench()
    assert bench.loop.idle_for() == pytest.approx(30.0)
    bench.clock.advance(30.0)
    assert bench.loop.tick_when_due()
    assert bench.store.changes == []


def test_the_latency_of_a_live_verdict_is_measured_and_a_backlogs_is_not() -> None:
    bench = Bench()
    bench.hear(FAULT)
    assert bench.tally.facts((), {}, 0).latency_count == 1


def test_a_target_that_answers_not_yet_is_asked_for_as_long_as_it_takes() -> None:
    bench = Bench(settings=Settings(tries=3, retry_longest=10.0))
    bench.hear(FAULT)
    for _ in range(20):
        bench.answer("deferred", node_state="MAINT")
        bench.clock.advance(11.0)
        bench.loop.send_owed()
    assert len(bench.sent) == 21
    assert bench.loop.health.drain is not None
    assert bench.loop.health.drain.state == "owed"


def test_giving_up_is_told_to_the_core() -> None:
    bench = Bench(settings=Settings(tries=1))
    bench.hear(FAULT)
    bench.answer("deferred")
    assert bench.loop.health.drain is not None
    assert bench.loop.health.drain.state == "refused"


def test_a_target_cannot_set_our_pace() -> None:
    bench = Bench()
    bench.hear(FAULT)
    bench.answer("deferred", retry_after=-5.0)
    bench.loop.send_owed()
    assert len(bench.sent) == 1


def test_while_observing_nothing_that_is_owed_for_real_is_sent() -> None:
    first = Bench()
    first.hear(FAULT)
    watching = Bench(store=first.store, rules=policy.Settings(mode="observe"))
    watching.loop.send_owed()
    assert watching.sent == []
    assert watching.loop.idle_for() > 1.0
    acting = Bench(store=first.store)
    acting.loop.send_owed()
    assert len(acting.sent) == 1


def test_a_refusing_disk_lets_the_loop_sleep_and_is_tried_soon_for_a_verdict() -> None:
    bench = Bench()
    bench.store.refusing = True
    bench.hear(FAULT)
    assert bench.loop.idle_for() > 0.5
    for _ in range(20):
        bench.clock.advance(5.1)
        bench.loop.write_when_due()
    assert bench.tally.store_errors >= 15


@pytest.mark.parametrize("wrong", [{"tick": 0.0}, {"tries": 0}, {"retry_first": 9.0, "retry_longest": 1.0}])
def test_settings_that_could_spin_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).partition("_")[0]):
        Settings(**wrong)  # type: ignore[arg-type]


def test_only_silences_in_a_row_are_given_up() -> None:
    bench = Bench(settings=Settings(tries=3, retry_longest=10.0))
    bench.hear(FAULT)
    for answer, state in (("foreign", "IDLE"), ("deferred", None), ("deferred", "DOWN"), ("deferred", None)):
        bench.answer(answer, node_state=state)
        bench.clock.advance(11.0)
        bench.loop.send_owed()
    assert bench.loop.owed
    bench.answer("deferred")
    bench.clock.advance(11.0)
    bench.loop.send_owed()
    bench.answer("deferred")
    assert bench.loop.owed == {}
