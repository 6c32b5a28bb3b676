"""Told to end: the loop finishes its step, saves, meets the others and goes."""

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from gpuguard.progress import Reporter
from tests.support.listener import Listener


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def reporter(listener: Listener) -> Iterator[Reporter]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    made = Reporter(environ={"GPUGUARD_SOCKET": listener.path})
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def _told(listener: Listener) -> list[object]:
    """What was said of preemption, each once."""
    seen: list[object] = []
    for received in listener.all():
        value = received.message.get("preempt", 0)
        if not seen or seen[-1] != value:
            seen.append(value)
    return seen


def test_a_loop_that_looks_saves_and_leaves(reporter: Reporter, listener: Listener) -> None:
    guard = reporter.on_preempt()
    done = []
    with pytest.raises(SystemExit) as left:  # noqa: PT012 - the whole loop is what is tested
        for number in range(1, 10):
            if number == 4:
                signal.raise_signal(signal.SIGTERM)
            reporter.step(number)
            done.append(number)
            if guard.told:
                guard.saved(number)
                guard.leave()
    assert left.value.code == 0
    assert done == [1, 2, 3, 4]
    assert _told(listener) == [1, 2, 3]


def test_step_does_it_all(reporter: Reporter, listener: Listener) -> None:
    reporter.step(1)
    page = listener.expect().page
    did: list[object] = []
    reporter.on_preempt(
        save=lambda step: did.extend([step, page().phase]), barrier=lambda: did.append("met"), exit_code=75
    )
    signal.raise_signal(signal.SIGTERM)
    assert did == []
    with pytest.raises(SystemExit) as left:
        reporter.step(2)
    assert left.value.code == 75
    assert did == [2, "checkpoint", "met"]
    told = listener.all()
    assert [received.message.get("preempt", 0) for received in told][-1] == 3
    assert told[-1].message["saved"] == 2


def test_it_was_told_and_did_not_obey(reporter: Reporter, listener: Listener) -> None:
    reporter.step(5)
    page = listener.expect().page
    reporter.on_preempt()
    at = page().at
    signal.raise_signal(signal.SIGTERM)
    assert page().preempt == 2
    assert page().at == at  # being told is no progress
    reporter.saved(4)  # what was on its way before, of an earlier step, is not the answer
    assert page().preempt == 2
    reporter.saved(5)
    assert page().preempt == 3


def test_a_save_that_reports_itself_is_not_reported_twice(reporter: Reporter, listener: Listener) -> None:
    reporter.on_preempt(save=lambda step: reporter.saved(step, holds="model optimizer"))
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        reporter.step(1)
    reporter.alive()
    assert listener.all()[-1].message["holds"] == "model optimizer"


def test_a_save_that_fails_is_the_loop_s_own_and_nobody_says_that_it_saved(
    reporter: Reporter, listener: Listener
) -> None:
    def fail(step: int) -> None:
        raise OSError("disk full")

    reporter.on_preempt(save=fail)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(OSError, match="disk full"):
        reporter.step(1)
    assert _told(listener) == [1, 2]


def test_all_leave_at_the_same_step_though_one_alone_was_told(reporter: Reporter, listener: Listener) -> None:
    asked: list[bool] = []
    others = iter([False, True])

    def agree(told: bool) -> bool:
        asked.append(told)
        return told or next(others)

    guard = reporter.on_preempt(agree=agree, every=10)
    for number in range(1, 21):
        reporter.step(number)
        assert guard.told is (number == 20)
    assert asked == [False, False]  # at the steps 10 and 20
    guard.saved(20)
    assert _told(listener) == [1, 2, 3]


def test_the_one_that_was_told_waits_until_all_agree(reporter: Reporter) -> None:
    guard = reporter.on_preempt(agree=lambda told: told, every=4)
    signal.raise_signal(signal.SIGTERM)
    reporter.step(3)
    assert not guard.told
    reporter.step(4)
    assert guard.told


def test_a_handler_from_before_is_called_as_well_and_put_back(reporter: Reporter) -> None:
    heard: list[int] = []

    def before(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    signal.signal(signal.SIGTERM, before)
    with reporter.on_preempt() as guard:
        signal.raise_signal(signal.SIGTERM)
        assert guard.told
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_handler_from_before_need_not_be_called(reporter: Reporter) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    guard = reporter.on_preempt(chain=False)
    signal.raise_signal(signal.SIGTERM)
    assert (guard.told, heard) == (True, [])


def test_standing_down_is_told(reporter: Reporter, listener: Listener) -> None:
    with reporter.on_preempt():
        pass
    assert [received.message.get("preempt", 0) for received in listener.all()] == [1, 0]


def test_a_handler_that_came_after_ours_is_left_in_place(reporter: Reporter) -> None:
    guard = reporter.on_preempt()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guard.disarm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_second_guard_takes_the_place_of_the_first(reporter: Reporter) -> None:
    before = signal.getsignal(signal.SIGTERM)
    first = reporter.on_preempt()
    second = reporter.on_preempt()
    signal.raise_signal(signal.SIGTERM)
    assert (first.told, second.told) == (False, True)
    second.disarm()
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_signals_may_mean_it_and_an_interrupt_does_not_break_the_step(reporter: Reporter) -> None:
    guard = reporter.on_preempt(signals=(signal.SIGUSR1, signal.SIGINT))
    signal.raise_signal(signal.SIGINT)
    assert guard.told
    signal.raise_signal(signal.SIGUSR1)
    guard.disarm()


def test_beyond_the_main_thread_nothing_is_promised(
    reporter: Reporter, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    thread = threading.Thread(target=reporter.on_preempt)
    thread.start()
    thread.join()
    reporter.step(1)
    assert _told(listener) == [0]
    assert "main thread" in caplog.text


def test_what_cannot_be_called_promises_nothing(
    reporter: Reporter, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    guard = reporter.on_preempt(save="soon")  # type: ignore[arg-type]  # that is what is tested
    reporter.step(1)
    assert (guard.told, signal.getsignal(signal.SIGTERM)) == (False, before)
    assert _told(listener) == [0]
    assert "cannot be called" in caplog.text


def test_a_forked_process_may_be_ended_as_ever(reporter: Reporter) -> None:
    before = signal.getsignal(signal.SIGTERM)
    reporter.on_preempt()
    child = os.fork()
    if child == 0:
        os._exit(0 if signal.getsignal(signal.SIGTERM) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
