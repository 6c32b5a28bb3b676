"""How much of a fleet gpuguard may take out of service by itself.

Theory. One wrong rule, driver or cable makes a thousand nodes sure of their fault in the same minute. So a drain that
no person asked for is entered into a book that all nodes share before it is written, and the book may say no:

1. At most `most` nodes, and at most `share` of the fleet, begin a drain within `window`; at most `overall` of the
   fleet stand drained. Of a small fleet one node always may: a budget of none is no budget.
2. The same finding on more than `cause_nodes` nodes within `cause_window` is a common cause: whatever it is, taking
   nodes away does not mend it. It counts every node that asked, also those that were refused. Once known it holds for
   `cause_holds` after the last node that asked.
3. A version of gpuguard that is new to the fleet takes at most `settling_most` nodes within `window` until the book
   has known it for `settling`. The first version that a book ever knew is not new: there was no upgrade.
4. What was refused is a person's from then on. It is not asked again by itself: a pause is no reason to act later on
   what was seen before it.
5. Nothing here ever stands against a release, or against a drain that a person wants; both are only entered.

The fleet is as large as its scheduler says, and so many nodes stand drained as it shows, whoever wanted that; what the
book knows beyond it, drains that are on their way, comes on top. That is also how the book is mended: an entry whose
drain the scheduler does not show was never written, or is over, and one that grew old can decide nothing any more. So
a release that never reached the book, or a process that died between two steps, costs a minute of caution and no more.
An entry with a date ahead of the clock counts as one of now, and is one of now from then on.

Units   seconds since 1970 by the book-keeper's clock
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from gpuguard.errors import NotUnderstood, ReadFailed, ReadRefused
from gpuguard.model.units import Seconds
from gpuguard.ports import FleetDrain, FleetReport

VERSION: Final = 1
# Some 140 bytes each: all of them fit into an annotation of Kubernetes (256 KiB), the smallest place of a book.
ENTRIES_MOST: Final = 1024
VERSIONS_MOST: Final = 16
CAUSES_MOST: Final = 64
# A drain that was entered and is not seen at the scheduler after this was never written, or was lifted by a person.
UNSEEN_AFTER: Final = 60.0
# A drain is written this long after it was granted at most; so long an entry counts beyond the window.
LATE: Final = 30.0
GPUGUARD: Final = "gpuguard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much gpuguard may take by itself. Shares are of the nodes with GPUs."""

    share: float = 0.02  # of the fleet, begun within `window`; together with `most`, the smaller of the two
    most: int = 5  # nodes, begun within `window`
    window: Seconds = Seconds(600.0)  # how long a drain that began counts as one that just began
    overall: float = 0.05  # of the fleet, standing drained with a token of gpuguard's
    cause_nodes: int = 3  # more nodes than this with one finding within `cause_window` are a common cause
    cause_window: Seconds = Seconds(60.0)  # so close together a common cause shows
    cause_holds: Seconds = Seconds(600.0)  # after the last node that asked with it
    settling: Seconds = Seconds(4 * 3600.0)  # how long a version is new after its first word; 0 for no slow start
    settling_most: int = 1  # nodes that begin a drain within `window` by the word of a version that is new

    def __post_init__(self) -> None:
        for name in ("share", "overall"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: must be more than 0 and at most 1; 0.02 is two nodes of a hundred")
        for name in ("most", "cause_nodes", "settling_most"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        for name in ("window", "cause_window", "cause_holds"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be more than 0 seconds")
        if not 0.0 <= self.settling < float("inf"):
            raise ValueError("settling: must be at least 0 seconds")


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One drain that a node asked for. `granted` is false for one that was refused, or that was granted and found not
    to be written; `ended` is when it was given back or withdrawn."""

    node: str
    key: str
    token: str
    code: str
    at: float
    by: str = GPUGUARD
    granted: bool = True
    ended: float | None = None
    version: str = ""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A version of gpuguard, and when the book first heard of it."""

    version: str
    since: float


class Cause(msgspec.Struct, frozen=True, array_like=True):
    """A finding that is a common cause, and when a node last asked with it."""

    code: str
    last: float


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """Every drain of the fleet that matters still, oldest first; the common causes; the versions the fleet has run."""

    version: int = VERSION
    entries: tuple[Entry, ...] = ()
    causes: tuple[Cause, ...] = ()
    versions: tuple[Known, ...] = ()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A node wants to be drained. `key` is unlike any other of the fleet's; `version` is the asking gpuguard's, empty
    where that is of no account."""

    node: str
    key: str
    token: str
    code: str
    by: str = GPUGUARD
    version: str = ""


Why = Literal["granted", "person", "window", "settling", "overall", "common_cause", "handed_over"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the drain may be written, by which rule, and a sentence for a person."""

    granted: bool
    why: Why
    text: str


def weigh(book: Book, ask: Ask, fleet: FleetReport, limits: Limits, now: float) -> tuple[Book, Answer]:
    """The book with the ask in it, and the answer. Asked twice, the same answer.

    Raises  ReadFailed when the fleet report says nothing, and the answer would have to rest on it; ReadRefused where
            it never will
    """
    settled = foregone(book, ask, limits, now)
    if settled is not None:
        return settled
    if fleet.error is not None or fleet.nodes < 1:
        failed = ReadRefused if fleet.refused else ReadFailed
        raise failed(
            f"how large the fleet is cannot be told: {fleet.error or f'{fleet.target} shows no node with GPUs'}"
        )
    book = kept(noted(book, ask.version, now), limits, now, fleet)
    if any((d.node, d.token) == (ask.node, ask.token) for d in fleet.drains):
        return book, Answer(granted=True, why="granted", text="the scheduler shows that it stands already")
    refused = _refused(book, ask, limits, now)
    return _entered(book, ask, now, refused or _room(book, ask, fleet, limits, now))


def foregone(book: Book, ask: Ask, limits: Limits, now: float) -> tuple[Book, Answer] | None:
    """The same as `weigh` where the answer does not depend on the fleet; None where it does.

    So a thousand nodes with one finding ask the scheduler nothing.
    """
    book = noted(kept(book, limits, now), ask.version, now)
    known = [e for e in book.entries if e.node == ask.node and e.key == ask.key and e.ended is None and e.by == ask.by]
    if any(not e.granted for e in known):
        return book, Answer(
            granted=False, why="handed_over", text="the fleet's book refused it before; it is a person's to decide"
        )
    if known and now - known[0].at < UNSEEN_AFTER:
        # On its way, or written already: what is tried again is dated anew, as it may be written only now.
        again = (msgspec.structs.replace(e, at=now) if e in known else e for e in book.entries)
        return _with(book, sorted(again, key=_when)), Answer(
            granted=True, why="granted" if ask.by == GPUGUARD else "person", text="it is in the fleet's book already"
        )
    if ask.by != GPUGUARD:
        return _entered(
            book, ask, now, Answer(granted=True, why="person", text=f"{ask.by} wants it; a person is not limited")
        )
    # Granted a while ago: the scheduler shows whether it stands.
    refused = None if known else _refused(book, ask, limits, now)
    return None if refused is None else _entered(book, ask, now, refused)


def give_back(book: Book, node: str, token: str, now: float) -> Book:
    """The node's drain is over, or was never written; the same book where it knows of none."""

    def is_it(entry: Entry) -> bool:
        return entry.node == node and entry.token == token and entry.ended is None

    if not any(is_it(e) for e in book.entries):
        return book
    return _with(book, (msgspec.structs.replace(e, ended=now) if is_it(e) else e for e in book.entries))


def withdraw(book: Book, key: str) -> Book:
    """What was granted and not written after all takes no room; that it was asked for stays known, as that may yet show
    a common cause. Asked again, it is weighed anew."""

    def is_it(entry: Entry) -> bool:
        return entry.key == key and entry.granted and entry.ended is None

    if not any(is_it(e) for e in book.entries):
        return book
    return _with(book, (msgspec.structs.replace(e, granted=False, ended=e.at) if is_it(e) else e for e in book.entries))


def kept(book: Book, limits: Limits, now: float, fleet: FleetReport | None = None) -> Book:
    """The book without what can decide nothing any more, and nothing in it dated ahead of the clock.

    Where the fleet is told, what the scheduler does not show after a minute has ended, and what it does show needs no
    entry once it is old: the scheduler is the record of what stands.
    """
    longest = max(limits.window + LATE, limits.cause_window)
    told = fleet is not None and fleet.error is None
    shown = {(d.node, d.token) for d in fleet.drains} if fleet is not None else set()

    def now_is(entry: Entry) -> Entry:
        if entry.at > now:
            entry = msgspec.structs.replace(entry, at=now)
        unseen = told and (entry.node, entry.token) not in shown and now - entry.at >= UNSEEN_AFTER
        return msgspec.structs.replace(entry, ended=now) if entry.ended is None and entry.granted and unseen else entry

    def matters(entry: Entry) -> bool:
        stands = entry.granted and entry.ended is None and not told
        return stands or now - entry.at < longest

    left = tuple(e for e in map(now_is, book.entries) if matters(e))
    causes = tuple(Cause(c.code, min(c.last, now)) for c in book.causes if now - c.last <= limits.cause_holds)
    versions = tuple(Known(k.version, min(k.since, now)) for k in book.versions)
    if (left, causes, versions) == (book.entries, book.causes, book.versions):
        return book
    return msgspec.structs.replace(book, entries=left, causes=causes, versions=versions)


def noted(book: Book, version: str, now: float) -> Book:
    """The book knows that the fleet runs this version; the same book where it knew."""
    if not version or any(k.version == version for k in book.versions):
        return book
    return msgspec.structs.replace(book, versions=(*book.versions, Known(version, now))[-VERSIONS_MOST:])


def of_records(fleet: FleetReport) -> Book:
    """The book as the scheduler's own records tell it, for a fleet that keeps no other: who stands drained, and since
    when. It knows nothing of what was refused, given back or is on its way."""
    entries = [
        Entry(node=d.node, key=f"{d.node}/{d.token}", token=d.token, code=d.code, at=d.since_utc, by=d.by)
        for d in fleet.drains
        if d.since_utc is not None
    ]
    return _with(Book(), sorted(entries, key=_when))


def before(fleet: FleetReport, mine: FleetDrain) -> FleetReport:
    """The fleet as it was when this drain began: without it, and without those that began later.

    Of two drains of one second that of the lesser name is the earlier: every node puts them in the same order.
    """
    turn = (mine.since_utc or 0.0, mine.node)
    earlier = tuple(d for d in fleet.drains if d.node != mine.node and (d.since_utc or 0.0, d.node) < turn)
    return msgspec.structs.replace(fleet, drains=earlier)


def common_causes(book: Book, limits: Limits, now: float) -> tuple[str, ...]:
    """The findings that are a common cause now."""
    return tuple(sorted(c.code for c in kept(book, limits, now).causes))


def read_book(text: bytes) -> Book:
    """The book that was written; a new one where nothing was.

    Raises  NotUnderstood, with the text kept: a book that cannot be read grants nothing
    """
    if not text.strip():
        return Book()
    shown = text[:200].decode("ascii", "replace")
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            raise NotUnderstood(f"the fleet's book has version {version}; this gpuguard knows {VERSION}", shown)
        return msgspec.json.decode(text, type=Book)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstood(f"the fleet's book is not understood: {error}", shown) from error


def write_book(book: Book) -> bytes:
    """The book as it is kept."""
    return msgspec.json.encode(book)


def allowed(share: float, nodes: int) -> int:
    """How many nodes a share is; one at least."""
    return max(1, int(share * nodes + 1e-9))


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def _when(entry: Entry) -> float:
    return entry.at


def _with(book: Book, entries: Iterable[Entry]) -> Book:
    return msgspec.structs.replace(book, entries=tuple(entries))


def _entered(book: Book, ask: Ask, now: float, answer: Answer) -> tuple[Book, Answer]:
    """The ask stands in the book, in place of an older one of the same key, unless that one began otherwise. What
    gpuguard began is never dropped for want of room, or a flood of asks would make room for drains."""
    entry = Entry(
        node=ask.node, key=ask.key, token=ask.token, code=ask.code, at=now, by=ask.by, granted=answer.granted,
        version=ask.version,
    )  # fmt: skip
    same = (ask.node, ask.key)
    older = [e for e in book.entries if (e.node, e.key) != same or _stays(e, ask)]
    for dropped in (_unwritten, _by_a_person):
        spare = len(older) + 1 - ENTRIES_MOST
        gone = set([index for index, e in enumerate(older) if dropped(e)][: max(0, spare)])
        older = [e for index, e in enumerate(older) if index not in gone]
    book = _with(book, (*older, entry))
    if answer.why == "common_cause":
        # Whoever asks prolongs it: the cause is not gone as long as nodes report it.
        causes = (*(c for c in book.causes if c.code != ask.code), Cause(ask.code, now))[-CAUSES_MOST:]
        book = msgspec.structs.replace(book, causes=causes)
    return book, answer


def _stays(entry: Entry, ask: Ask) -> bool:
    """Whether an entry of the same key tells of something else: a drain that is over, or that another one wanted."""
    return entry.granted and (entry.ended is not None or entry.by != ask.by)


def _unwritten(entry: Entry) -> bool:
    return not entry.granted


def _by_a_person(entry: Entry) -> bool:
    return entry.by != GPUGUARD


def _refused(book: Book, ask: Ask, limits: Limits, now: float) -> Answer | None:
    """The answer as far as the book alone forbids it."""
    if ask.code and _is_common(book, ask, limits, now):
        return Answer(
            granted=False, why="common_cause",
            text=f"{ask.code} on more than {limits.cause_nodes} nodes within {limits.cause_window:g} s has a common "
            "cause: nobody is drained for it, people are to find it",
        )  # fmt: skip
    began = [e for e in _began(book, limits, now) if e.node != ask.node]
    begun = {e.node for e in began}
    if len(begun) >= limits.most:
        return _full(len(begun), limits.most, limits)
    fresh = {e.node for e in began if e.version == ask.version}
    if _is_new(book, ask.version, limits, now) and len(fresh) >= limits.settling_most:
        return Answer(
            granted=False, why="settling",
            text=f"gpuguard {ask.version} is new to this fleet: {_nodes(len(fresh))} began a drain by its word within "
            f"{limits.window / 60:g} min and {limits.settling_most} may: a person is to decide",
        )  # fmt: skip
    return None


def _room(book: Book, ask: Ask, fleet: FleetReport, limits: Limits, now: float) -> Answer:
    """The answer as far as it depends on the fleet."""
    drains = {(d.node, d.token): d for d in fleet.drains}
    entered = {(e.node, e.token): e for e in book.entries}
    begun = {e.node for e in _began(book, limits, now)}
    for pair, drain in drains.items():
        entry = entered.get(pair)
        by = drain.by if entry is None else entry.by
        since = drain.since_utc if drain.since_utc is not None else entry.at if entry is not None else now
        if by == GPUGUARD and now - since < limits.window:
            begun.add(drain.node)
    begun.discard(ask.node)
    most = min(limits.most, allowed(limits.share, fleet.nodes))
    if len(begun) >= most:
        return _full(len(begun), most, limits, f", of {fleet.nodes}")
    standing = {d.node for d in fleet.drains} | {
        e.node for e in book.entries if e.granted and e.ended is None and now - e.at < UNSEEN_AFTER
    }
    standing.discard(ask.node)
    ceiling = allowed(limits.overall, fleet.nodes)
    if len(standing) >= ceiling:
        return Answer(
            granted=False, why="overall",
            text=f"{_nodes(len(standing))} stand drained by gpuguard and {ceiling} may, of {fleet.nodes}: a person is "
            "to decide",
        )  # fmt: skip
    return Answer(
        granted=True, why="granted",
        text=f"number {len(begun) + 1} of {most} within {limits.window / 60:g} min, and {len(standing) + 1} of "
        f"{ceiling} in all",
    )  # fmt: skip


def _full(begun: int, most: int, limits: Limits, of: str = "") -> Answer:
    return Answer(
        granted=False, why="window",
        text=f"{_nodes(begun)} began a drain within {limits.window / 60:g} min and {most} may{of}: a person is to "
        "decide",
    )  # fmt: skip


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _began(book: Book, limits: Limits, now: float) -> tuple[Entry, ...]:
    """What gpuguard began of late, whether or not it stands still."""
    return tuple(e for e in book.entries if e.granted and e.by == GPUGUARD and now - e.at < limits.window + LATE)


def _is_new(book: Book, version: str, limits: Limits, now: float) -> bool:
    """Whether the fleet was upgraded to this version of late."""
    first = book.versions[0].version if book.versions else version
    return version != first and any(k.version == version and now - k.since < limits.settling for k in book.versions)


def _is_common(book: Book, ask: Ask, limits: Limits, now: float) -> bool:
    """Whether the finding is a common cause already, or this ask makes it one: more nodes than may asked with it."""
    if any(c.code == ask.code for c in book.causes):
        return True
    nodes = {
        e.node for e in book.entries if e.code == ask.code and e.by == GPUGUARD and now - e.at <= limits.cause_window
    }
    return len(nodes | {ask.node}) > limits.cause_nodes
