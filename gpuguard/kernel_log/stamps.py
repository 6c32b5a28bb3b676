"""Times, colours and escapes that several printed forms share.

A printed time without a zone is read as UTC: a node's log says nothing better, and the same input must give the same
output everywhere. A time without a year is not a point in time; None.
"""

import re
from datetime import UTC, datetime, timedelta, timezone

ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|([+-])(\d\d):?(\d\d)))?$", re.ASCII
)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_BOOT = re.compile(r"\[ {0,11}(\d{1,12}\.\d{1,9})(?: <[ +\d.]{0,20}>)?\] ?(?:\[ {0,10}[TC]\d{1,10}\] ?)?", re.ASCII)
_CALLER = re.compile(r"\[ {0,10}[TC]\d{1,10}\] ?", re.ASCII)
_OCTAL = re.compile(r"#(0[0-3][0-7]|177)", re.ASCII)


def parse_iso(text: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, None when it is no real time."""
    match = _ISO.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, zone, sign, east_hours, east_minutes = match.groups()
    shift = timedelta()
    if zone and sign:
        shift = timedelta(hours=int(east_hours), minutes=int(east_minutes)) * (-1 if sign == "-" else 1)
    try:
        whole = datetime(
            int(year), int(month), int(day), int(hour), int(minute), min(int(second), 59), tzinfo=timezone(shift)
        )
    except ValueError:
        return None
    return whole.timestamp() + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def parse_calendar(year: str | None, month: str, day: str, clock: str) -> float | None:
    """Seconds since 1970 of a date as `Aug 31 20:29:49` with its year beside it; None without year or English month."""
    number = _MONTHS.get(month[:3].lower())
    if year is None or number is None:
        return None
    hour, minute, second = clock.split(":")
    try:
        return datetime(
            int(year), number, int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC
        ).timestamp()
    except ValueError:
        return None


def strip_colours(text: str) -> str:
    """The text without the colours that `dmesg --color=always` and pagers leave in it."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def split_boot_stamp(text: str) -> tuple[float | None, str]:
    """The kernel's own `[seconds]`, if the text begins with one, and what follows it and the printer's thread.

    Source  kernel/printk/printk.c, print_time and print_caller; dmesg's `--show-delta` adds `<delta>`
    """
    match = _BOOT.match(text)
    if match is None:
        return None, strip_caller(text)
    return float(match[1]), text[match.end() :]


def strip_caller(text: str) -> str:
    """The text without the `[ T12]` or `[ C3]` that CONFIG_PRINTK_CALLER adds."""
    match = _CALLER.match(text)
    return text[match.end() :] if match else text


def unescape_octal(text: str) -> str:
    """Control characters as they were before rsyslog wrote them as `#012`.

    Source  rsyslog, $EscapeControlCharactersOnReceive
    """
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text) if "#" in text else text
