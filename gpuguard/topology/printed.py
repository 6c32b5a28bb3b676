"""Tables of devices are found in any text, each word with its place, so that the text can be printed again.

A table begins with a header that names devices and goes on with rows that begin with one of these names. Words stand
between TABs, bars or blanks; an empty place between TABs is a word too. Around it may stand anything: a prompt, the
marks of a quotation or of a log, a byte order mark, colours. A terminal or a mail program may have broken the header
and rows into several lines, also in the middle of a word: what belongs together is seen by the words.

Source  the outputs of `nvidia-smi topo -m`, `-mp` and `-p2p` of drivers 352 to 580; `dcgmi topo` and NVIDIA's
        gpu-monitoring-tools for the words that are no longer printed
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuguard.model.topology import LEVELS, P2P_STATUS, SELF, Level

# Words of the matrix, and those of old drivers and of DCGM with what took their place: SOC is "the SMP link between CPU
# sockets", PSB "a single on-board PCIe switch", CPU the old name of nvmlGpuTopologyLevel_t's NODE.
WORDS: dict[str, Level] = {**{level: level for level in LEVELS}, "SOC": "SYS", "PSB": "PIX", "CPU": "NODE"}
BOND = re.compile(r"NV([1-9]\d{0,3})")
# What stands where nothing is known.
UNKNOWN = ("", "N/A", "?", "-", "--")
# The columns behind those of the devices, in their order.
AFFINITIES = {"cpus": "CPU Affinity", "nodes": "NUMA Affinity", "memory": "GPU NUMA ID"}
# A node of today has some tens.
MOST_DEVICES = 512
# A longer line is of no table: there is room for so many devices in it. A name is shorter than this.
LONGEST_LINE = 1 << 16
LONGEST_NAME = 64
# So many headers are looked at in one text, most of which are none.
MOST_TABLES = 1000
# A table goes on over so many lines that are none of its own, as those of a log that was written at the same time.
STRANGE_LINES = 100

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\([0-9A-Z])")
_GPU = re.compile(r"GPU\d+")
# Where a header may begin: a name, and behind it none of the commonest words of a row.
_START = re.compile(
    r"(?<![\w.:/-])(?:GPU\d+|NIC\d+|mlx\d+_\w+|CPU[^\S\n]+Affinity)(?![\w.:/-])"
    rf"(?![^\S\n]+(?:X|NV\d+|{'|'.join(LEVELS)})\b)"
)
_TOKEN = re.compile(r"[^\s|]+")
_NAME = re.compile(r"(?=\w*[\d_])[A-Za-z][\w.:+-]*")
_FRAGMENT = re.compile(r"[A-Za-z]\w*")
_HEADING = re.compile("|".join(words.replace(" ", r"\s+") for words in AFFINITIES.values()), re.IGNORECASE)
_HEADING_WORDS = {word for words in AFFINITIES.values() for word in words.upper().split()}
# Marks of a quotation, of a list or of a table, before a row.
_MARKS = re.compile(r"[\s>|*#:\ufeff]*")
_LIST = re.compile(r"\d+(?:-\d+)?(?:,\s*\d+(?:-\d+)?)*|N/A", re.IGNORECASE)
_BEGUN = re.compile(
    "NV|" + "|".join(word[:size] for word in (*WORDS, *P2P_STATUS) for size in range(1, len(word))), re.IGNORECASE
)
_IN_LIST = re.compile(r"[\d,-]+|N/?A?|/A?|A", re.IGNORECASE)


@dataclass(slots=True)
class Word:
    """A word of a row and where it stands; `cuts` are the places in it where a line broke, and what stands there."""

    text: str
    start: int
    end: int
    cuts: tuple[tuple[int, int, int], ...] = ()

    def joined(self, rest: "Word") -> "Word":
        """This word and its rest, which stands further on, as one."""
        size = len(self.text)
        moved = tuple((place + size, start, end) for place, start, end in rest.cuts)
        return Word(self.text + rest.text, self.start, rest.end, (*self.cuts, (size, self.end, rest.start), *moved))


@dataclass(slots=True)
class Row:
    """A row by the name that it begins with. `blanks`: its words stand between blanks, so that none can be empty."""

    name: str
    line: int
    start: int
    blanks: bool
    words: list[Word] = field(default_factory=list)
    lines: int = 1


@dataclass(slots=True)
class Table:
    """A header and its rows. `columns` are where the names and headings begin, empty where the header is broken."""

    line: int
    start: int
    end: int
    names: list[str]
    headings: list[str]
    columns: list[int] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    again: list[tuple[int, str]] = field(default_factory=list)

    @property
    def says(self) -> str:
        """What its words tell: `distances`, or `statuses` as those of `topo -p2p`, or nothing where X stands alone."""
        words = {word.text.upper() for row in self.rows.values() for word in row.words} - {SELF}
        if self.headings or any(map(is_distance, words)):
            return "distances"
        return "statuses" if words & set(P2P_STATUS) else ""


def is_distance(word: str) -> bool:
    """Whether this is a word of the matrix."""
    word = word.upper()
    return word == SELF or word in WORDS or BOND.fullmatch(word) is not None


def is_cell(word: str) -> bool:
    """Whether this is a word of the matrix or of the table of `topo -p2p`."""
    return is_distance(word) or word.upper() in P2P_STATUS


def without_escapes(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The text without what colours and underlines it, and each of those with the place where it stood."""
    if "\x1b" not in text:
        return text, []
    parts, escapes, at, length = [], [], 0, 0
    for found in _ESCAPE.finditer(text):
        parts.append(text[at : found.start()])
        length += found.start() - at
        escapes.append((length, found[0]))
        at = found.end()
    parts.append(text[at:])
    return "".join(parts), escapes


