"""Anybody's `nvidia-smi topo -m` becomes a graph, and can be printed again in its own form.

What a cell says is what the graph holds: NV and a number are so many NVLinks, and then the text does not tell how far
the two are over PCIe; any other word is the distance, and then there is no NVLink. The row of the other device fills
what a row lacks. Where both rows tell and differ, the lesser of the two is what both promise, and a note says so. What
neither tells, and a word that nobody knows, is None. A missing row is no missing device.

Source  see topology/printed
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.topology import LEVELS, P2P_STATUS, SELF, Device, Gpu, Level, Topology
from gpuguard.topology.names import joined
from gpuguard.topology.printed import (
    BOND,
    MOST_DEVICES,
    UNKNOWN,
    WORDS,
    Row,
    Table,
    Word,
    is_cell,
    is_list,
    realigned,
    tables,
    tail,
    without_escapes,
)

NOWHERE = "N/A"
NEXT_STEP = "give the output of `nvidia-smi topo -m`, with its first line, which names GPU0"
# So many notes of one kind tell enough.
MOST_NOTES = 8

_ALIAS = re.compile(r"(?<![\w.:/-])(NIC\d+)[^\S\n]*:[^\S\n]*([A-Za-z]\w*\d\w*)")
# What `topo -all` and `topo -nvme` list beside GPUs and network cards.
_NO_DEVICE = re.compile(r"(?:NVME|CPU)\d+", re.IGNORECASE)
_COMMAND = re.compile(r"topo\s+(?:-m(p?)|--matrix(_pci)?)(?![\w-])")
_STATUS_OF = re.compile(r"-p2p\s+(\w+)|--p2pstatus\s+(\w+)")
# What a command, or whoever pasted its output, wrote above a table.
_ABOVE = 400

Pair = tuple[int, int]
Place = Literal["cell", "p2p", "cpus", "nodes", "memory"]


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the text for something that the graph tells.

    `one` and `other` are places in its devices, `other` -1 for what concerns one alone. `width`: blanks fill the place
    up to it. `blank` stands where the graph knows nothing, `cuts` where a line broke in the word, and with what.
    """

    what: Place
    one: int
    other: int = -1
    width: int = 0
    blank: str = NOWHERE
    cuts: tuple[tuple[int, str], ...] = ()


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The text without what the graph tells: pieces of text, and slots. `words` is how it spells what is spelled
    otherwise today, as SOC for SYS; `odd` how it spells it in one cell alone."""

    pieces: tuple[str | Slot, ...]
    words: tuple[tuple[str, str], ...] = ()
    odd: tuple[tuple[int, int, str, str], ...] = ()

    def spelling(self) -> Callable[[int, int, str | None], str | None]:
        """How a cell of the graph is spelled in this text; a cell that is not known has no spelling."""
        words = dict(self.words)
        odd = {(one, other): (cell, word) for one, other, cell, word in self.odd}

        def spelled(one: int, other: int, cell: str | None) -> str | None:
            if cell is None:
                return None
            read, word = odd.get((one, other)) or odd.get((other, one)) or (None, "")
            return word if read == cell else words.get(cell, cell)

        return spelled


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What a text told. `line` is where the matrix begins in it, from 1."""

    topology: Topology
    layout: Layout
    line: int


def read(text: str) -> Read:
    """The graph that a text tells of, with notes of all that it does not, and its layout.

    Reads   what `nvidia-smi topo -m`, `-mp` or `-p2p` printed, whatever was done to it since
    Raises  NotUnderstood when there is no matrix in it at all
    """
    clean, escapes = without_escapes(text)
    found = _Found(clean)
    if not found.blocks and found.statuses is None:
        raise NotUnderstood(_why(text), text[:500])
    reading = _Reading(clean, found)
    return Read(topology=reading.topology(), layout=_layout(clean, escapes, reading), line=found.line)


def _why(text: str) -> str:
    if not text.strip():
        return f"there is no matrix, as the text is empty: {NEXT_STEP}"
    if "\0" in text:
        return f"there is no matrix: this is no text, there are NUL bytes in it: {NEXT_STEP}"
    return f"there is no matrix in this text: {NEXT_STEP}"


