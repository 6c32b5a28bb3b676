"""Restarts, levels and silence of sources, on a clock that tests move."""

import threading
from collections.abc import Callable

import pytest

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Action, Outcome, Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, LinesLost, SourceChanged
from gpuguard.model.ids import NODE, BootId, EventId, SubjectId, TokenId
from gpuguard.model.instants import Instant
from gpuguard.runtime.clock import ManualClock, SystemClock
from gpuguard.runtime.supervise import Settings, Supervisor, perform_safely

Emit = Callable[[Batch], None]
EMPTY = Batch(source="fake", events=())


class FakeSource:
    """Runs a script: each call of `run` takes the next step, which emits what it likes and returns or raises."""

    def __init__(self, *steps: Callable[[Emit], None], name: str = "fake") -> None:
        self.name = name
        self.steps = list(steps)
        self.cursors: list[Cursor | None] = []
        self.asked: list[Question] = []
        self.stopped = threading.Event()
        self.stood_in: list[tuple[bool, Instant | None]] = []

    def run(self, emit: Emit, cursor: Cursor | None) -> None:
        self.cursors.append(cursor)
        self.steps.pop(0)(emit)

    def stop(self) -> None:
        self.stopped.set()

    def ask(self, question: Question) -> None:
        self.asked.append(question)


class FakeStandIn(FakeSource):
    """A source that can take over."""

    def stand_in(self, active: bool, since: Instant | None) -> None:
        self.stood_in.append((active, since))


class Watched:
    """A supervisor whose waits take no time: they are recorded, move the clock, and end with the script."""

    def __init__(self, source: FakeSource, *, cursor: Cursor | None = None, optional: bool = False) -> None:
        self.clock = ManualClock()
        self.put: list[Batch] = []
        self.waits: list[float] = []
        self.source = source
        self.supervisor = Supervisor(self.clock, self.put.append, wait=self._wait)
        self.supervisor.add(source, cursor, optional=optional)

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.clock.advance(seconds)
        return not self.source.steps

    def run(self) -> "Watched":
        self.supervisor.keep_running(self.source.name)
        return self

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(e.level, e.reason) for b in self.put for e in b.events if isinstance(e, SourceChanged)]

    @property
    def level(self) -> str:
        return self.supervisor.views()[0].level


def fails(error: Exception, *emitted: Batch) -> Callable[[Emit], None]:
    def step(emit: Emit) -> None:
        for batch in emitted:
            emit(batch)
        raise error

    return step


def lost(clock: ManualClock, count: int) -> Batch:
    event = LinesLost(id=EventId(f"l{count}"), at=clock.now(), source="fake", count=count, reason="gap")
    return Batch(source="fake", events=(event,))


def cursor(position: int) -> Cursor:
    return Cursor(source="fake", boot=BootId("b"), position=str(position))


def test_source_is_blind_until_it_is_heard() -> None:
    watched = Watched(FakeSource(fails(ReadFailed("down"), EMPTY)))
    assert watched.level == "blind"
    watched.run()
    assert watched.changes == [("watching", ""), ("blind", "down")]


def test_a_word_about_its_own_failure_is_no_sign_of_life() -> None:
    told = Batch(source="fake", events=(lost(ManualClock(), 1).events[0],), alive=False)
    watched = Watched(FakeSource(fails(ReadFailed("hangs"), told), fails(ReadFailed("hangs"), told, told))).run()
    assert watched.put.count(told) == 3
    assert {level for level, _ in watched.changes} == {"blind"}
    assert watched.supervisor.views()[0].last_success_utc is None


def test_waits_double_up_to_a_minute() -> None:
    watched = Watched(FakeSource(*[fails(ReadFailed("down")) for _ in range(10)])).run()
    assert watched.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert watched.changes == [("blind", "down")]


def test_quiet_minute_makes_the_next_wait_short_again() -> None:
    def runs_long(emit: Emit) -> None:
        emit(EMPTY)
        watched.clock.advance(60.0)
        raise ReadFailed("down")

    watched = Watched(FakeSource(*[fails(ReadFailed("down"))] * 3, runs_long, fails(ReadFailed("down"))))
    watched.run()
    assert watched.waits == [0.5, 1.0, 2.0, 0.5, 1.0]


