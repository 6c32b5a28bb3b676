"""What a process tells: the page, the datagrams and when they are sent, mistakes, and nobody listening."""

import itertools
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.progress import Reporter, wire
from gpuguard.progress.reporter import PATIENCE, REPEAT, SPACING
from gpuguard.progress.transport import Mail, SharedPage
from tests.support.listener import Listener

ENVIRON = {"RANK": "3", "WORLD_SIZE": "8", "SLURM_JOB_ID": "8123"}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(listener: Listener, clock: Clock) -> Iterator[Reporter]:
    made = Reporter(environ={**ENVIRON, "GPUGUARD_SOCKET": listener.path}, clock=clock)
    yield made
    made.close()


@pytest.fixture
def bare(listener: Listener, clock: Clock) -> Iterator[Reporter]:
    """One on a system without memfd."""
    made = Reporter(environ={**ENVIRON, "GPUGUARD_SOCKET": listener.path}, clock=clock, page=lambda: None)
    yield made
    made.close()


def test_the_first_call_announces_the_rank_and_hands_over_a_page(reporter: Reporter, listener: Listener) -> None:
    reporter.step(41, loss=0.5)
    first = listener.expect()
    assert first.message["job"] == "slurm/8123"
    assert (first.message["rank"], first.message["world"], first.message["restart"]) == (3, 8, 0)
    assert (first.message["step"], first.message["phase"], first.message["loss"]) == (41, "step", 0.5)
    assert (first.message["at"], first.message["since"]) == (1000.0, 1000.0)
    assert first.pid == os.getpid()
    page = first.page()
    assert (page.step, page.phase, page.loss, page.at) == (41, "step", 0.5, 1000.0)
    assert not {"done", "saved", "preempt", "blocked", "holds"} & first.message.keys()
    assert reporter.heard


def test_steps_go_through_the_page_alone(reporter: Reporter, listener: Listener, clock: Clock) -> None:
    reporter.step(1)
    first = listener.expect()
    for number in range(2, 500):
        clock.now += 0.01
        reporter.step(number)
    assert listener.take() is None
    page = first.page()
    assert (page.step, page.loss) == (499, None)
    assert page.at == pytest.approx(clock.now)
    assert page.n > first.message["n"]  # type: ignore[operator]  # decode holds it to be a number