class _Found:
    """The tables of the first node in a text: the matrix, in one or several blocks of columns, and the statuses."""

    def __init__(self, text: str) -> None:
        self.blocks: list[Table] = []
        self.statuses: Table | None = None
        self.notes: list[str] = []
        self.end = len(text)
        bare: Table | None = None
        for table in tables(text):
            size = len(table.names)
            if size > MOST_DEVICES and not self.blocks:
                raise NotUnderstood(f"line {table.line} names {size} devices, more than a node has: {NEXT_STEP}")
            if table.says == "statuses":
                self._take_statuses(text, table)
            elif not (table.says if self.blocks else table.names):
                continue
            elif not self.blocks and not table.rows:
                blank = text[table.start - 1 : table.start] in (" ", "\t")
                alone = table.headings or (len(table.names) > 1 and blank)
                bare = bare or (table if alone else None)
            elif not self.blocks or self._goes_on(table):
                self.blocks.append(table)
            else:
                self.end = table.start
                self.notes.append(f"a second matrix begins in line {table.line}: it and what follows is not read")
                break
        if not self.blocks and self.statuses is None and bare is not None:
            self.blocks.append(bare)
        first = self.blocks[0] if self.blocks else self.statuses
        self.line = first.line if first is not None else 0
        self.start = first.start if first is not None else 0

    def _take_statuses(self, text: str, table: Table) -> None:
        told = list(_STATUS_OF.finditer(text, max(0, table.start - _ABOVE), table.start))
        of = (told[-1][1] or told[-1][2]) if told else "r"
        if "r" not in of:
            self.notes.append(f"the table in line {table.line} is of `-p2p {of}`: that of `-p2p r` is what is kept")
        elif self.statuses is None:
            self.statuses = table

    def _goes_on(self, table: Table) -> bool:
        """Whether this has more columns of the same matrix."""
        known = {name for block in self.blocks for name in block.names}
        return bool(table.rows) and not known & set(table.names) and table.rows.keys() <= known | set(table.names)