def tables(text: str) -> Iterator[Table]:
    """The tables of a text without escapes, in their order; those without rows too. Each but the first is also read
    with the names of the first as names of rows, for columns that were printed below each other."""
    at, line, counted, left = 0, 1, 0, MOST_TABLES
    first: list[str] = []
    while left > 0 and (found := _START.search(text, at)) is not None:
        begin = text.rfind("\n", 0, found.start()) + 1
        end = _end_of_line(text, found.start())
        at = end
        line += text.count("\n", counted, begin)
        counted = begin
        table = _header(text, line, found.start(), end)
        if table is not None and (table.names or first):
            _Reader(text, table, begin, first).read()
            left -= 1
            at = max(at, table.end)
            first = first or (table.names if table.rows else [])
            yield table


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _header(text: str, line: int, start: int, end: int) -> Table | None:
    """The table whose header's first line this is; None for any other line."""
    if end - start > LONGEST_LINE:
        return None
    table = Table(line=line, start=start, end=end, names=[], headings=[])
    tokens = list(_TOKEN.finditer(text, start, end))
    parsed = _names(tokens)
    if parsed is None:
        return None
    names, fragment = parsed
    headings = list(_HEADING.finditer(text, start, end))
    if (fragment and len(names) < 2) or not (names or headings):
        return None
    table.names = [name for name, _ in names]
    table.headings = [_heading(found[0]) for found in headings]
    line_start = text.rfind("\n", 0, start) + 1
    table.columns = [
        _column(text, line_start, at) for at in (*(at for _, at in names), *(found.start() for found in headings))
    ]
    return table


def _names(tokens: list[re.Match[str]]) -> tuple[list[tuple[str, int]], bool] | None:
    """The names in a line of a header, and whether it ends within a word; None where it is no such line."""
    names: list[tuple[str, int]] = []
    for place, token in enumerate(tokens):
        word, last = token[0], place == len(tokens) - 1
        if word.upper() in _HEADING_WORDS:
            rest = [token[0] for token in tokens[place:]]
            whole = all(word.upper() in _HEADING_WORDS for word in rest[:-1])
            return (names, False) if whole and (rest[-1].upper() in _HEADING_WORDS or _is_fragment(rest[-1])) else None
        if _NAME.fullmatch(word) and not is_cell(word):
            names.append((word, token.start()))
        elif last and _is_fragment(word):
            return names, True
        else:
            return None
    return names, False


def _is_fragment(word: str) -> bool:
    return _FRAGMENT.fullmatch(word) is not None and not is_cell(word)


