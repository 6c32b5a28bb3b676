"""This node's drain in the bundled scheduler, through its door, and the book of the fleet that it keeps.

The door has what other schedulers lack: a write names the revision of the page that it was judged on, and fails when
that is no longer so. So each action is: read, judge by the table in custody, write on that revision, read again; after
a conflict all of it anew, a few times. An answer that was lost is found out by the next reading.

What runs here is ended (`evict`) and a reboot is asked for (`reboot`) by writing so into our own drain: the scheduler
sends the jobs that may come back to the queue with their checkpoints, and its operator sees the reboot that is wished.

Reads   the pages of model/door.py; docs/scheduler-door.md
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gpuguard.custody.ownership import Judgement, about_the_drain, judge, lifted, shown, unwritten
from gpuguard.custody.token import parse_reason
from gpuguard.errors import ActionDeferred, ActionRefused, ConfigInvalid, ReadFailed, ReadRefused
from gpuguard.model.actions import Action, DrainVerb, Outcome
from gpuguard.model.door import (
    BOOK,
    FLEET,
    NODE_NAME,
    NODES,
    BookPage,
    BookWrite,
    DrainWrite,
    FleetPage,
    NodePage,
    Standing,
    Trouble,
    Wanted,
)
from gpuguard.model.units import Seconds
from gpuguard.ports import FleetDrain, FleetReport, LedgerPage, NodeReport

if TYPE_CHECKING:
    from gpuguard.web.client import Answer

SOCKET: Final = "unix:/run/gpuguard-scheduler/door.sock"
# A write whose answer does not come leaves us not knowing; with less time than this it is not begun.
WRITE_NEEDS: Final = Seconds(0.2)
# How often a page that changed under our hands is read anew before the wish is put off.
TRIES: Final = 4
REASON_KEPT: Final = 400
TOKEN_LIMIT: Final = 4096

_Page = TypeVar("_Page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler is reached; `node` empty means the short host name."""

    address: str = SOCKET  # unix:/path on the scheduler's own machine, else https://host:port
    token_file: str = ""  # the file with the word that opens the door over a network; a Unix socket needs none
    node: str = ""  # the name by which this node joined the scheduler
    deadline: Seconds = Seconds(5.0)  # for a wish with all its questions to the scheduler

    def __post_init__(self) -> None:
        if not self.address.startswith(("unix:/", "http://", "https://")):
            raise ValueError("address: must be unix:/path, http://host:port or https://host:port")
        if self.token_file and not self.token_file.startswith("/"):
            raise ValueError("token_file: must be an absolute path")
        if not self.address.startswith("unix:") and not self.token_file:
            raise ValueError("token_file: must be set where the scheduler is reached over a network")
        if self.node and not NODE_NAME.fullmatch(self.node):
            raise ValueError("node: must be one name of letters, digits, dots, dashes and underscores")
        if not 0.5 <= self.deadline <= 30.0:
            raise ValueError("deadline: must lie between 0.5 and 30 seconds")


class Door:
    """The way to the scheduler's door, one question at a time."""

    def __init__(self, settings: Settings) -> None:
        # Loaded where it is used: the agent reads this file for its settings alone.
        from gpuguard.web.client import Client, on_loopback

        if settings.address.startswith("http://") and not on_loopback(settings.address):
            raise ConfigInvalid(
                ("[actuators.bundled] address: over a network the token would be there for all to read; use https://",)
            )
        self._client: Client = Client(settings.address)
        self._token_file = settings.token_file

    def read(self, path: str, page: type[_Page], until: float) -> _Page:
        """What the scheduler shows at a path.

        Raises  ActionDeferred, ActionRefused, which name the next step
        """
        answer = self._ask("GET", path, None, until)
        if answer.status != HTTPStatus.OK:
            raise _complaint(answer)
        try:
            return msgspec.json.decode(answer.body, type=page)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ActionDeferred(f"the scheduler's answer is not understood: {error}", 10.0) from error

    def write(self, path: str, wish: msgspec.Struct, until: float) -> bool:
        """False when somebody was faster: nothing was written.

        Raises  ActionDeferred when it is not known to be written, ActionRefused when the scheduler said no
        """
        if until - time.monotonic() < WRITE_NEEDS:
            raise ActionDeferred("too little time was left to write; nothing was written", 1.0)
        answer = self._ask("PUT", path, msgspec.json.encode(wish), until)
        if answer.status == HTTPStatus.CONFLICT:
            return False
        if answer.status != HTTPStatus.OK:
            raise _complaint(answer)
        return True

    def _ask(self, method: str, path: str, body: bytes | None, until: float) -> "Answer":
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token_file:
            headers["Authorization"] = f"Bearer {_word(self._token_file)}"
        try:
            return self._client.ask(method, path, until=until, body=body, headers=headers)
        except ReadFailed as error:
            raise ActionDeferred(f"the scheduler gives no answer ({error}); is gpuguard-scheduler up?", 5.0) from error


