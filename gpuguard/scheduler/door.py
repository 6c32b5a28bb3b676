"""What others may ask the scheduler about nodes, and what becomes of what they write.

Theory. The core keeps every ground that stands against a node as a bar with an id; whoever shares a node with
administrators and other tools needs one more thing: whose drain it is, in their words, and a write that fails when
somebody was faster. So of all bars that somebody asked for on a whole node, the one that was put up first is *the*
drain; the next is shown when it is gone. The door keeps notes on bars (reason, who, what was asked along with it) and
nothing else about nodes: whether a drain stands is read from the node's life each time, so that one that was lifted by
another way is never shown. A revision is a print of the page it stands on. A write that comes with another one changes
nothing; there is no other lock. Whose drain may be written over is no affair of the door: whoever comes to it judges by
custody's table on the page it read.

The bars that the machine puts up by itself are words of the page: they say that the node is out of service already,
and that nobody should write.

The daemon calls `answer` with its state and writes what comes back, the door and the events, in one transaction before
it replies; the events are folded before the next question is answered.

Units   now: whole seconds since 1970 by the daemon's clock
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from gpuguard.model.door import (
    BODY_LIMIT,
    BOOK,
    FLEET,
    NAME_LIMIT,
    NODE_NAME,
    NODES,
    REASON_LIMIT,
    BookPage,
    BookWrite,
    DrainWrite,
    FleetDrained,
    FleetPage,
    NodePage,
    Running,
    Standing,
    Taken,
    Trouble,
    Wanted,
)
from gpuguard.scheduler.events import DrainAsked, DrainLifted
from gpuguard.scheduler.grounds import Bar, Ground
from gpuguard.scheduler.nodes import NodeLife

Mark = Literal["MAINTENANCE", "REBOOTING", "POWERED"]
DoorEvent = DrainAsked | DrainLifted

_ASKED: Final[tuple[Ground, ...]] = ("suspected", "confirmed")
# Doubts and verdicts of the machine's own: somebody or something looks after the node already.
_LOOKED_AFTER: Final[tuple[Ground, ...]] = ("silence", "rejoined", "failed", "flaps")
# Who lifts in this name is no person.
GPUGUARD: Final = "gpuguard"
# The second bar of a drain whose jobs have to end; it goes with the first.
_ENDING: Final = "/end"


class Note(Wanted, frozen=True, kw_only=True, omit_defaults=True):
    """What a bar does not say of itself: its reason as it is now, and who wrote that."""

    by: str = ""


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """What the door keeps.

    Shape   number: of the newest drain that came through it. notes: by bar. marks: by node, what its operator says
            goes on with it. edition: how often the book was written
    """

    number: int = 0
    notes: dict[str, Note] = {}
    marks: dict[str, tuple[Mark, ...]] = {}
    book: bytes = b""
    edition: int = 0


class Reply(NamedTuple):
    """What goes back, and what is to be written first: the door as it is now, and what the core has to fold."""

    status: int
    body: bytes
    door: Door
    events: tuple[DoorEvent, ...] = ()


class Refused(NamedTuple):
    """Why nothing was written, as a status of HTTP and a sentence."""

    status: Literal[400, 404, 405, 409, 413]
    why: str


# The pages


def read_node(door: Door, node: str, life: NodeLife | None) -> NodePage:
    """What the scheduler says of the node; `life` is None for one that never joined."""
    bar = _standing(life) if life is not None else None
    words = _words(life, door.marks.get(node, ()))
    page = NodePage(
        node=node,
        words=(*words, "DRAIN") if bar is not None else words,
        drain=_shown(bar, door) if bar is not None else None,
    )
    print_of = hashlib.blake2b(msgspec.json.encode(page), digest_size=8)
    return msgspec.structs.replace(page, revision=print_of.hexdigest())


def read_fleet(door: Door, lives: Mapping[str, NodeLife]) -> FleetPage:
    """The nodes with GPUs that are not switched off, and all of them that stand drained."""
    there = {n: life for n, life in sorted(lives.items()) if life.gpus > 0 and "POWERED" not in door.marks.get(n, ())}
    drains = ((node, bar) for node, life in there.items() if (bar := _standing(life)) is not None)
    return FleetPage(
        nodes=len(there),
        drains=tuple(
            FleetDrained(node=node, reason=_shown(bar, door).reason, since=float(bar.at)) for node, bar in drains
        ),
    )


def read_book(door: Door, now: int) -> BookPage:
    """The fleet's book as it was last written."""
    return BookPage(revision=str(door.edition), text=door.book, utc=float(now))


