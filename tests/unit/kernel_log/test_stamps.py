"""Times that forms share."""

import pytest

from gpuguard.kernel_log.stamps import parse_calendar, parse_iso, split_boot_stamp, strip_colours, unescape_octal


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T02:00:10,250000+02:00", 10.25),
        ("1969-12-31T19:30:10-0430", 10.0),
        ("1970-01-01 00:00:10", 10.0),
        ("1970-01-01 00:00:10 UTC", 10.0),
        ("1970-02-30T00:00:10Z", None),
        ("soon", None),
    ],
)
def test_parse_iso(text: str, utc: float | None) -> None:
    assert parse_iso(text) == utc


def test_parse_calendar_needs_a_year_and_an_english_month() -> None:
    assert parse_calendar("1970", "January", "1", "00:00:10") == 10.0
    assert parse_calendar(None, "Jan", "1", "00:00:10") is None
    assert parse_calendar("1970", "Janvier", "1", "00:00:10") == 10.0
    assert parse_calendar("1970", "Okt", "1", "00:00:10") is None


@pytest.mark.parametrize(
    ("text", "stamp", "rest"),
    [
        ("[    1.500000] hello", 1.5, "hello"),
        ("[    1.500000] [ T12] hello", 1.5, "hello"),
        ("[    1.500000][    C1] hello", 1.5, "hello"),
        ("[    1.500000 <    0.000100>] hello", 1.5, "hello"),
        ("hello", None, "hello"),
        ("[ T12] hello", None, "hello"),
        ("[oops] hello", None, "[oops] hello"),
    ],
)
def test_split_boot_stamp(text: str, stamp: float | None, rest: str) -> None:
    assert split_boot_stamp(text) == (stamp, rest)


def test_escapes() -> None:
    assert strip_colours("\x1b[32mgreen\x1b[0m") == "green"
    assert unescape_octal("a#012b#011c #999 #1") == "a\nb\tc #999 #1"
