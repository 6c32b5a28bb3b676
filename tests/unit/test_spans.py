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