def test_the_page_is_sealed(reporter: Reporter, listener: Listener) -> None:
    reporter.alive()
    fd = listener.expect().fd
    assert fd is not None
    for size in (0, 2 * wire.PAGE_SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


def test_it_is_repeated_for_an_agent_that_came_later(reporter: Reporter, listener: Listener, clock: Clock) -> None:
    reporter.step(1)
    listener.all()
    clock.now += REPEAT - 0.01
    reporter.step(2)
    assert listener.take() is None
    clock.now += 0.01
    reporter.step(3)
    again = listener.expect()
    assert again.message["step"] == 3
    assert again.page().step == 3


def test_start_ends_with_the_first_step(reporter: Reporter, listener: Listener, clock: Clock) -> None:
    reporter.alive()
    assert listener.expect().message["phase"] == "start"
    clock.now += 50
    reporter.step(1)
    told = listener.expect()
    assert (told.message["phase"], told.message["since"]) == ("step", 1050.0)


def test_phases_nest_and_return_whatever_happens(reporter: Reporter, listener: Listener, clock: Clock) -> None:
    reporter.step(1)
    page = listener.expect().page
    seen = []
    with pytest.raises(KeyError), reporter.phase("evaluation"):  # noqa: PT012 - the block is what is tested
        seen.append(page().phase)
        clock.now += 1
        with reporter.phase("checkpoint"):
            seen.append(page().phase)
            clock.now += 1
        seen.append(page().phase)
        raise KeyError
    seen.append(page().phase)
    assert seen == ["evaluation", "checkpoint", "evaluation", "step"]
    assert (page().at, page().since) == (1002.0, 1002.0)


def test_the_first_step_within_a_phase_does_not_end_the_phase(reporter: Reporter, listener: Listener) -> None:
    with reporter.phase("compile"):
        reporter.step(1)
        page = listener.expect().page
        assert page().phase == "compile"
    assert page().phase == "step"


def test_a_phase_that_is_left_out_of_order_leaves_the_right_one(reporter: Reporter, listener: Listener) -> None:
    outer, inner = reporter.phase("a"), reporter.phase("b")
    outer.__enter__()
    inner.__enter__()
    page = listener.expect().page
    outer.__exit__(None, None, None)
    assert page().phase == "b"
    inner.__exit__(None, None, None)
    assert page().phase == "start"


def test_a_new_phase_is_told_at_once_but_not_a_hundred_times_a_second(
    reporter: Reporter, listener: Listener, clock: Clock
) -> None:
    reporter.step(1)
    listener.all()
    clock.now += 5
    for _ in range(1000):
        clock.now += 0.001
        with reporter.phase("evaluation"):
            pass
    told = listener.all()
    assert told[0].message["phase"] == "evaluation"
    assert 5 <= len(told) <= 1.0 / SPACING + 1
    clock.now += SPACING
    reporter.alive()
    assert listener.expect().message["phase"] == "step"


def test_a_save_within_its_phase_held_up_the_loop_as_long_as_the_phase(
    reporter: Reporter, listener: Listener, clock: Clock
) -> None:
    reporter.step(1)
    clock.now += 1
    with reporter.phase("checkpoint"):
        clock.now += 20
        reporter.saved(1)
        clock.now += 5
    clock.now += 1
    reporter.alive()
    told = listener.all()
    assert [received.message.get("blocked") for received in told] == [None, None, 20.0, 25.0]
    assert told[-1].message["saved_at"] == 1021.0


def test_a_save_that_completes_later_held_it_up_only_for_its_phase(
    reporter: Reporter, listener: Listener, clock: Clock
) -> None:
    with reporter.phase("checkpoint"):
        clock.now += 2
    clock.now += 60
    reporter.step(9)
    reporter.saved(8)
    told = listener.all()[-1].message
    assert (told["saved"], told["saved_at"], told["blocked"]) == (8, 1062.0, 2.0)
    reporter.saved(9)  # nothing says how this one was made
    assert "blocked" not in listener.all()[-1].message


def test_what_a_checkpoint_holds(reporter: Reporter, listener: Listener) -> None:
    reporter.init(holds="seeds, model")
    reporter.saved(1)
    assert listener.all()[-1].message["holds"] == "model seeds"
    reporter.saved(2, holds=["model", "optimizer"])
    assert listener.all()[-1].message["holds"] == "model optimizer"
    reporter.saved(3)
    assert listener.all()[-1].message["holds"] == "model seeds"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number(reporter: Reporter, listener: Listener, loss: float) -> None:
    reporter.step(1, loss=loss)
    told = listener.expect()
    read = told.message["loss"]
    assert isinstance(read, float)
    assert math.isnan(read)
    written = told.page().loss
    assert written is not None
    assert math.isnan(written)


def test_done_is_told_at_once_and_stands_in_the_page(reporter: Reporter, listener: Listener) -> None:
    reporter.step(1)
    first = listener.expect()
    assert first.page().done is False
    reporter.done()
    assert listener.expect().message["done"] is True
    reporter.close()
    assert first.page().done is True


def test_closing_says_nothing(reporter: Reporter, listener: Listener) -> None:
    reporter.step(1)
    first = listener.expect()
    reporter.close()
    assert listener.take() is None
    assert first.page().done is False


def test_without_a_page_datagrams_carry_the_steps_ten_a_second(
    bare: Reporter, listener: Listener, clock: Clock
) -> None:
    told = []
    for number in range(1000):
        clock.now += 0.001
        bare.step(number)
        told += listener.all()
    assert [received.fd for received in told] == [None] * len(told)
    assert 9 <= len(told) <= 11
    assert told[-1].message["step"] >= 890  # type: ignore[operator]  # decode holds it to be a number


@pytest.mark.parametrize("error", [OSError("no"), AttributeError("no")])
def test_a_system_without_such_memory_goes_without(
    monkeypatch: pytest.MonkeyPatch, listener: Listener, error: Exception
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise error

    monkeypatch.setattr(os, "memfd_create", refuse)
    reporter = Reporter(environ={"GPUGUARD_SOCKET": listener.path})
    reporter.step(4)
    told = listener.expect()
    assert (told.fd, told.message["step"]) == (None, 4)
    reporter.close()


def test_an_older_kernel_does_not_know_one_of_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def older(name: str, flags: int) -> int:
        if flags & 0x8:
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", older)
    page = SharedPage()
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)
    page.close()


def test_nobody_listens_and_it_is_tried_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, reporter: Reporter, listener: Listener
) -> None:
    listener.fall_silent()
    tries = []
    send = Mail.send

    def counted(mail: Mail, data: bytes, fd: int | None) -> bool:
        tries.append(clock.now)
        return send(mail, data, fd)

    monkeypatch.setattr(Mail, "send", counted)
    for number in range(60_000):
        clock.now += 0.001
        with reporter.phase("evaluation"):
            reporter.step(number)
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert gaps[0] == pytest.approx(PATIENCE[0], abs=0.01)
    assert gaps[-1] == pytest.approx(PATIENCE[1], abs=0.01)
    assert len(tries) < 15
    assert not reporter.heard

    listener.listen()
    clock.now += PATIENCE[1]
    reporter.step(5)
    assert listener.expect().page().step == 5
    assert reporter.heard


