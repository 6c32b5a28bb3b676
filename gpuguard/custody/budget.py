"""How much of a fleet gpuguard may take out of service by itself.

Theory. One wrong rule, driver or cable makes a thousand nodes sure of their fault in the same minute. So a drain that
no person asked for is entered into a book that all nodes share before it is written, and the book may say no:

1. At most `most` nodes, and at most `share` of the fleet, begin a drain within `window`; at most `overall` of the
   fleet stand drained. Of a small fleet one node always may: a budget of none is no budget.
2. The same finding on more than `cause_nodes` nodes within `cause_window` is a common cause: whatever it is, taking
   nodes away does not mend it. It counts every node that asked, also those that were refused. Once known it holds for
   `cause_holds` after the last node that asked.
3. What was refused is a person's from then on. It is not asked again by itself: a pause is no reason to act later on
   what was seen before it.
4. Nothing here ever stands against a release, or against a drain that a person wants; both are only entered.

The fleet is as large as its scheduler says, and so many nodes stand drained as it shows; what the book knows beyond
that, drains that are on their way, comes on top. An entry with a date ahead of the clock counts as one of now.

Units   seconds since 1970 by the book-keeper's clock
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from gpuguard.errors import NotUnderstood
from gpuguard.model.units import Seconds
from gpuguard.ports import FleetReport

VERSION: Final = 1
# A book of a fleet of 20,000 nodes holds its 5 % and what was refused in an hour; more is no honest book.
ENTRIES_MOST: Final = 4096
# A drain that was entered and never seen at the scheduler was never written, or was lifted by a person.
UNSEEN_AFTER: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much gpuguard may take by itself. Shares are of the nodes with GPUs."""

    share: float = 0.02  # of the fleet, begun within `window`; together with `most`, the smaller of the two
    most: int = 5  # nodes, begun within `window`
    window: Seconds = Seconds(600.0)
    overall: float = 0.05  # of the fleet, standing drained by gpuguard
    cause_nodes: int = 3  # more nodes than this with one finding within `cause_window` are a common cause
    cause_window: Seconds = Seconds(60.0)
    cause_holds: Seconds = Seconds(600.0)  # after the last node that asked with it

    def __post_init__(self) -> None:
        for name in ("share", "overall"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: must be more than 0 and at most 1; 0.02 is two nodes of a hundred")
        for name in ("most", "cause_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        for name in ("window", "cause_window", "cause_holds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be more than 0 seconds")


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One drain that a node asked for. `granted` is false for one that was refused; `ended` is when it was given
    back, or found never to have been written."""

    node: str
    key: str
    token: str
    code: str
    at: float
    by: str = "gpuguard"
    granted: bool = True
    ended: float | None = None


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """Every drain of the fleet that matters still, oldest first."""

    version: int = VERSION
    entries: tuple[Entry, ...] = ()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A node wants to be drained."""

    node: str
    key: str
    token: str
    code: str
    by: str = "gpuguard"


Why = Literal["granted", "person", "window", "overall", "common_cause", "handed_over"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the drain may be written, by which rule, and a sentence for a person."""

    granted: bool
    why: Why
    text: str


def weigh(book: Book, ask: Ask, fleet: FleetReport, limits: Limits, now: float) -> tuple[Book, Answer]:
    """The book with the ask in it, and the answer. Asked twice, the same answer."""
    book = kept(book, limits, now)
    known = next((e for e in book.entries if e.key == ask.key and e.ended is None), None)
    if known is not None and ask.by == known.by:
        if known.granted:
            return book, Answer(granted=True, why="granted", text="it is in the fleet's book already")
        return book, Answer(
            granted=False, why="handed_over", text="the fleet's book refused it before; it is a person's to decide"
        )
    answer = _answer(book, ask, fleet, limits, now)
    entry = Entry(node=ask.node, key=ask.key, token=ask.token, code=ask.code, at=now, by=ask.by, granted=answer.granted)
    others = tuple(e for e in book.entries if e.key != ask.key)
    return Book(entries=(*others, entry)[-ENTRIES_MOST:]), answer


def give_back(book: Book, node: str, token: str, now: float) -> Book:
    """The node's drain is over, or was never written; the same book where it knows of none."""
    if not any(e.node == node and e.token == token and e.ended is None for e in book.entries):
        return book
    ended = (
        msgspec.structs.replace(e, ended=now) if e.node == node and e.token == token and e.ended is None else e
        for e in book.entries
    )
    return Book(entries=tuple(ended))


def withdraw(book: Book, key: str) -> Book:
    """What was granted and not written after all counts as if it had never been asked for."""
    left = tuple(e for e in book.entries if e.key != key)
    return book if len(left) == len(book.entries) else Book(entries=left)


def kept(book: Book, limits: Limits, now: float) -> Book:
    """The book without what can decide nothing any more."""
    longest = max(limits.window, limits.cause_window + limits.cause_holds)

    def matters(entry: Entry) -> bool:
        stands = entry.granted and entry.ended is None
        return stands or now - entry.at < longest

    left = tuple(e for e in book.entries if matters(e))
    return book if len(left) == len(book.entries) else Book(entries=left)


def common_causes(book: Book, limits: Limits, now: float) -> tuple[str, ...]:
    """The findings that are a common cause now."""
    return tuple(sorted({e.code for e in book.entries if e.code and _is_common(book.entries, e.code, limits, now)}))


def read_book(text: bytes) -> Book:
    """The book that was written; a new one where nothing was.

    Raises  NotUnderstood, with the text kept: a book that cannot be read grants nothing
    """
    if not text.strip():
        return Book()
    try:
        book = msgspec.json.decode(text, type=Book)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotUnderstood(
            f"the fleet's book is not understood: {error}", text[:200].decode("ascii", "replace")
        ) from error
    if book.version != VERSION:
        raise NotUnderstood(f"the fleet's book has version {book.version}; this gpuguard knows {VERSION}")
    return book


def write_book(book: Book) -> bytes:
    """The book as it is kept."""
    return msgspec.json.encode(book)


def allowed(share: float, nodes: int) -> int:
    """How many nodes a share is; one at least."""
    return max(1, int(share * nodes + 1e-9))


def _answer(book: Book, ask: Ask, fleet: FleetReport, limits: Limits, now: float) -> Answer:
    if ask.by != "gpuguard":
        return Answer(granted=True, why="person", text=f"{ask.by} wants it; a person is not limited")
    mine = Entry(node=ask.node, key=ask.key, token=ask.token, code=ask.code, at=now)
    if ask.code and _is_common((*book.entries, mine), ask.code, limits, now):
        return Answer(
            granted=False, why="common_cause",
            text=f"{ask.code} on more than {limits.cause_nodes} nodes within {limits.cause_window:g} s has a common "
            "cause: nobody is drained for it, people are to find it",
        )  # fmt: skip
    begun = {e.node for e in book.entries if e.granted and e.by == "gpuguard" and now - e.at < limits.window}
    begun |= {d.node for d in fleet.drains if d.since_utc is not None and now - d.since_utc < limits.window} - {
        e.node for e in book.entries if e.by != "gpuguard"
    }
    most = min(limits.most, allowed(limits.share, fleet.nodes))
    if len(begun - {ask.node}) >= most:
        return Answer(
            granted=False, why="window",
            text=f"{len(begun - {ask.node})} nodes began a drain within {limits.window / 60:g} min and {most} may, of "
            f"{fleet.nodes}: a person is to decide",
        )  # fmt: skip
    standing = _standing(book, fleet, now) - {ask.node}
    most = allowed(limits.overall, fleet.nodes)
    if len(standing) >= most:
        return Answer(
            granted=False, why="overall",
            text=f"{len(standing)} nodes stand drained by gpuguard and {most} may, of {fleet.nodes}: a person is to "
            "decide",
        )  # fmt: skip
    return Answer(granted=True, why="granted", text=f"{len(begun - {ask.node}) + 1} of {most} nodes")


def _standing(book: Book, fleet: FleetReport, now: float) -> set[str]:
    """The nodes that stand drained: those that the scheduler shows, and those on their way."""
    shown = {d.node for d in fleet.drains}
    under_way = {
        e.node for e in book.entries if e.granted and e.ended is None and now - e.at < UNSEEN_AFTER
    }  # fmt: skip
    return shown | under_way


def _is_common(entries: Iterable[Entry], code: str, limits: Limits, now: float) -> bool:
    """Whether more nodes than may asked with this finding within the window, now or until `cause_holds` ago.

    While it holds, everybody who asks prolongs it: the cause is not gone as long as nodes report it.
    """
    asked = sorted((min(e.at, now), e.node) for e in entries if e.code == code and e.by == "gpuguard")
    tripped: float | None = None
    for index, (at, _) in enumerate(asked):
        if tripped is not None and at - tripped <= limits.cause_holds:
            tripped = at
            continue
        within = {node for when, node in asked[: index + 1] if at - when <= limits.cause_window}
        tripped = at if len(within) > limits.cause_nodes else None
    return tripped is not None and now - tripped <= limits.cause_holds
