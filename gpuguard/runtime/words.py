"""Text for people in 80 columns: rows with a label, times, ages; nothing in it can move a terminal's cursor."""

import textwrap
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime

from gpuguard.model.findings import Remedy
from gpuguard.model.health import SubjectHealth
from gpuguard.model.ids import NODE, SubjectId
from gpuguard.model.past import Record

WIDTH = 80
LABEL = 12

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def row(label: str, text: str, *, label_width: int = LABEL, indent: int = 0) -> list[str]:
    """A label and what belongs to it, wrapped beside it."""
    room = WIDTH - label_width - indent
    first, *rest = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    margin = " " * indent
    head = f"{margin}{label:<{label_width}}"
    lines = [head + first] if len(label) < label_width else [margin + label, margin + " " * label_width + first]
    return [line.rstrip() for line in lines + [margin + " " * label_width + line for line in rest]]


def paragraph(text: str, *, indent: int = 0, hanging: int = 0) -> list[str]:
    """The text wrapped to the page; each of its own lines begins anew."""
    out: list[str] = []
    for line in text.splitlines() or [""]:
        out += textwrap.wrap(
            line, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + hanging),
            break_on_hyphens=False,
        ) or [""]  # fmt: skip
    return out


def page(lines: Iterable[str]) -> str:
    """The lines as one text; what a terminal would take as a command is spelled out."""
    return "".join(printable(line) + "\n" for line in lines)


def printable(text: str) -> str:
    """The same text with every character spelled out that is no printable one: logs hold what an attacker chose."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cell(text: str, width: int) -> str:
    """The text as a column of a table has it: printable, and no wider; `~` stands for what was cut off."""
    # Four times as much as could ever be shown: names come from anywhere, and so does their length.
    text = tidy(text[: 4 * width])
    if _columns(text) <= width:
        return text
    while _columns(text) > width - 1:
        text = text[:-1]
    return f"{text}~"


def _columns(text: str) -> int:
    """How many columns of a terminal the text takes: two for each wide letter of East Asia."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def padded(text: str, width: int) -> str:
    """The text as a column of a table that begins at the left."""
    text = cell(text, width)
    return text + " " * (width - _columns(text))


def tidy(text: str) -> str:
    """The text on one line, printable."""
    return printable(" ".join(text.split()))


def date(utc: float | None) -> str:
    """A moment for people, in UTC."""
    if utc is None:
        return "at an unknown time"
    try:
        return datetime.fromtimestamp(utc, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"at {utc:.0f} s since 1970"


def brief(seconds: float) -> str:
    """A length of time in at most three figures, as a table has it."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= 2 * size:
            return f"{min(seconds / size, 99999):.0f}{unit}"
    return f"{max(seconds, 0.0):.0f}s"


def span(seconds: float) -> str:
    """A length of time in its largest unit."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


NEEDS: dict[Remedy, str] = {
    "none": "",
    "test": ", needs a test",
    "reset": ", needs a reset",
    "reboot": ", needs a reboot",
    "replace": ", needs a new part",
}


# Kinds of subjects of which there is one on a node.
LONE = ("disk", NODE)


def many(count: int, what: str) -> str:
    """How many of them there are, in words that agree: `1 job`, `2,000 jobs`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def tries(count: int) -> str:
    """How many attempts."""
    return "1 try" if count == 1 else f"{count:,} tries"


def times(count: int) -> str:
    """How often."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def remembered(record: Record, now: float | None) -> str:
    """What a board or a machine did before: how often, what last, and how much of that still counts."""
    score = record.score if now is None else record.score_at(now)
    last = f"the last {record.last_code} {date(record.last_utc)}"
    return f"{many(record.faults, 'fault')}, {last}; score {score:.2f}, halved every {span(record.half_life)}"


def listed(names: Iterable[str], joint: str = "and") -> str:
    """Names as a sentence has them."""
    *most, last = list(names) or ["nothing"]
    return f"{', '.join(most)} {joint} {last}" if most else last


def named(subject: SubjectHealth) -> str:
    """A subject as people call it: its index where known, its address, or the node."""
    if subject.id == NODE:
        return "node"
    index = f" (index {subject.index})" if subject.index is not None else ""
    return f"{called(subject.id)}{index}"


def called(subject: SubjectId) -> str:
    """A subject's name for people; its kind alone where that says all."""
    kind, _, name = subject.partition(":")
    word = {"gpu": "GPU", "nvswitch": "NVSwitch", "nic": "network card"}.get(kind, kind)
    return word if kind in LONE or not name else f"{word} {tidy(name)}"