def test_the_end_is_told_even_to_one_who_did_not_listen_a_moment_ago(reporter: Reporter, listener: Listener) -> None:
    listener.fall_silent()
    reporter.step(1)
    listener.listen()
    reporter.done()
    assert listener.expect().message["done"] is True


def test_a_full_queue_is_no_reason_to_wait(reporter: Reporter, listener: Listener, clock: Clock) -> None:
    for number in range(5000):
        clock.now += REPEAT
        reporter.step(number)
    assert not reporter.heard
    listener.all()
    clock.now += REPEAT
    reporter.step(6000)
    assert listener.expect().message["step"] == 6000


@pytest.mark.parametrize("path", ["", "/" + "x" * 200, "/dev/null", "relative/none"])
def test_a_socket_that_is_none_harms_nobody(path: str) -> None:
    reporter = Reporter(environ={"GPUGUARD_SOCKET": path})
    reporter.step(1)
    with reporter.phase("checkpoint"):
        reporter.saved(1)
    reporter.done()
    assert not reporter.heard
    reporter.close()


class Broken:
    """An argument that fails when it is looked at, as a tensor of a device that has gone does."""

    def __index__(self) -> int:
        raise RuntimeError("device lost")

    def __float__(self) -> float:
        raise RuntimeError("device lost")