def test_any_exception_is_survived() -> None:
    watched = Watched(FakeSource(fails(ZeroDivisionError("oops")), fails(ReadFailed("down")))).run()
    assert watched.changes[0] == ("blind", "ZeroDivisionError: oops")
    assert watched.supervisor.views()[0].restarts == 1


def test_return_without_being_told_is_a_failure() -> None:
    assert Watched(FakeSource(lambda emit: None)).run().changes == [("blind", "ended without being told to")]


def test_restart_resumes_at_the_newest_cursor() -> None:
    first = Batch(source="fake", events=(), cursor=cursor(7))
    source = FakeSource(fails(ReadFailed("down"), first, EMPTY), fails(ReadFailed("down")))
    Watched(source, cursor=cursor(3)).run()
    assert source.cursors == [cursor(3), cursor(7)]


def test_absent_source_is_blind_and_looked_for_seldom() -> None:
    watched = Watched(FakeSource(fails(Absent("no ring")), fails(Absent("no ring")))).run()
    assert watched.changes == [("blind", "no ring")]
    assert watched.waits == [300.0, 300.0]


def test_absent_optional_source_is_not_missed() -> None:
    watched = Watched(FakeSource(fails(Absent("no journal"))), optional=True).run()
    assert watched.changes == []
    assert watched.supervisor.views() == ()


def test_loss_degrades_for_a_minute_and_is_counted() -> None:
    seen: list[str] = []

    def loses(emit: Emit) -> None:
        emit(EMPTY)
        emit(lost(watched.clock, 5))
        emit(lost(watched.clock, 7))
        seen.append(watched.level)
        watched.clock.advance(59.0)
        watched.supervisor.tick()
        seen.append(watched.level)
        watched.clock.advance(1.0)
        watched.supervisor.tick()
        seen.append(watched.level)
        raise ReadFailed("down")

    watched = Watched(FakeSource(loses))
    watched.run()
    assert seen == ["degraded", "degraded", "watching"]
    assert watched.supervisor.views()[0].lost == 12
    assert [level for level, _ in watched.changes] == ["watching", "degraded", "watching", "blind"]


def test_repeated_restarts_degrade() -> None:
    watched = Watched(FakeSource(*[fails(ReadFailed("down"), EMPTY)] * 4)).run()
    assert [level for level, _ in watched.changes] == [
        "watching", "blind", "watching", "blind", "watching", "blind", "degraded", "blind",
    ]  # fmt: skip


def test_silent_source_is_blind_until_it_is_heard_again() -> None:
    seen: list[str] = []

    def hangs(emit: Emit) -> None:
        emit(EMPTY)
        watched.clock.advance(179.0)
        watched.supervisor.tick()
        seen.append(watched.level)
        watched.clock.advance(1.0)
        watched.supervisor.tick()
        seen.append(watched.level)
        emit(EMPTY)
        seen.append(watched.level)
        raise ReadFailed("down")

    watched = Watched(FakeSource(hangs))
    watched.run()
    assert seen == ["watching", "blind", "watching"]
    assert "not heard for 180 s" in watched.changes[1][1]


def test_tick_tells_when_the_next_level_is_due() -> None:
    dues: list[float | None] = []

    def step(emit: Emit) -> None:
        emit(EMPTY)
        dues.append(watched.supervisor.tick())
        emit(lost(watched.clock, 1))
        dues.append(watched.supervisor.tick())
        raise ReadFailed("down")

    watched = Watched(FakeSource(step))
    assert watched.supervisor.tick() == 15.0
    watched.run()
    assert dues == [180.0, 60.0]
    assert watched.supervisor.tick() is None


def test_source_whose_first_read_hangs_becomes_blind() -> None:
    watched = Watched(FakeSource())
    watched.clock.advance(14.0)
    watched.supervisor.tick()
    assert watched.changes == []
    watched.clock.advance(1.0)
    assert watched.supervisor.tick() is None
    assert [level for level, _ in watched.changes] == ["blind"]
    assert "first read hangs" in watched.changes[0][1]