class _Reading:
    """Reads the words of the tables into what the graph needs."""

    def __init__(self, text: str, found: _Found) -> None:
        self.text, self.found = text, found
        self.notes: list[str] = []
        self.slots: list[tuple[Word, Slot]] = []
        self.spelled: dict[Pair, tuple[str, str]] = {}
        self.names = self._names()
        self.places = {name: place for place, name in enumerate(self.names)}
        self.strange: list[str] = []
        # What each row says of each column, and in which line; None where it says nothing that can be understood.
        self.cells: dict[Pair, tuple[str, int]] = {}
        self.status: dict[Pair, tuple[str, int]] = {}
        self.affinities: dict[tuple[int, Place], str] = {}
        for block in found.blocks:
            self._read(block, "cell")
        if found.statuses is not None:
            self._read(found.statuses, "p2p")

    def _tables(self) -> list[Table]:
        statuses = [self.found.statuses] if self.found.statuses is not None else []
        return self.found.blocks or statuses

    def _names(self) -> list[str]:
        names: list[str] = []
        for table in self._tables():
            for name in table.names:
                if _NO_DEVICE.fullmatch(name) is not None:
                    self.notes.append(f"the header in line {table.line} names {name}, which is neither GPU nor NIC")
                elif name in names:
                    self.notes.append(f"the header in line {table.line} names {name} twice: the second is not read")
                else:
                    names.append(name)
        return names

    def _read(self, table: Table, what: Literal["cell", "p2p"]) -> None:
        columns: list[int | None] = []
        for name in table.names:
            place = self.places.get(name)
            columns.append(None if place in columns else place)
        if table.again:
            line, name = table.again[0]
            self.notes.append(f"line {line} gives {name} a second time, as of another node: the first is read")
        for name, row in table.rows.items():
            one = self.places.get(name)
            if one is not None:
                self._read_row(table, row, one, columns, what)

    def _read_row(
        self, table: Table, row: Row, one: int, columns: Sequence[int | None], what: Literal["cell", "p2p"]
    ) -> None:
        words = self._aligned(table, row, one, columns)
        if words is None:
            self.notes.append(
                f"line {row.line} does not have X below {row.name}: which of its words is whose cannot be told"
            )
            return
        cells = len(columns)
        cut = self._is_cut(table, row, words, what)
        for other, word in zip(columns, words, strict=False):
            if other is None or (row.blanks and not word.text):
                continue
            said = self._said(row, one, other, word, what)
            if cut is word and said is not None and BOND.fullmatch(said) is not None:
                said = None
            if said is not None and one != other:
                (self.cells if what == "cell" else self.status)[one, other] = (said, row.line)
            self._slot(row, word, what, one, other, blank=NOWHERE if said is not None else word.text)
        if row.name.startswith("GPU") and what == "cell":
            self._read_tail(table, row, one, words[cells:], cut)

    def _aligned(self, table: Table, row: Row, one: int, columns: Sequence[int | None]) -> list[Word] | None:
        """The words of a row, each below the device that it is of; None where they are not below theirs.

        Between blanks an empty place is none: a word too few is seen by the columns, and by X
        """
        own = columns.index(one) if one in columns else None
        cells = row.words[: len(columns)]
        marks = [place for place, word in enumerate(cells) if word.text.upper() == SELF]
        fits = marks == [own] if marks else own is None or own >= len(cells) or not row.blanks
        if not row.blanks:
            return row.words if fits else None
        if fits and len(cells) == len(columns) and all(is_cell(word.text) or word.text in UNKNOWN for word in cells):
            return row.words
        placed = realigned(table, row, self.text)
        if placed is not None and (own is None or placed[own].text.upper() in ("", SELF)):
            return placed
        ends = bool(cells) and cells[-1].end >= len(self.text.rstrip())
        return row.words if fits and ends else None

    def _is_cut(self, table: Table, row: Row, words: Sequence[Word], what: Place) -> Word | None:
        """The word in which the text ends before all is told: more of it may have been there, as of NV1."""
        if not words or words[-1].end < len(self.text) or not words[-1].text:
            return None
        wanted = len(table.names)
        if row.name.startswith("GPU") and what == "cell":
            wanted += len(table.headings)
        if sum(1 for word in words if word.text) >= wanted and len(table.rows) >= len(set(table.names)):
            return None
        self.notes.append(f"the text ends in line {row.line}, within the row of {row.name}: its last word is not sure")
        return words[-1]

    def _said(self, row: Row, one: int, other: int, word: Word, what: Literal["cell", "p2p"]) -> str | None:
        """What a word says, as the graph spells it; None where nothing, or what nobody knows."""
        text = word.text.upper()
        if text in UNKNOWN or (one == other and text == SELF):
            return None
        said = None
        if what == "p2p":
            said = text if text in P2P_STATUS else None
        elif text in WORDS:
            said = WORDS[text]
        elif BOND.fullmatch(text) is not None:
            said = text
        if said is None or one == other:
            if word.end < len(self.text):
                self.strange.append(
                    f"line {row.line} says {word.text[:20]!r} of {row.name} and {self.names[other]}, which nobody "
                    "understands there: it is not read"
                )
            return None
        if said != word.text and what == "cell":
            self.spelled[one, other] = (said, word.text)
        return said

    def _read_tail(self, table: Table, row: Row, one: int, words: Sequence[Word], cut: Word | None) -> None:
        told = tail(table, row, list(words), self.text)
        if told is None:
            self.notes.append(
                f"line {row.line} has {len(words)} of {len(table.headings)} affinities, and not below their headings: "
                f"they are not known of {row.name}"
            )
            return
        kinds: tuple[Place, ...] = ("cpus", "nodes", "memory")
        for kind in kinds:
            word = told.get(kind)
            if word is None:
                continue
            known = word is not cut and (is_list(word.text) if kind != "memory" else word.text.isdecimal())
            if known:
                self.affinities[one, kind] = "".join(word.text.split())
            elif word is not cut and word.text.upper() not in UNKNOWN:
                self.strange.append(f"line {row.line} says {word.text[:40]!r} below {kind} of {row.name}: not known")
            if known and self.affinities[one, kind] != word.text:
                continue  # it has blanks in it and stays in the text as it is
            self._slot(row, word, kind, one, -1, blank=NOWHERE if known else word.text)

    def _slot(self, row: Row, word: Word, what: Place, one: int, other: int, *, blank: str) -> None:
        width, end = 0, word.end
        if row.blanks:
            while self.text[end : end + 1] == " ":
                end += 1
            more = end - word.end
            at_end = self.text[end : end + 1] in ("", "\n", "\r")
            width = 0 if at_end or more < 2 else len(word.text) + more - 1
        cuts = tuple((place, self.text[begin:finish]) for place, begin, finish in word.cuts)
        end = word.end + max(0, width - len(word.text))
        slot = Slot(what=what, one=one, other=other, width=width, blank=blank, cuts=cuts)
        self.slots.append((Word(word.text, word.start, end), slot))

    # --- the graph ---

    def topology(self) -> Topology:
        """The graph, with the notes of all that is missing or strange."""
        levels, bonds = self._distances()
        devices = self._devices()
        p2p = self._merged(self.status, lambda one, other: max(one, other, key=P2P_STATUS.index))
        notes = [*self.notes, *self.strange[:MOST_NOTES], *self._missing(devices, levels, bonds), *self.found.notes]
        if len(self.strange) > MOST_NOTES:
            notes.append(f"{len(self.strange) - MOST_NOTES} more words of this text are not known")
        size = range(len(devices))
        return Topology(
            devices=devices, levels=levels, bonds=bonds, notes=tuple(notes),
            p2p=tuple(tuple(p2p.get((i, j)) for j in size) for i in size),
        )  # fmt: skip

    def _merged(self, told: Mapping[Pair, tuple[str, int]], lesser: Callable[[str, str], str]) -> dict[Pair, str]:
        """What is told of each pair by either row."""
        merged: dict[Pair, str] = {}
        for one, other in combinations(range(len(self.names)), 2):
            here = told.get((one, other)) or told.get((other, one))
            there = told.get((other, one)) or here
            if here is None or there is None:
                continue
            word = here[0]
            if word != there[0]:
                word = lesser(word, there[0])
                self.strange.append(
                    f"{self.names[one]} and {self.names[other]}: line {here[1]} says {here[0]}, line {there[1]} "
                    f"{there[0]}; taken is {word}, which both promise"
                )
            merged[one, other] = merged[other, one] = word
        return merged

    def _distances(self) -> tuple[tuple[tuple[Level | None, ...], ...], tuple[tuple[int | None, ...], ...]]:
        size = len(self.names)
        cells = self._merged(self.cells, lambda one, other: min(one, other, key=_nearness))
        commands = list(_COMMAND.finditer(self.text, max(0, self.found.start - _ABOVE), self.found.start))
        silent = bool(commands) and any(commands[-1].groups())
        if silent:
            self.notes.append("this was printed by `topo -mp`, which does not tell of NVLinks: they are not known")
        levels: list[list[Level | None]] = [[None] * size for _ in range(size)]
        bonds: list[list[int | None]] = [[0] * size for _ in range(size)]
        for one, other in combinations(range(size), 2):
            word = cells.get((one, other))
            bond = BOND.fullmatch(word or "")
            gpus = self.names[one].startswith("GPU") and self.names[other].startswith("GPU")
            if bond is not None:
                bonds[one][other] = bonds[other][one] = int(bond[1])
            elif gpus and (word is None or silent):
                bonds[one][other] = bonds[other][one] = None
            if word is not None and bond is None:
                levels[one][other] = levels[other][one] = WORDS[word]
        return tuple(map(tuple, levels)), tuple(map(tuple, bonds))

    def _devices(self) -> tuple[Device, ...]:
        aliases: dict[str, str] = {}
        for found in _ALIAS.finditer(self.text, self.found.start, self.found.end):
            aliases.setdefault(found[1], found[2])
        return tuple(self._device(place, name, aliases.get(name)) for place, name in enumerate(self.names))

    def _device(self, place: int, name: str, alias: str | None) -> Device:
        cpus, nodes = self.affinities.get((place, "cpus")), self.affinities.get((place, "nodes"))
        if not name.startswith("GPU"):
            return Device(name=name, kind="nic", alias=alias)
        memory = self.affinities.get((place, "memory"))
        number = name.removeprefix("GPU")
        return Device(
            name=name, kind="gpu", cpus=cpus, nodes=nodes,
            gpu=Gpu(
                index=int(number) if number.isdecimal() else None, memory_node=None if memory is None else int(memory)
            ),
        )  # fmt: skip

    def _missing(
        self,
        devices: Sequence[Device],
        levels: Sequence[Sequence[Level | None]],
        bonds: Sequence[Sequence[int | None]],
    ) -> Iterator[str]:
        if not self.found.blocks:
            yield "the text has the table of `topo -p2p` alone, which does not tell how far GPUs are from each other"
        rows = {name for block in self._tables() for name in block.rows}
        if not rows:
            yield "the text has the header of the matrix alone: nothing is known of the devices that it names"
            return
        if missing := [name for name in self.names if name not in rows]:
            size = range(len(devices))
            unknown = sum(levels[i][j] is None and not bonds[i][j] for i, j in combinations(size, 2))
            yield (
                f"the text has no row for {_list(missing)}: what the other rows tell is taken from there, "
                + (f"{unknown} pairs are not known" if unknown else "and nothing else is missing")
            )
        if empty := [d.name for d in devices if d.kind == "gpu" and d.cpus is None and d.nodes is not None]:
            yield f"the CPU affinity of {_list(empty)} is not given, as in a job's cpuset: it is not known"