def _heading(words: str) -> str:
    words = " ".join(words.split()).upper()
    return next(kind for kind, told in AFFINITIES.items() if told.upper() == words)


def _column(text: str, line_start: int, at: int) -> int:
    """The column of a place on a screen, where TABs go to each eighth."""
    before = text[line_start:at]
    return len(before.expandtabs(8)) if "\t" in before else at - line_start


class _Reader:
    """Goes down the lines below a header."""

    def __init__(self, text: str, table: Table, line_start: int, first: list[str]) -> None:
        self.text, self.table, self.first = text, table, first
        self.lead = text[line_start : table.start].strip()
        self.marked = _MARKS.fullmatch(self.lead) is None
        self.line = table.line
        self.row: Row | None = None
        self.label: re.Pattern[str] | None = None
        # Where the header's or the row's last line ended, with its blanks.
        self.broke = table.end
        self.header = text[table.start : table.end].rstrip("\r")

    def read(self) -> None:
        """The table has its whole header and its rows."""
        strange, at = 0, self.table.end + 1
        while at <= len(self.text) and strange <= STRANGE_LINES and len(self.table.again) <= len(self.table.names):
            end = _end_of_line(self.text, at)
            self.line += 1
            begin = self._begin(at, min(end, at + LONGEST_LINE))
            blank = not self.text[begin : min(end, begin + LONGEST_LINE)].strip()
            if not blank and end - at <= LONGEST_LINE and self._takes(at, begin, end):
                strange, self.table.end, self.broke = 0, end, end
            elif self._whole() or self._ends(begin, end):
                break
            else:
                strange += 1
            at = end + 1
        for name in [name for name, row in self.table.rows.items() if not row.words]:
            del self.table.rows[name]

    def _takes(self, at: int, begin: int, end: int) -> bool:
        """Whether this line is one of the table; then the table has it."""
        more = not self.table.rows and self._goes_on(begin, end)
        return more or self._is_row(at, begin, end) or self._is_rest(begin, end)

    def _begin(self, at: int, end: int) -> int:
        """Where a line begins behind the marks that stand before each."""
        if self.marked and self.text.startswith(self.lead, at, end):
            at += len(self.lead)
        found = _MARKS.match(self.text, at, end)
        return at if found is None else found.end()

    def _ends(self, begin: int, end: int) -> bool:
        """Whether this line is of something else: a legend, or the header of another table."""
        if self.text.startswith("Legend", begin, end) or self.text.startswith("NIC Legend", begin, end):
            return True
        found = _START.search(self.text, begin, min(end, begin + LONGEST_LINE))
        return found is not None and _header(self.text, 0, found.start(), end) is not None

    def _whole(self) -> bool:
        """Whether there is nothing more to come."""
        return len(self.table.rows) >= len(self._labels()) and self.row is not None and not self._open()

    # --- the header ---

    def _goes_on(self, begin: int, end: int) -> bool:
        """Whether this line is more of a broken header; then the header has it."""
        table = self.table
        start = _TOKEN.match(self.text, begin, end)
        if start is None or start[0] in table.names or start[0] in self.first or "memory" in table.headings:
            return False
        part = self.text[begin:end].rstrip("\r")
        joined = self.header + ("" if self._splits(self.header, part) else "\n") + part
        found = _header(joined, table.line, 0, len(joined))
        if found is None or (found.names, found.headings) == (table.names, table.headings):
            return False
        self.header, table.names, table.headings, table.columns = joined, found.names, found.headings, []
        self.label = None
        return True

    @staticmethod
    def _splits(before: str, part: str) -> bool:
        """Whether a line broke in the middle of a word of the header, so that neither half is one."""
        last, following = re.search(r"[^\s|]+$", before[-LONGEST_NAME:]), _TOKEN.match(part)
        if last is None or following is None:
            return False
        halves, joined = (last[0], following[0]), last[0] + following[0]
        known = [half.upper() in _HEADING_WORDS or _NAME.fullmatch(half) is not None for half in halves]
        whole = joined.upper() in _HEADING_WORDS or _NAME.fullmatch(joined) is not None
        return whole and not all(known)

    # --- rows ---

    def _is_row(self, at: int, begin: int, end: int) -> bool:
        if self.label is None:
            names = sorted(self._labels(), key=len, reverse=True)
            self.label = re.compile(rf"(?<![\w.:/-])(?:{'|'.join(map(re.escape, names))})(?![\w.:/-])")
        found = self.label.search(self.text, at, end)
        if found is None or (found.start() != begin and not self.marked):
            return False
        words, blanks = _words(self.text, found.end(), end, label=True)
        if not self.table.names:
            # The last columns alone, below the others.
            if not all(word.text in UNKNOWN or _LIST.fullmatch(word.text) for word in words):
                return False
        elif words and not any(is_cell(word.text) for word in words):
            return False
        if words and not is_distance(words[0].text.replace("CPU", "")) and self._ends(found.start(), end):
            return False
        row = Row(found[0], self.line, found.start(), blanks, words)
        if row.name in self.table.rows:
            self.table.again.append((self.line, row.name))
            self.row = None
        else:
            self.table.rows[row.name] = self.row = row
        return True

    def _labels(self) -> set[str]:
        """The names that rows may have. Below columns that go on from the table before, they are those of that too."""
        names, first = set(self.table.names), set(self.first)
        return names if names & first else names | first

    def _open(self) -> bool:
        """Whether the row may go on in the next line."""
        row, table = self.row, self.table
        if row is None:
            return False
        cells = len(table.names)
        if not row.words or len(row.words) - (not row.words[-1].text) < cells:
            return True
        tail = sum(1 for word in row.words[cells:] if word.text)
        return tail < len(table.headings) and _GPU.fullmatch(row.name) is not None

    def _is_rest(self, begin: int, end: int) -> bool:
        """Whether this line is more of a broken row; then the row has it."""
        row, cells = self.row, len(self.table.names)
        if row is None:
            return False
        more, _ = _words(self.text, begin, end, label=False)
        last = row.words[-1] if row.words else None
        glued = last is not None and self.text[last.end : self.broke].strip("\r") == ""
        if not self._open() and not (glued and self._looks_whole(row, more, cells)):
            return False
        count = len(row.words) - (last is not None and not last.text)
        for place, word in enumerate(more):
            broken = place == 0 and last is not None and last.text != "" and glued and count <= cells
            if broken and last is not None and _halves(last.text, word.text):
                continue
            begun = place == len(more) - 1 and _BEGUN.fullmatch(word.text)
            known = (is_cell(word.text) or begun) if count < cells else _IN_LIST.fullmatch(word.text)
            if not known and word.text.upper() not in UNKNOWN:
                return False
            count += 1
        self._append(row, more, glued)
        row.lines += 1
        return True

    @staticmethod
    def _looks_whole(row: Row, more: list[Word], cells: int) -> bool:
        """Whether a row that has all its words may have broken in its last one."""
        return not is_cell(row.words[-1].text) if len(row.words) == cells else len(more) == 1

    def _append(self, row: Row, more: list[Word], glued: bool) -> None:
        if row.words and not row.words[-1].text:
            row.words[-1:] = more
        elif row.words and self._one_word(row, more, glued):
            row.words[-1:] = [row.words[-1].joined(more[0]), *more[1:]]
        else:
            row.words += more

    def _one_word(self, row: Row, more: list[Word], glued: bool) -> bool:
        """Whether the last word of a row and the first of the next line are one."""
        cells, last, first = len(self.table.names), row.words[-1].text, more[0].text
        if last.endswith((",", "-")) and len(row.words) > cells:
            return True
        if not glued or not first:
            return False
        if len(row.words) < cells or (len(row.words) == cells and not is_cell(last)):
            return _halves(last, first)
        tail = sum(1 for word in (*row.words[cells:], *more) if word.text)
        return tail > len(self.table.headings) or (last + first).upper() == "N/A"