class Bundled:
    """Drains and releases one node, its own."""

    name = "bundled"

    def __init__(self, settings: Settings, host: Callable[[], str] = socket.gethostname) -> None:
        self.node = settings.node or host().split(".")[0]
        if not NODE_NAME.fullmatch(self.node):
            raise ConfigInvalid((f"[actuators.bundled] node: {self.node!r} cannot be a node's name; set it",))
        self._deadline = settings.deadline
        self._door = Door(settings)

    def perform(self, action: Action) -> Outcome:
        """The wish is fulfilled, or the outcome says who acts next. Safe to send twice."""
        try:
            return self._perform(action, time.monotonic() + self._deadline)
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except ActionRefused as no:
            return Outcome(result="refused", message=str(no))

    def ledger(self) -> "Book":
        """The fleet's book, which the scheduler keeps."""
        return Book(self._door)

    def read_state(self) -> NodeReport:
        """What the scheduler says of this node now; `error` tells why nothing could be learned."""
        try:
            return self._report(self._read(time.monotonic() + self._deadline))
        except (ActionDeferred, ActionRefused) as error:
            refused = isinstance(error, ActionRefused)
            return NodeReport(target=self.name, node=self.node, error=str(error), refused=refused)

    def read_fleet(self) -> FleetReport:
        """Every node with GPUs, and those that gpuguard drained."""
        try:
            page = self._door.read(FLEET, FleetPage, time.monotonic() + self._deadline)
        except (ActionDeferred, ActionRefused) as error:
            return FleetReport(target=self.name, error=str(error), refused=isinstance(error, ActionRefused))
        ours = ((drain, token) for drain in page.drains if (token := parse_reason(drain.reason)) is not None)
        return FleetReport(
            target=self.name,
            nodes=page.nodes,
            drains=tuple(
                FleetDrain(node=drain.node, token=token, code=drain.reason.split(" ")[3], since_utc=drain.since)
                for drain, token in ours
            ),
        )

    def _perform(self, action: Action, until: float) -> Outcome:
        if action.verb != "release" and parse_reason(action.reason) != action.token:
            raise ActionRefused(
                f"the reason {action.reason[:80]!r} does not carry the token {action.token}; nothing was written; "
                "this is a bug, please report it"
            )
        for _ in range(TRIES):
            if about_the_drain(action.verb):
                outcome = self._about_the_drain(action, action.verb, until)
            elif action.verb in ("evict", "reboot"):
                outcome = self._within_our_drain(action, until)
            else:
                raise ActionRefused(f"the bundled scheduler performs no {action.verb} by itself; nothing was done")
            if outcome is not None:
                return outcome
        raise ActionDeferred(
            f"the page of {self.node} changed {TRIES} times while it was read; nothing was written", 1.0
        )

    def _about_the_drain(self, action: Action, verb: DrainVerb, until: float) -> Outcome | None:
        """What came of it; None when somebody wrote between our reading and our writing."""
        page = self._read(until)
        before = self._report(page)
        judgement = judge(before, verb, action.token)
        if judgement.call != "write":
            return self._unwritten(judgement, before)
        wanted = None if verb == "release" else _with(page.drain, action.reason)
        if verb != "release" and page.drain is not None and page.drain.reason == action.reason:
            return Outcome(result="done", message="the reason stands as wished", node_state=before.state)
        if not self._write(page, action, wanted, until):
            return None
        after = self._report(self._read(until))
        if verb == "release":
            return lifted(action.token, before, after, "the scheduler")
        return self._drained(action, before, after)

    def _within_our_drain(self, action: Action, until: float) -> Outcome | None:
        """Our drain says what more is wished; None when somebody wrote meanwhile."""
        if action.drain is None:
            raise ActionRefused(f"{action.verb}: it names no drain to rest on; this is a bug, please report it")
        page = self._read(until)
        before = self._report(page)
        # What may change the reason of that drain may change what else it says.
        judgement = judge(before, "update_reason", action.drain)
        if judgement.call == "wait":
            return self._unwritten(judgement, before)
        if judgement.call != "write" or page.drain is None:
            return self._unwritten(judgement, before)
        wanted = _with(page.drain, page.drain.reason)
        if action.verb == "evict":
            said = "what runs here is ended by the scheduler; jobs that may come back are queued with their checkpoints"
            wanted = msgspec.structs.replace(wanted, running="end")
        else:
            said = f"a reboot of {self.node} is asked for; the scheduler's operator sees it with the node"
            wanted = msgspec.structs.replace(wanted, reboot=str(action.at.boot))
        if (wanted.running, wanted.reboot) == (page.drain.running, page.drain.reboot):
            return Outcome(result="done", message=f"it was asked before: {said}", node_state=before.state)
        if not self._write(page, action, wanted, until):
            return None
        return Outcome(result="done", message=said, node_state=before.state)

    def _drained(self, action: Action, before: NodeReport, after: NodeReport) -> Outcome:
        saw = f"was {before.state}, is {after.state}"
        if after.ours == action.token and after.reason == action.reason:
            message = f"{saw}, reason {after.reason!r}"
            return Outcome(result="done", message=message, node_state=before.state)
        if after.drained and after.reason != before.reason:
            message = f"somebody else wrote at the same moment: {saw}, reason {shown(after)}"
            return Outcome(result="foreign", message=message, node_state=before.state)
        message = f"the scheduler took the write, yet nothing changed: {saw}"
        return Outcome(result="deferred", message=message, retry_after=5.0, node_state=before.state)

    def _unwritten(self, judgement: Judgement, seen: NodeReport) -> Outcome:
        unknown = "; did it join by that name? else set `node` in [actuators.bundled]"
        return unwritten(judgement, seen, unknown if judgement.condition == "unregistered" else "")

    def _read(self, until: float) -> NodePage:
        page = self._door.read(f"{NODES}{self.node}", NodePage, until)
        if page.node != self.node or (page.drain is not None) != ("DRAIN" in page.words) or not page.revision:
            raise ActionDeferred(f"the scheduler's answer is not understood: it is no page of {self.node}", 10.0)
        return page

    def _write(self, page: NodePage, action: Action, drain: Wanted | None, until: float) -> bool:
        wish = DrainWrite(revision=page.revision, by=action.by, drain=drain)
        return self._door.write(f"{NODES}{self.node}/drain", wish, until)

    def _report(self, page: NodePage) -> NodeReport:
        reason = page.drain.reason if page.drain is not None else ""
        return NodeReport(
            target=self.name,
            node=self.node,
            state="+".join(page.words),
            flags=page.words,
            drained=page.drain is not None,
            reason=reason[:REASON_KEPT],
            ours=parse_reason(reason),
        )


