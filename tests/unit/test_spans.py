"""Holds and windows."""

from gpuguard.model.ids import BootId
from gpuguard.spans import PIECES, Counter, Held
from tests.support.core import instant


def test_it_is_held_from_the_first_time_until_a_break() -> None:
    held = Held().told(True, instant(1.0))
    assert held.told(True, instant(5.0)) is held
    assert held.told(None, instant(7.0)) is held
    assert held.seconds(instant(11.0)) == 10.0
    assert held.told(False, instant(12.0)).seconds(instant(13.0)) == 0.0


def test_a_hold_is_over_after_its_time_and_only_while_it_is_so() -> None:
    held = Held().told(True, instant(1.0))
    assert [held.lasted(10.0, instant(mono)) for mono in (1.0, 10.9, 11.0)] == [False, False, True]
    assert held.lasted(0.0, instant(1.0))
    assert not Held().lasted(0.0, instant(1.0))


def test_a_reboot_is_a_break() -> None:
    held = Held().told(True, instant(1.0))
    again = held.told(True, instant(900.0, BootId("another")))
    assert again.seconds(instant(900.0, BootId("another"))) == 0.0


def test_what_a_counter_showed_first_is_no_growth() -> None:
    counter = Counter().seen(1000, instant(1.0), 60.0)
    assert counter.growth() == 0
    assert counter.seen(1000, instant(2.0), 60.0) is counter
    assert counter.seen(1007, instant(3.0), 60.0).growth() == 7


def test_growth_is_forgotten_after_the_window_and_a_reset_is_none() -> None:
    counter = Counter().seen(5, instant(1.0), 60.0).seen(9, instant(2.0), 60.0)
    assert counter.seen(9, instant(63.0), 60.0).growth() == 0
    assert counter.seen(0, instant(3.0), 60.0).growth() == 4
    assert counter.seen(None, instant(3.0), 60.0) is counter


def test_a_counter_that_never_rests_keeps_a_bounded_memory() -> None:
    counter = Counter()
    for second in range(1000):
        counter = counter.seen(second * 3, instant(float(second)), 300.0)
    assert len(counter.steps) <= PIECES + 1
    assert 800 <= counter.growth() <= 1000


def test_what_grew_while_nobody_looked_is_no_burst_of_this_moment() -> None:
    rate = Counter().seen(0.0, instant(0.0), 300.0, as_rate=True)
    for mono in range(30, 1230, 30):
        rate = rate.seen(0.0, instant(float(mono)), 300.0, as_rate=True)
    # Away for 6000 seconds, in which it grew by 40.
    assert 1.0 < rate.seen(40.0, instant(7200.0), 300.0, as_rate=True).growth() <= 2.0
    assert rate.seen(40.0, instant(1230.0), 300.0, as_rate=True).growth() == 40.0
    # One that is counted, not taken as a rate, loses nothing.
    counted = Counter().seen(0.0, instant(0.0), 300.0)
    assert counted.seen(1.0, instant(7200.0), 300.0).growth() == 1.0


def test_looking_alone_is_written_down_once_a_window() -> None:
    seen = [Counter().seen(5.0, instant(0.0), 300.0, as_rate=True)]
    for mono in range(30, 900, 30):
        seen.append(seen[-1].seen(5.0, instant(float(mono)), 300.0, as_rate=True))
    assert len({id(one) for one in seen}) == 3
