"""Too many pages, too many of late, or one that waits."""

import pytest

from gpuguard.detectors.retired_pages import RetiredPages, Settings
from tests.support.looks import Looks

WEEK = 604800.0


def look() -> Looks:
    return Looks(RetiredPages(Settings()))


def pages(looks: Looks, mono: float, single: int, double: int) -> bool:
    return looks.stands(mono, retired_pages_single_bit=single, retired_pages_double_bit=double)["retired_pages"]


def test_the_sum_reaches_the_limit() -> None:
    assert not pages(look(), 1.0, 40, 22)
    assert pages(look(), 1.0, 40, 23)


def test_it_asks_for_a_new_board_and_is_not_self_evident() -> None:
    finding = look()(1.0, retired_pages_single_bit=63, retired_pages_double_bit=0)["retired_pages"]
    assert (finding.severity, finding.remedy, finding.self_evident) == ("critical", "replace", False)
    assert (finding.latched, finding.clears) == (True, ("replace", "ack"))


def test_more_than_fifteen_and_more_than_one_of_late() -> None:
    looks = look()
    assert [pages(looks, mono, 0, double) for mono, double in ((1.0, 14), (2.0, 15), (3.0, 16))] == [False, False, True]


def test_fifteen_are_not_more_than_fifteen_and_one_is_not_more_than_one() -> None:
    looks = look()
    assert [pages(looks, mono, 0, double) for mono, double in ((1.0, 13), (2.0, 15))] == [False, False]
    looks = look()
    assert [pages(looks, mono, 0, double) for mono, double in ((1.0, 30), (2.0, 31))] == [False, False]


def test_what_is_older_than_a_week_is_not_of_late() -> None:
    looks = look()
    assert [pages(looks, mono, 0, d) for mono, d in ((1.0, 15), (2.0, 16), (2.0 + WEEK, 16), (3.0 + WEEK, 17))] == [
        False, False, False, False,
    ]  # fmt: skip


def test_a_page_that_waits_asks_for_a_reset() -> None:
    looks = look()
    finding = looks(1.0, retired_pages_pending=1)["retired_pages_pending"]
    assert (finding.stands, finding.severity, finding.remedy) == (True, "degraded", "reset")
    assert looks.stands(2.0, retired_pages_pending=0) == {"retired_pages_pending": False}


@pytest.mark.parametrize("bad", [None, "N/A"])
def test_half_of_a_sum_is_no_sum(bad: object) -> None:
    assert look()(1.0, retired_pages_single_bit=99, retired_pages_double_bit=bad) == {}
    assert look()(1.0, retired_pages_single_bit=bad, retired_pages_double_bit=99) == {}
    assert look()(1.0, retired_pages_double_bit=99) == {}
    assert look()(1.0, retired_pages_pending=bad) == {}