def test_batches_come_behind_the_level_that_they_cause() -> None:
    watched = Watched(FakeSource(fails(ReadFailed("down"), Batch(source="fake", events=(), cursor=cursor(1))))).run()
    kinds: list[AnyEvent | None] = [b.events[0] if b.events else None for b in watched.put]
    assert isinstance(kinds[0], SourceChanged)
    assert kinds[1] is None


def test_stand_in_works_only_while_the_other_is_blind() -> None:
    source = FakeSource(fails(ReadFailed("down"), EMPTY), fails(ReadFailed("down"), EMPTY))
    watched = Watched(source)
    stand_in = FakeStandIn(name="journal")
    watched.supervisor.add(stand_in, stands_in_for="fake")
    watched.run()
    assert [active for active, _ in stand_in.stood_in] == [False, True, False, True]
    assert stand_in.stood_in[1][1] is not None


def test_stand_in_begins_when_the_other_never_came_up() -> None:
    watched = Watched(FakeSource(fails(Absent("no ring"))))
    stand_in = FakeStandIn(name="journal")
    watched.supervisor.add(stand_in, stands_in_for="fake")
    watched.run()
    assert stand_in.stood_in == [(True, None)]


def test_question_goes_to_all_but_the_one_who_saw_it() -> None:
    class Broken(FakeSource):
        def ask(self, question: Question) -> None:
            raise RuntimeError("broken")

    watched = Watched(FakeSource())
    other, broken = FakeSource(name="pci_config"), Broken(name="journal")
    watched.supervisor.add(broken)
    watched.supervisor.add(other)
    at = watched.clock.now()
    question = Question(subject=SubjectId("gpu:0000:7a:00.0"), code="xid79", source="fake", raw="x", at=at)
    assert watched.supervisor.ask(question) == ("journal",)
    assert (watched.source.asked, other.asked) == ([], [question])


def test_stuck_source_does_not_hold_the_others_up() -> None:
    release = threading.Event()
    good = FakeSource(name="good")
    good.steps.append(lambda emit: (emit(Batch(source="good", events=())), good.stopped.wait(10))[0])
    stuck = FakeSource(lambda emit: (emit(Batch(source="stuck", events=())), release.wait(10))[0], name="stuck")
    supervisor = Supervisor(SystemClock(), lambda batch: None)
    supervisor.add(good)
    supervisor.add(stuck)
    supervisor.start()
    assert supervisor.caught_up(10)
    assert supervisor.stop(0.05) == ("stuck",)
    assert good.stopped.is_set()
    release.set()


def test_caught_up_waits_for_the_empty_batch_and_no_longer_than_told() -> None:
    begun = threading.Event()
    source = FakeSource()

    def step(emit: Emit) -> None:
        emit(Batch(source="fake", events=(), cursor=cursor(1)))
        begun.wait(10)
        emit(EMPTY)
        source.stopped.wait(10)

    source.steps.append(step)
    supervisor = Supervisor(SystemClock(), lambda batch: None)
    supervisor.add(source)
    supervisor.start()
    assert not supervisor.caught_up(0.01)
    begun.set()
    assert supervisor.caught_up(10)
    assert supervisor.stop() == ()


@pytest.mark.parametrize("bad", [{"first_wait": 0.0}, {"first_wait": 5.0, "longest_wait": 1.0}])
def test_waits_that_would_spin_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="first_wait"):
        Settings(**bad)  # type: ignore[arg-type]


def test_an_actuator_that_crashes_is_asked_again_later() -> None:
    class Broken:
        name = "broken"

        def perform(self, action: Action) -> Outcome:
            raise RecursionError("an answer nested too deep")

    action = Action(
        key="drain:7f3a:0", verb="drain", token=TokenId("7f3a"), subject=NODE, reason="r", at=ManualClock().now()
    )
    outcome = perform_safely(Broken(), action)  # type: ignore[arg-type]
    assert outcome.result == "deferred"
    assert "RecursionError" in outcome.message
    assert outcome.retry_after