def _nearness(word: str) -> tuple[int, int]:
    """More is nearer: NVLinks before anything else."""
    bond = BOND.fullmatch(word)
    return (int(bond[1]), 0) if bond is not None else (0, -LEVELS.index(WORDS[word]))


def _list(names: Sequence[str]) -> str:
    shown = [*names[:MOST_NOTES], *([f"{len(names) - MOST_NOTES} more"] if len(names) > MOST_NOTES else [])]
    return joined(shown)


# --- the layout ------------------------------------------------------------------------------------------------------


def _layout(text: str, escapes: Sequence[tuple[int, str]], reading: _Reading) -> Layout:
    pieces: list[str | Slot] = []
    waiting = 0

    def verbatim(start: int, end: int, *, last: bool = False) -> None:
        nonlocal waiting
        parts: list[str] = []
        while waiting < len(escapes) and (escapes[waiting][0] <= end or last):
            at = max(start, escapes[waiting][0])
            parts += (text[start:at], escapes[waiting][1])
            start, waiting = at, waiting + 1
        parts.append(text[start:end])
        if joined := "".join(parts):
            pieces.append(joined)

    at = 0
    for word, slot in sorted(reading.slots, key=lambda pair: pair[0].start):
        verbatim(at, word.start)
        pieces.append(slot)
        at = word.end
    verbatim(at, len(text), last=True)
    words, odd = _spellings(reading)
    return Layout(pieces=tuple(pieces), words=words, odd=odd)


def _spellings(reading: _Reading) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[int, int, str, str], ...]]:
    """How the text spells what is spelled otherwise today: first as a rule, then in the cells that differ from it."""
    if not reading.spelled:
        return (), ()
    rule: dict[str, str] = {}
    for cell, word in reading.spelled.values():
        rule.setdefault(cell, word)
    odd = []
    for pair, (cell, _) in reading.cells.items():
        word = reading.spelled.get(pair, (cell, cell))[1]
        if rule.get(cell, cell) != word:
            odd.append((*pair, cell, word))
    return tuple(rule.items()), tuple(odd)
