"""Calendar months in UTC, counted from whole seconds alone.

Units   seconds since 1970-01-01T00:00:00 UTC, of any sign; a month is a number: 12 x year + month - 1
"""

from collections.abc import Iterator
from datetime import date

from gpuguard.scheduler.settings import DAY

_EPOCH = date(1970, 1, 1).toordinal()
# The calendar repeats after 400 years, so years that `date` does not know are moved into those that it does.
_CYCLE_DAYS, _CYCLE_MONTHS = 146_097, 4800


def month_of(second: int) -> int:
    """The month that the second lies in."""
    cycles, day = divmod(second // DAY, _CYCLE_DAYS)
    at = date.fromordinal(_EPOCH + day)
    return 12 * at.year + at.month - 1 + cycles * _CYCLE_MONTHS


def begin_of(month: int) -> int:
    """The month's first second."""
    cycles, rest = divmod(month - 12 * 1970, _CYCLE_MONTHS)
    years, months = divmod(rest, 12)
    return (date(1970 + years, months + 1, 1).toordinal() - _EPOCH + cycles * _CYCLE_DAYS) * DAY


def split(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The seconds from `begin` (counted) to `end` (not) by month; they add up to end - begin."""
    month = month_of(begin)
    while begin < end:
        until = min(end, begin_of(month + 1))
        yield month, until - begin
        begin, month = until, month + 1


def name_of(month: int) -> str:
    """2026-11."""
    year, index = divmod(month, 12)
    return f"{year:04d}-{index + 1:02d}"