# The writes


def write_drain(
    door: Door, node: str, life: NodeLife | None, wish: DrainWrite, now: int
) -> tuple[Door, tuple[DoorEvent, ...]] | Refused:
    """The door and the core's events once the drain is as wished, or why it was not done.

    A drain that stands keeps its id and its cause in the core, whatever its reason becomes: the first cause counts.
    """
    if life is None:
        return Refused(404, f"no node {node[:NAME_LIMIT]} has joined; by which name does its agent join?")
    page = read_node(door, node, life)
    if wish.revision != page.revision:
        return Refused(409, f"{node} was changed meanwhile: it is of revision {page.revision}; read it again")
    standing = page.drain
    if (mistake := _mistake(wish)) is not None:
        return Refused(400, mistake)
    wanted = wish.drain
    if wanted is None:
        return _lifted(door, life, wish.by, now)
    events: tuple[DoorEvent, ...] = ()
    if standing is None:
        door = msgspec.structs.replace(door, number=door.number + 1)
        bar_id = f"door@{door.number}"
        events = (_ask(bar_id, node, wanted.reason, "keep", now),)
    else:
        bar_id = standing.id
        # What has ended does not run again by a wish to keep it.
        wanted = msgspec.structs.replace(wanted, running="end") if standing.running == "end" else wanted
    if wanted.running == "end" and not life.knows(bar_id + _ENDING):
        events = (*events, _ask(bar_id + _ENDING, node, wanted.reason, "end", now))
    note = Note(reason=wanted.reason, by=wish.by, running=wanted.running, reboot=wanted.reboot)
    return msgspec.structs.replace(door, notes={**door.notes, bar_id: note}), events


def write_book(door: Door, wish: BookWrite) -> Door | Refused:
    """The door with the new book in it, unless somebody was faster."""
    if wish.revision != str(door.edition):
        return Refused(409, f"the book was changed meanwhile: it is of revision {door.edition}; read it again")
    return msgspec.structs.replace(door, book=wish.text, edition=door.edition + 1)


def mark(door: Door, node: str, *marks: Mark) -> Door:
    """What the operator says goes on with a node, in place of what was said before; nothing, when it is over."""
    others = {name: said for name, said in door.marks.items() if name != node}
    return msgspec.structs.replace(door, marks={**others, node: marks} if marks else others)


def booted(door: Door, life: NodeLife, boot: str) -> Door:
    """The node was heard in this boot: a reboot that was asked for during another one has been granted."""
    notes = {
        bar.id: msgspec.structs.replace(note, reboot=None)
        for bar in life.bars
        if (note := door.notes.get(bar.id)) is not None and note.reboot not in (None, boot)
    }
    return msgspec.structs.replace(door, notes={**door.notes, **notes}) if notes else door


def swept(door: Door, lives: Mapping[str, NodeLife]) -> Door:
    """The door without notes on bars that are gone; for whenever the daemon tidies up."""
    standing = {bar.id for life in lives.values() for bar in life.bars}
    return msgspec.structs.replace(door, notes={id: note for id, note in door.notes.items() if id in standing})


# One question


def answer(door: Door, lives: Mapping[str, NodeLife], method: str, path: str, body: bytes, now: int) -> Reply:
    """The whole door: what to reply to one question that came over a socket.

    Whether who asks may ask at all has been settled before.
    """
    if len(body) > BODY_LIMIT:
        return _refuse(door, Refused(413, f"a body of {len(body)} bytes; at most {BODY_LIMIT} are read"))
    try:
        return _answer(door, lives, method, path, body, now)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _refuse(door, Refused(400, f"the body is not understood: {error}"))


