"""Kept room: whose it is, and the three ways it ends."""

import pytest

from gpuguard.scheduler.hole import Hole, going, opened
from gpuguard.scheduler.plan import Share
from gpuguard.scheduler.settings import Preemption

SHARES = (Share("n1", 15, 1000, 8000, 0),)
RULES = Preemption(grace=120, hold=600)


def hole(*leaving: str, preemptor: str = "big") -> Hole:
    return opened(preemptor, SHARES, leaving, 1000, RULES)


def test_a_hole_outlasts_the_grace_of_its_victims() -> None:
    assert hole("a").until == 1000 + 120 + 600


def test_the_owner_starts_when_the_last_victim_has_gone() -> None:
    both = hole("b", "a", "b")
    assert both.leaving == ("a", "b")
    assert both.standing(1010) == "waiting"
    one = both.without("a")
    assert one.standing(1010) == "waiting"
    assert one.without("b").standing(1010) == "ready"


def test_to_hear_of_an_end_twice_or_of_a_strangers_does_no_harm() -> None:
    one = hole("a", "b").without("a")
    assert one.without("a") == one
    assert one.without("stranger") == one


@pytest.mark.parametrize(
    ("leaving", "now", "standing"),
    [
        (("a",), 1719, "waiting"),
        (("a",), 1720, "timeout"),
        ((), 1720, "ready"),
        ((), 1721, "timeout"),
        # Time jumped.
        ((), 10**9, "timeout"),
        ((), -5, "ready"),
    ],
)
def test_a_hole_does_not_last_for_ever(leaving: tuple[str, ...], now: int, standing: str) -> None:
    assert hole(*leaving).standing(now) == standing


def test_a_hole_ends_with_its_owner() -> None:
    assert hole("a").standing(1001, cancelled=True) == "cancel"
    assert hole().standing(1001, cancelled=True) == "cancel"


def test_who_goes_for_two_is_asked_once() -> None:
    holes = [hole("a", "b", preemptor="one"), hole("b", "c", preemptor="two")]
    assert going(holes) == {"a": "one", "b": "one", "c": "two"}
    assert going([holes[0].without("a"), holes[1]]) == {"b": "one", "c": "two"}
