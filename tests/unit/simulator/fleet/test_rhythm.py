"""Which looks are taken, and that one is never taken twice."""

import pytest

from gpuguard.simulator.fleet.rhythm import AROUND, HOLDS, KINDS, WINDOWS, Pace, Rhythm

PACE = Pace()


def beats(rhythm: Rhythm, now: float, until: float) -> list[float]:
    found = []
    while (beat := rhythm.next(now, None)) is not None and beat <= until:
        assert beat > now
        found.append(beat)
        now = beat
    return found


def test_nothing_is_due_while_nothing_happened() -> None:
    assert Rhythm(PACE, 0.0, whole=False).next(100.0, None) is None


def test_a_whole_rhythm_takes_every_beat() -> None:
    rhythm = Rhythm(PACE, 10.0, whole=True)
    assert beats(rhythm, 10.0, 31.0) == [11.0, 16.0, 21.0, 26.0, 31.0]


def test_after_a_change_every_beat_counts_until_no_hold_can_run() -> None:
    rhythm = Rhythm(PACE, 0.0, whole=False)
    rhythm.measured(1000.0)
    found = beats(rhythm, 1000.0, 2000.0)
    assert found[0] == 1001.0
    assert 1000.0 + HOLDS <= found[-1] <= 1000.0 + HOLDS + 5.0
    # And around the end of each window.
    for window in WINDOWS:
        later = beats(rhythm, 1000.0 + window - 200.0, 1000.0 + window + 300.0)
        assert later[0] <= 1000.0 + window <= later[-1]
        assert later[-1] - later[0] <= 2 * AROUND + 5.0


def test_kinds_that_nothing_changed_for_wait_for_those_that_it_did() -> None:
    rhythm = Rhythm(PACE, 0.0, whole=False)
    rhythm.measured(1000.0, ("infiniband",))
    assert beats(rhythm, 1000.0, 1100.0) == [1021.0, 1051.0, 1081.0]


def test_the_last_beat_of_each_kind_is_taken_once() -> None:
    rhythm = Rhythm(PACE, 0.0, whole=False)
    taken = list(rhythm.missed(1000.0))
    assert {kind for _, kind in taken} == set(KINDS)
    assert [at for at, _ in taken] == sorted(at for at, _ in taken)
    assert {kind: at for at, kind in taken}["fast"] == 996.0
    assert list(rhythm.missed(1000.0)) == []
    assert list(rhythm.missed(1001.0)) == [(1001.0, "fast")]


@pytest.mark.parametrize("due", [1000.0, 1000.5, 1020.9, 1021.0])
def test_what_falls_due_is_looked_at_by_the_next_tick(due: float) -> None:
    assert Rhythm(PACE, 0.0, whole=False).next(999.0, due) == 1021.0


def test_beats_far_from_the_start_are_found_again() -> None:
    """Rounding must not give the same beat twice."""
    rhythm = Rhythm(PACE, 3.3333333, whole=True)
    now = 5_184_000.0
    found = beats(rhythm, now, now + 3600.0)
    assert len(found) == pytest.approx(720, abs=240)
    assert len(set(found)) == len(found)


def test_windows_outlive_a_restart_of_the_agent() -> None:
    before = Rhythm(PACE, 0.0, whole=False)
    before.measured(1000.0)
    after = Rhythm(PACE, 5000.0, whole=False, windows=before.windows)
    assert after.next(6000.0, None) == 1000.0 + WINDOWS[0] - AROUND
