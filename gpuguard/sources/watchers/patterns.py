"""Patterns that must recur in a log: regular expressions that cannot take long.

A job's user may write them, and Python's matcher can take for ever over a bad one while nothing else of the agent runs.
So a pattern is a row of single characters, sets of them and repetitions of one of these, where what is repeated cannot
be what follows: then each place of a line is tried in one go. Groups may stand around parts, one of them around the
digits of the step; no alternatives, no repeated groups, no looking around, no referring back.

    iteration\\s+(\\d+)/        step=(?P<step>\\d+)        ^\\[\\d+\\] loss
"""

import re
from typing import NamedTuple

from gpuguard.errors import NotUnderstood

LONGEST = 256  # bytes of a pattern
LINE = 1024  # bytes of a line that are looked at: the price grows with the square of it
_ALL = frozenset(range(256))
# `{}` is two characters to Python, and `{,}` any number of times: neither is taken, so that nothing is judged as other
# than what is then looked for.
_QUANTIFIER = re.compile(rb"[*+?]|\{(?:(\d{1,3})(?:,(\d{0,3}))?|,(\d{1,3}))\}")
_GROUP = re.compile(rb"\((?:\?:|\?P<[A-Za-z_]\w{0,31}>)?(?![?*+])")
_SET = re.compile(rb"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(rb"\\[dDwWsS]|\\[^A-Za-z0-9]|\\[tnrfv]")


class _Item(NamedTuple):
    """Characters of which one stands there, and whether it may be left out or come again."""

    one_of: frozenset[int]
    least: int
    varies: bool


class Pattern:
    """One pattern, ready to look for."""

    def __init__(self, text: str) -> None:
        """Raises  NotUnderstood for what is no such pattern, with the reason"""
        try:
            source = text.encode()
        except UnicodeEncodeError as error:
            raise NotUnderstood("a pattern is text", text.encode("ascii", "replace").decode()) from error
        if not 0 < len(source) <= LONGEST:
            raise NotUnderstood(f"a pattern has 1 to {LONGEST} bytes", text)
        _refuse_slow(_items(source, text), text)
        try:
            self._compiled = re.compile(source)
        except (re.error, OverflowError) as error:
            raise NotUnderstood(f"no regular expression: {error}", text) from error

    def find(self, line: bytes) -> tuple[bool, int | None]:
        """Whether the line has it, and the step that it tells, if it does."""
        match = self._compiled.search(line[:LINE])
        if match is None:
            return False, None
        groups = match.groupdict()
        told = groups.get("step") if "step" in groups else (match[1] if self._compiled.groups else None)
        return True, step_in(told or b"")


def step_in(text: bytes) -> int | None:
    """The number that the text is; None where it is none."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= 18 else None


def _items(source: bytes, text: str) -> list[_Item]:
    items: list[_Item] = []
    place = depth = 0
    while place < len(source):
        rest = source[place:]
        if rest[:1] in (b"^", b"$"):
            place += 1  # an end of the line: a line has no line ends in it, so nothing repeated can pass it
            if rest[:1] == b"$":
                items.append(_Item(frozenset(), 1, False))
            continue
        if rest[:1] == b"(":
            group = _GROUP.match(rest)
            if group is None:
                raise NotUnderstood("of groups only (...), (?:...) and (?P<name>...) may stand in a pattern", text)
            place, depth = place + group.end(), depth + 1
            continue
        if rest[:1] == b")":
            place, depth = place + 1, depth - 1
            if _QUANTIFIER.match(source, place):
                raise NotUnderstood("a group may not be repeated: a line could be tried in too many ways", text)
            continue
        one, length = _one(rest, text)
        quantifier = _QUANTIFIER.match(source, place + length)
        place = quantifier.end() if quantifier else place + length
        if quantifier and source[place : place + 1] in (b"?", b"+", b"*", b"{"):
            raise NotUnderstood("a repetition may not be repeated, nor be lazy", text)
        least, varies = _counts(quantifier)
        items.append(_Item(one, least, varies))
    if depth != 0:
        raise NotUnderstood("a bracket is missing", text)
    return items


def _one(rest: bytes, text: str) -> tuple[frozenset[int], int]:
    """What one character may be, and how long its spelling is."""
    spelling = rest[:1]
    if spelling == b"[":
        found = _SET.match(rest)
    elif spelling == b"\\":
        found = _ESCAPE.match(rest)
    elif spelling in b"|*+?{}":
        raise NotUnderstood(f"{spelling.decode()} may not stand there; write \\{spelling.decode()} for itself", text)
    else:
        found = re.match(rb".", rest, re.DOTALL)
    if found is None:
        raise NotUnderstood(f"not known in a pattern: {rest[:8]!r}", text)
    try:
        one = re.compile(found[0])
    except re.error as error:
        raise NotUnderstood(f"no set of characters: {error}", text) from error
    return frozenset(byte for byte in _ALL if one.fullmatch(bytes([byte]))), found.end()


def _counts(quantifier: re.Match[bytes] | None) -> tuple[int, bool]:
    if quantifier is None:
        return 1, False
    if quantifier[0] in (b"*", b"+", b"?"):
        return int(quantifier[0] == b"+"), True
    least, most, up_to = quantifier.groups()
    if up_to is not None:
        return 0, True
    return int(least), most is not None and most != least


def _refuse_slow(items: list[_Item], text: str) -> None:
    """Raises  NotUnderstood where what is repeated can be what follows it, or where nothing must be there at all"""
    if not any(item.least for item in items):
        raise NotUnderstood("it would be found in every line", text)
    for place, item in enumerate(items):
        if not item.varies:
            continue
        for after in items[place + 1 :]:
            if item.one_of & after.one_of:
                raise NotUnderstood(
                    "what is repeated can be what follows it, as in .*a or \\d+\\d: a line could be tried in too many "
                    "ways; name what may not be there, as in [^a]*a",
                    text,
                )
            if after.least:
                break