def _halves(one: str, other: str) -> bool:
    """Whether these are one word of the matrix that a line broke: together they are one, and not each alone."""
    return is_cell(one + other) and not (is_cell(one) and is_cell(other))


def _words(text: str, start: int, end: int, *, label: bool) -> tuple[list[Word], bool]:
    """The words of a part of a line, and whether blanks alone stand between them."""
    for mark in ("\t", "|"):
        if text.find(mark, start, end) >= 0:
            words = _pieces(text, start, end, mark, label=label)
            if words is not None:
                return words, False
    words = [Word(found[0], found.start(), found.end()) for found in _TOKEN.finditer(text, start, end)]
    return _lists_joined(words), True


def _pieces(text: str, start: int, end: int, mark: str, *, label: bool) -> list[Word] | None:
    """What stands between marks, empty places too; None where some stand between blanks all the same."""
    words: list[Word] = []
    at = start
    for piece in text[start:end].split(mark):
        told = piece.strip()
        if " " in told and is_cell(told.split()[0]):
            return None
        begin = at + (len(piece) - len(piece.lstrip()) if told else 0)
        words.append(Word(told, begin, begin + len(told)))
        at += len(piece) + 1
    if label:
        if words[0].text:
            return None
        del words[0]
    if mark == "|" and words and not words[-1].text:
        del words[-1]
    return words or None