class Book:
    """The fleet's book, kept by the scheduler; see ports.Ledger."""

    name = Bundled.name
    anew = f"write an empty text to the scheduler's {BOOK}, see docs/scheduler-door.md"

    def __init__(self, door: Door) -> None:
        self._door = door

    def read(self, until: float) -> LedgerPage:
        """The book as it was last written, and the scheduler's clock.

        Raises  ReadFailed, ReadRefused
        """
        try:
            page = self._door.read(BOOK, BookPage, until)
        except ActionRefused as no:
            raise ReadRefused(str(no)) from no
        except ActionDeferred as later:
            raise ReadFailed(str(later)) from later
        return LedgerPage(version=page.revision, text=page.text, utc=page.utc)

    def write(self, page: LedgerPage, text: bytes, until: float) -> bool:
        """False when somebody was faster.

        Raises  ReadFailed when it is not known to be written, ReadRefused when the scheduler said no
        """
        try:
            return self._door.write(BOOK, BookWrite(revision=page.version, text=text), until)
        except ActionRefused as no:
            raise ReadRefused(str(no)) from no
        except ActionDeferred as later:
            raise ReadFailed(str(later)) from later


def build(settings: Settings) -> Bundled:
    """The actuator of this node; raises ConfigInvalid when it cannot be reached as it is set."""
    return Bundled(settings)


def _with(drain: Standing | None, reason: str) -> Wanted:
    """The drain as it stands, with this reason."""
    return Wanted(reason=reason) if drain is None else Wanted(reason=reason, running=drain.running, reboot=drain.reboot)


def _complaint(answer: "Answer") -> ActionDeferred | ActionRefused:
    """The error that an answer other than 200 and 409 stands for."""
    try:
        said = ascii(msgspec.json.decode(answer.body, type=Trouble).error[:200])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = f"status {answer.status}"
    match answer.status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return ActionRefused(
                f"the scheduler does not let this node in ({said}); `token_file` in [actuators.bundled] must hold its "
                "token"
            )
        case HTTPStatus.BAD_REQUEST | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return ActionRefused(f"the scheduler does not take what gpuguard asks ({said}); please report this")
        case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED:
            return ActionDeferred(
                f"no door of this version is there ({said}); see `address` in [actuators.bundled]", 60.0
            )
    return ActionDeferred(f"the scheduler cannot answer now ({said})", answer.retry_after or 5.0)


def _word(path: str) -> str:
    """The token in a file, read for each question, so that a new one counts at once.

    Raises  ActionRefused
    """
    try:
        with open(path, "rb") as file:
            word = file.read(TOKEN_LIMIT).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ActionRefused(f"{path} cannot be read ({error}); see `token_file` in [actuators.bundled]") from error
    if not word or not word.isprintable() or " " in word:
        raise ActionRefused(f"{path} holds no token: one word; see `token_file` in [actuators.bundled]")
    return word