def test_wrong_arguments_are_told_once_and_count_as_a_word_of_life(
    reporter: Reporter, listener: Listener, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reporter.step(7, loss=0.5)
    page = listener.expect().page
    clock.now += 3
    with caplog.at_level(logging.WARNING, "gpuguard.progress"):
        for wrong in ("8", 8.5, None, 2**63, Broken()):
            reporter.step(wrong)  # type: ignore[arg-type]  # that is what is tested
        reporter.step(7, loss=Broken())
        reporter.step(7, loss="x")  # type: ignore[arg-type]  # the same
        reporter.saved("x")  # type: ignore[arg-type]  # the same
        reporter.saved(5, holds="everything")
        reporter.init(rank=-1)
        reporter.init(rank="x")  # type: ignore[arg-type]  # the same
        reporter.init(job=7)  # type: ignore[arg-type]  # the same
        with reporter.phase(None):  # type: ignore[arg-type]  # the same
            pass
    assert sorted(record.getMessage().partition(":")[0] for record in caplog.records) == [
        "init", "phase", "saved", "step",
    ]  # fmt: skip
    assert (page().step, page().loss, page().saved, page().at) == (7, 0.5, None, 1003.0)


def test_wrong_arguments_of_init_leave_what_the_environment_says(reporter: Reporter, listener: Listener) -> None:
    reporter.init(rank=2**40)
    assert listener.expect().message["rank"] == 3


def test_a_log_that_fails_harms_nobody(reporter: Reporter) -> None:
    class Failing(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("disk full")

    handler = Failing()
    log = logging.getLogger("gpuguard.progress")
    log.addHandler(handler)
    try:
        reporter.step("x")  # type: ignore[arg-type]  # that is what is tested
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize(("name", "told"), [("warm\nup", "warm_up"), ("Prüfung", "Prüfung"), ('say "hi"', 'say "hi"')])
def test_any_word_is_a_phase(reporter: Reporter, listener: Listener, name: str, told: str) -> None:
    with reporter.phase(name):
        received = listener.expect()
        assert received.message["phase"] == received.page().phase == told


def test_init_makes_it_another_rank_with_a_page_of_its_own(reporter: Reporter, listener: Listener) -> None:
    reporter.step(5)
    before = listener.expect()
    reporter.init(job="big", rank=0, world=2, restart=1)
    reporter.step(1)
    told = listener.all()
    assert [told[0].message[key] for key in ("job", "rank", "world", "restart")] == ["big", 0, 2, 1]
    assert "step" not in told[0].message
    assert told[0].page().step == 1
    assert before.page().step == 5
    assert told[0].message["n"] > before.message["n"]  # type: ignore[operator]  # decode holds both to be numbers


def test_the_module_speaks_for_the_process() -> None:
    from gpuguard import progress

    for name in ("init", "step", "phase", "alive", "saved", "done", "on_preempt"):
        assert getattr(progress, name) == getattr(progress.this_process, name)


def test_a_loss_that_is_told_again_and_again_and_does_not_move(reporter: Reporter, listener: Listener) -> None:
    for step, loss in ((1, 2.5), (2, None), (101, 2.5), (201, 2.5)):
        reporter.step(step, loss)
    shared = listener.expect()
    assert shared.page().flat == 200
    reporter.step(301)
    assert shared.page().flat == 200, "nobody told it anew"
    reporter.step(302, 2.4)
    assert shared.page().flat == 0
    for step in (303, 403):
        reporter.step(step, float("nan"))
    assert shared.page().flat == 100, "it is none again: not one step that was skipped"
    reporter.step(404, 2.4)
    assert shared.page().flat == 0


def test_a_program_that_closes_what_it_did_not_open_is_still_heard(
    reporter: Reporter, listener: Listener, clock: Clock, tmp_path: Path
) -> None:
    """As daemons do. The numbers are other files' by then: none of those is closed, and the next word opens anew."""
    reporter.step(1)
    listener.expect()
    page, mail = reporter._page, reporter._mail._socket
    assert page is not None
    assert mail is not None
    taken = [page.fd, mail.fileno()]
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    for number in taken:
        os.dup2(other, number)
    for step in (2, 3):  # the first finds that nobody takes it
        clock.now += REPEAT
        reporter.step(step)
    heard = listener.expect()
    assert (heard.message["step"], heard.page().step) == (3, 3)
    reporter.close()
    assert all(os.fstat(number).st_ino == os.fstat(other).st_ino for number in taken)
    for number in (*taken, other):
        os.close(number)


def test_a_descriptor_that_is_closed_already_harms_nobody(reporter: Reporter, listener: Listener) -> None:
    reporter.step(1)
    assert reporter._page is not None
    assert reporter._mail._socket is not None
    os.close(reporter._page.fd)
    os.close(reporter._mail._socket.fileno())
    reporter.close()
    reporter.step(2)


def test_the_first_loss_is_none_before_it_is_none_again(reporter: Reporter, listener: Listener) -> None:
    reporter.step(500, float("nan"))
    assert listener.expect().page().flat == 0