def _answer(door: Door, lives: Mapping[str, NodeLife], method: str, path: str, body: bytes, now: int) -> Reply:
    match method, path.removeprefix(NODES).split("/") if path.startswith(NODES) else path:
        case "GET", [node] if NODE_NAME.fullmatch(node):
            return _page(door, read_node(door, node, lives.get(node)))
        case "PUT", [node, "drain"] if NODE_NAME.fullmatch(node):
            wish = msgspec.json.decode(body, type=DrainWrite)
            done = write_drain(door, node, lives.get(node), wish, now)
            return _refuse(door, done) if isinstance(done, Refused) else _page(done[0], Taken(), done[1])
        case "GET", str(what) if what == FLEET:
            return _page(door, read_fleet(door, lives))
        case "GET", str(what) if what == BOOK:
            return _page(door, read_book(door, now))
        case "PUT", str(what) if what == BOOK:
            kept = write_book(door, msgspec.json.decode(body, type=BookWrite))
            return _refuse(door, kept) if isinstance(kept, Refused) else _page(kept, Taken())
        case (("GET" | "PUT"), _):
            return _refuse(door, Refused(404, f"nothing is at {path[:200]!a}; see docs/scheduler-door.md"))
    return _refuse(door, Refused(405, f"{method[:20]!a} is not known here; GET and PUT are"))


def _page(door: Door, page: msgspec.Struct, events: tuple[DoorEvent, ...] = ()) -> Reply:
    return Reply(200, msgspec.json.encode(page), door, events)


def _refuse(door: Door, refused: Refused) -> Reply:
    return Reply(refused.status, msgspec.json.encode(Trouble(error=refused.why)), door)


def _mistake(wish: DrainWrite) -> str | None:
    if not 0 < len(wish.by) <= NAME_LIMIT or not wish.by.isprintable():
        return f"`by` says who wants it, in 1 to {NAME_LIMIT} printable characters"
    if (wanted := wish.drain) is None:
        return None
    if not wanted.reason.strip() or len(wanted.reason) > REASON_LIMIT or not wanted.reason.isprintable():
        return f"a drain needs a reason of 1 to {REASON_LIMIT} printable characters"
    if wanted.reboot is not None and not 0 < len(wanted.reboot) <= NAME_LIMIT:
        return f"`reboot` is the boot id during which it was asked for, in 1 to {NAME_LIMIT} characters"
    return None


def _ask(id: str, node: str, reason: str, running: Running, now: int) -> DrainAsked:
    # Confirmed: what an agent or a person put up is lifted by them, never by a diagnosis that passed.
    return DrainAsked(at=now, id=id, node=node, severity="confirmed", cause=reason, seen=now, running=running)


def _lifted(door: Door, life: NodeLife, by: str, now: int) -> tuple[Door, tuple[DoorEvent, ...]]:
    bar = _standing(life)
    if bar is None:
        return door, ()
    mine = [bar.id, *(other.id for other in life.bars if other.id == bar.id + _ENDING)]
    # In the core, a name behind a lift is a person's, who vouches for the node.
    person = "" if by == GPUGUARD else by
    events = tuple(DrainLifted(at=now, id=id, node=life.node, by=person) for id in mine)
    return msgspec.structs.replace(door, notes={i: n for i, n in door.notes.items() if i != bar.id}), events


def _standing(life: NodeLife) -> Bar | None:
    """The drain of the node: of what somebody asked for on all of it, what was put up first."""
    ids = {bar.id for bar in life.bars}
    asked = (bar for bar in life.bars if bar.mask is None and bar.ground in _ASKED and not _belongs(bar, ids))
    return min(asked, key=lambda bar: (bar.at, bar.id), default=None)


def _belongs(bar: Bar, ids: set[str]) -> bool:
    return bar.id.endswith(_ENDING) and bar.id.removesuffix(_ENDING) in ids


def _shown(bar: Bar, door: Door) -> Standing:
    """The drain as it is told; one that came by another way has its cause for a reason."""
    note = door.notes.get(bar.id) or Note(reason=bar.cause)
    return Standing(
        id=bar.id, since=float(bar.at), reason=note.reason, by=note.by, running=note.running, reboot=note.reboot
    )


def _words(life: NodeLife | None, marks: tuple[Mark, ...]) -> tuple[str, ...]:
    if life is None:
        return ("UNREGISTERED", *marks)
    grounds = {bar.ground for bar in life.bars if bar.mask is None}
    words = ["DOWN" if "lost" in grounds else "OPEN"]
    if life.silence is not None:
        words.append("SILENT")
    if not grounds.isdisjoint(_LOOKED_AFTER):
        words.append("MAINTENANCE")
    return tuple(dict.fromkeys((*words, *marks)))
