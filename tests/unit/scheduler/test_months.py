"""Months from seconds, without a clock."""

import calendar

import pytest

from gpuguard.scheduler.months import begin_of, month_of, name_of, split

DAY = 86400


def second(year: int, month: int, day: int, hour: int = 0) -> int:
    return calendar.timegm((year, month, day, hour, 0, 0))


@pytest.mark.parametrize(
    ("at", "name"),
    [
        (0, "1970-01"), (-1, "1969-12"), (second(2024, 2, 29, 23), "2024-02"), (second(2024, 3, 1), "2024-03"),
        (second(2024, 3, 1) - 1, "2024-02"), (second(2100, 2, 28) + DAY, "2100-03"), (second(2026, 12, 31), "2026-12"),
        (second(9999, 12, 31) + DAY, "10000-01"),
    ],
)  # fmt: skip
def test_a_second_has_its_month(at: int, name: str) -> None:
    assert name_of(month_of(at)) == name


def test_a_month_begins_where_the_one_before_has_ended() -> None:
    for month in range(12 * 1890, 12 * 2110, 7):
        begin = begin_of(month)
        assert (month_of(begin), month_of(begin - 1)) == (month, month - 1)
        days = calendar.monthrange(*divmod(month, 12)[:1], month % 12 + 1)[1]
        assert begin_of(month + 1) - begin == days * DAY


def test_a_span_is_split_at_the_ends_of_months() -> None:
    begin, end = second(2026, 1, 31, 22), second(2026, 3, 1, 1)
    assert [(name_of(month), seconds) for month, seconds in split(begin, end)] == [
        ("2026-01", 7200),
        ("2026-02", 28 * DAY),
        ("2026-03", 3600),
    ]
    assert list(split(end, end)) == []
