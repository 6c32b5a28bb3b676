"""Tables of text: rows by column name, and cells read strictly, with every mistake named by line and column.

A trace is somebody else's file. What is odd in it is told with its place and a next step, and then nothing of the
file is used: half a trace gives figures that look like those of a whole one.
"""

import csv
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpuguard.errors import ConfigInvalid

if TYPE_CHECKING:
    from _csv import Reader

MOST_MISTAKES = 10
"""A file of another kind has one in every line; ten show what is wrong with it."""

MOST_SECONDS = 10**10  # three hundred years
MOST_GPUS = 10**6
MOST_CORES = 10**7
MOST_MIB = 10**12
LONGEST_NAME = 200

# ASCII digits alone: int() and float() also take 1_000, and digits of other scripts.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LONGEST_NUMBER = 40
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Mistakes:
    """What is wrong with one file so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._told: list[str] = []

    def at(self, line: int, column: str, what: str) -> None:
        """One more. Raises ConfigInvalid when there are enough of them to know what is wrong."""
        self._told.append(f"{self.file} line {line}, column {column}: {what}")
        if len(self._told) == MOST_MISTAKES:
            self._told.append(f"{self.file}: the rest was not read; mend these first")
            self.settle()

    def __len__(self) -> int:
        return len(self._told)

    def settle(self) -> None:
        """Nothing was wrong. Raises ConfigInvalid otherwise, with all that was."""
        if self._told:
            raise ConfigInvalid(self._told)


def rows(
    lines: Iterable[str], mistakes: Mistakes, *, required: Sequence[str], known: Collection[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Number of its line, and the cells that are not empty by column, of each row; first (line 1) the header's.

    Shape   the header names the columns, in any order; columns that are not `known` are left out of the rows. Every row
            has as many cells as the header. Blank lines are no rows, nor are those of empty cells alone, which
            spreadsheets leave
    Raises  ConfigInvalid at once when the header is wrong: nothing after it could be understood
    """
    table = csv.reader(lines, strict=True)
    header = _header(table, mistakes, required)
    wanted = [(at, name) for at, name in enumerate(header) if name in known]
    yield table.line_num, {name: name for name in header}
    while True:
        try:
            row = next(table, None)
        except csv.Error as error:
            mistakes.at(table.line_num, "?", f"{error}; write one row a line, with quotes in pairs")
            break  # what follows would be read as part of this cell
        if row is None:
            break
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(header):
            mistakes.at(table.line_num, _odd_cell(row, header), _odd_length(row, header))
            continue
        yield table.line_num, {name: text for at, name in wanted if (text := row[at].strip())}


def _header(table: "Reader", mistakes: Mistakes, required: Sequence[str]) -> list[str]:
    try:
        header = next(([name.strip() for name in row] for row in table if any(map(str.strip, row))), [])
    except csv.Error as error:
        header = []
        mistakes.at(1, "1", _unreadable(error))
    mistakes.settle()
    line = table.line_num or 1
    if not header:
        mistakes.at(1, required[0], f"the file has no header; its first line names the columns: {','.join(required)}")
    elif (mark := _other_mark(header, required)) is not None:
        mistakes.at(line, "1", f"the cells stand apart by {mark}; save the file with commas between them")
    else:
        for name in required:
            if name not in header:
                mistakes.at(line, name, _missing(name, header))
        for name in sorted({name for name in header if header.count(name) > 1}):
            mistakes.at(line, name or "(no name)", "it stands more than once; keep one of them")
    mistakes.settle()
    return header


def _unreadable(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return "the lines end in a carriage return alone; save the file with line ends of Unix or Windows"
    return f"{error}; write the names of the columns, with commas between them"


def _other_mark(header: Sequence[str], required: Sequence[str]) -> str | None:
    """What stands between the names where spreadsheets write no commas."""
    if len(header) != 1:
        return None
    return next(
        (called for mark, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"))
         if {name.strip().lower() for name in header[0].split(mark)} & set(required)),
        None,
    )  # fmt: skip


def _missing(name: str, header: Sequence[str]) -> str:
    for other in header:
        if other.lower().replace(" ", "_") == name:
            return f"it is written {shown(other)}; write it {name}"
    return f"it is missing; add it to the header and to each row (there are {_list(header)})"


def _odd_cell(row: Sequence[str], header: Sequence[str]) -> str:
    return header[len(row)] if len(row) < len(header) else f"{len(header) + 1} (beyond the header)"


def _odd_length(row: Sequence[str], header: Sequence[str]) -> str:
    if len(row) < len(header):
        return f"the row has {len(row)} cells of {len(header)}; is the file cut short here?"
    return f"the row has {len(row)} cells, the header {len(header)}; put quotes round a cell that holds a comma"


def _list(names: Sequence[str]) -> str:
    return shown(", ".join(names), 100)


def shown(text: str, most: int = 40) -> str:
    """The text as an error may print it: short, and with nothing in it that moves a terminal's cursor."""
    return ascii(text if len(text) <= most else text[: most - 3] + "...")


def number(text: str, *, most: float, unit: str) -> float:
    """A number from 0 to `most`. Raises ValueError with a next step."""
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a number; write {unit}")
    value = float(text)
    if value < 0:
        raise ValueError(f"{shown(text)} is negative; write {unit}, 0 or more")
    if not math.isfinite(value) or value > most:
        raise ValueError(f"{shown(text)} is beyond what can be; write {unit}, at most {most:,.0f}")
    return value


def whole(text: str, *, most: int, unit: str) -> int:
    """A whole number from 0 to `most`; 8.0 is one, since spreadsheets write it so. Raises ValueError."""
    if text.isascii() and text.isdigit() and len(text) < 16 and (plain := int(text)) <= most:
        return plain
    value = number(text, most=most, unit=unit)
    if value != int(value):
        raise ValueError(f"{shown(text)} is not whole; write {unit} without a fraction")
    return int(value)


def seconds(text: str) -> int:
    """Seconds, to the nearest whole one. Raises ValueError."""
    if text.isascii() and text.isdigit() and len(text) < 11:
        return int(text)
    return round(number(text, most=MOST_SECONDS, unit="seconds"))


def word(text: str) -> str:
    """A name. Raises ValueError for one that would spoil what is printed."""
    if len(text) > LONGEST_NAME:
        raise ValueError(f"{shown(text)} has {len(text)} characters; write at most {LONGEST_NAME}")
    if not text.isprintable():
        raise ValueError(f"{shown(text)} has characters that cannot be printed; take them out")
    return text


def truth(text: str) -> bool:
    """Yes or no. Raises ValueError."""
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError(f"{shown(text)} is neither yes nor no; write true or false") from None


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    """A reader of these words alone."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{shown(text)} is not known; write one of {', '.join(words)}")
        return text

    return read


def many(text: str, mark: str) -> tuple[str, ...]:
    """The names between the marks. Raises ValueError."""
    return tuple(word(part) for piece in text.split(mark) if (part := piece.strip()))