def _lists_joined(words: list[Word]) -> list[Word]:
    """A list of processors is one word, also where blanks stand behind its commas."""
    joined: list[Word] = []
    for word in words:
        if joined and joined[-1].text.endswith(",") and _IN_LIST.fullmatch(word.text):
            joined[-1] = joined[-1].joined(word)
        else:
            joined.append(word)
    return joined


def tail(table: Table, row: Row, words: list[Word], text: str) -> dict[str, Word] | None:
    """What stands below each heading, of the words behind the cells; None where it cannot be told which is which.

    A driver prints an empty place before GPU NUMA ID's value, and before the N/A of NUMA Affinity
    """
    headings = table.headings
    if row.blanks:
        return _by_columns(table, row, words, text)
    found: dict[str, Word] = {}
    rest = list(words)
    for heading in headings:
        if heading != "cpus" and len(rest) > 1 and not rest[0].text:
            skip = heading == "memory" or rest[1].text.upper() == "N/A"
            if skip:
                del rest[0]
        if rest:
            found[heading] = rest.pop(0)
    return found


def _by_columns(table: Table, row: Row, words: list[Word], text: str) -> dict[str, Word] | None:
    headings = table.headings
    if len(words) >= len(headings):
        return dict(zip(headings, words, strict=False))
    if not words:
        return {}
    if not _in_columns(table, row, text):
        return None
    line_start = text.rfind("\n", 0, row.start) + 1
    columns = dict(zip(table.columns[len(table.names) :], headings, strict=False))
    found: dict[str, Word] = {}
    for word in words:
        at = _column(text, line_start, word.start)
        near = min(columns, key=lambda column: abs(column - at))
        if abs(near - at) > 2 or columns[near] in found:
            return None
        found[columns[near]] = word
    return found


def _in_columns(table: Table, row: Row, text: str) -> bool:
    """Whether the words of a row between blanks stand below those of the header: then there are many blanks."""
    whole = row.blanks and row.lines == 1 and len(table.columns) == len(table.names) + len(table.headings)
    return whole and "  " in text[row.words[0].start : row.words[-1].end]


def realigned(table: Table, row: Row, text: str) -> list[Word] | None:
    """The words of a row by the columns that they stand in, empty where none does; None where that cannot be told.

    For a row between blanks in which a place is empty: then the words are fewer than the names
    """
    if not _in_columns(table, row, text):
        return None
    line_start = text.rfind("\n", 0, row.start) + 1
    cells = len(table.names)
    placed: list[Word | None] = [None] * cells
    behind: list[Word] = []
    for word in row.words:
        at = _column(text, line_start, word.start)
        place = min(range(len(table.columns)), key=lambda index: abs(table.columns[index] - at))
        if place >= cells:
            behind.append(word)
        elif placed[place] is not None or at - table.columns[place] != (word.text.upper() == SELF):
            return None
        else:
            placed[place] = word
    blank = Word("", row.start, row.start)
    return [*(word or blank for word in placed), *behind]


def is_list(word: str) -> bool:
    """Whether this is a list of processors or nodes as the kernel prints it."""
    return word.upper() != "N/A" and _LIST.fullmatch(word) is not None
