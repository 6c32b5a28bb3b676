"""The loop of a source: a sweep at once, one in every interval, and signs of life between."""

import threading
from collections.abc import Callable

import pytest

from gpuguard.errors import Absent
from gpuguard.model.events import Batch, Sweep
from gpuguard.model.ids import NODE
from gpuguard.model.instants import Instant
from gpuguard.runtime.clock import ManualClock, SystemClock
from gpuguard.sweeping import rounds
from gpuguard.sweeping.rounds import Rounds, Rows


def run(read: Callable[[Instant], Rows], batches: int, every: float = 0.001) -> list[Batch]:
    """The first batches of a source."""
    came: list[Batch] = []
    enough = threading.Event()
    source = Rounds("edac", read, SystemClock(), every=every)

    def emit(batch: Batch) -> None:
        came.append(batch)
        if len(came) >= batches:
            source.stop()
            enough.set()

    thread = threading.Thread(target=source.run, args=(emit, None), daemon=True)
    thread.start()
    assert enough.wait(10)
    thread.join(10)
    assert not thread.is_alive()
    return came


def test_a_sweep_comes_at_once_then_the_word_that_all_was_read_then_more_sweeps() -> None:
    came = run(lambda now: {NODE: {"edac_corrected_total": 1}}, 4)
    assert [len(batch.events) for batch in came] == [1, 0, 1, 1]
    first = came[0].events[0]
    assert isinstance(first, Sweep)
    assert (first.source, first.rate, first.rows) == ("edac", "medium", {NODE: {"edac_corrected_total": 1}})
    assert first.valid_for == pytest.approx(0.003)
    assert len({batch.events[0].id for batch in came if batch.events}) == 3


def test_a_sweep_without_rows_is_a_sign_of_life_only() -> None:
    assert [batch.events for batch in run(lambda now: {}, 2)] == [(), ()]


def test_long_intervals_have_signs_of_life_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SIGN_OF_LIFE", 0.001)
    came = run(lambda now: {NODE: {"edac_corrected_total": 1}}, 5, every=600.0)
    assert [len(batch.events) for batch in came] == [1, 0, 0, 0, 0]


def test_what_it_reads_may_want_it_to_come_back_sooner() -> None:
    rests = iter((0.001, 0.001, 600.0))
    came: list[Batch] = []
    done = threading.Event()

    def rest() -> float:
        seconds = next(rests)
        if seconds > 1:
            source.stop()
            done.set()
        return seconds

    source = Rounds("edac", lambda now: {NODE: {}}, SystemClock(), every=600.0, rest=rest)
    threading.Thread(target=source.run, args=(came.append, None), daemon=True).start()
    assert done.wait(10)
    assert [len(batch.events) for batch in came] == [1, 0, 1, 1]


def test_what_is_absent_ends_it() -> None:
    def read(now: Instant) -> Rows:
        raise Absent("no such thing")

    with pytest.raises(Absent, match="no such thing"):
        Rounds("edac", read, ManualClock(), every=1.0).run(lambda batch: None, None)
