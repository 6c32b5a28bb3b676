"""A person's word to a running daemon: one JSON request and one answer over a Unix socket in the state directory.

Wire    one line of JSON each way, at most 4 KiB. Request: a model/events.py `Acknowledged` or `OperatorAsked` without
        id and time. Answer: {"ok": true|false, "id": event id, "message": text}
Rights  the peer must be root or the daemon's own user (SO_PEERCRED)
"""

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable

import msgspec

from gpuguard.custody.token import parse_token
from gpuguard.errors import NotUnderstood, ReadFailed
from gpuguard.model.events import Acknowledged, Batch, OperatorAsked
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.ports import Clock

NAME = "control.sock"
REQUEST_LIMIT = 4096
DEADLINE = 5.0
# A node that nobody looks after for longer should not be forgotten: whoever wants more says so again. Units: seconds
PAUSE_MOST = 30 * 86400.0


class Word(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person asks for: `verb` is ack, drain, release, adopt, pause or unpause. Units: seconds, of a pause"""

    verb: str
    by: str
    reason: str
    code: str = ""
    subject: str | None = None
    token: str | None = None
    seconds: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `id` names the event in the story."""

    ok: bool
    message: str
    id: str = ""


def as_event(word: Word, clock: Clock, nonce: str) -> Acknowledged | OperatorAsked:
    """The event that a person's word is.

    Raises  ValueError for a verb that does not exist, and for a token that is none
    """
    now = clock.now()
    event_id = EventId(f"person:{now.boot[:8]}:{nonce}")
    by, reason = word.by[:64], word.reason[:500]
    if by.strip().lower() == "gpuguard":
        by = "user gpuguard"  # a person's word is never taken for gpuguard's own
    match word.verb:
        case "ack":
            subject = SubjectId(word.subject) if word.subject else None
            return Acknowledged(id=event_id, at=now, code=word.code, subject=subject, by=by, reason=reason)
        case "pause" | "unpause":
            if word.verb == "pause" and not 0.0 < (word.seconds or 0.0) <= PAUSE_MOST:
                raise ValueError(f"a pause lasts more than 0 and at most {PAUSE_MOST / 86400:g} days")
            return OperatorAsked(id=event_id, at=now, wish=word.verb, by=by, reason=reason, seconds=word.seconds)
        case "drain" | "release" | "adopt":
            try:
                token = parse_token(word.token) if word.token else None
            except NotUnderstood as error:
                raise ValueError(str(error)) from error
            if word.verb == "adopt" and token is None:
                raise ValueError("adopt needs the token that the node carries")
            return OperatorAsked(id=event_id, at=now, wish=word.verb, by=by, reason=reason, token=token)
    raise ValueError(f"no verb {word.verb!r}; there are ack, drain, release, adopt, pause, unpause")


class ControlServer:
    """Listens in the state directory; each request becomes an event, its answer waits until that is on disk."""

    def __init__(self, state_dir: str, clock: Clock, put: Callable[[Batch], None]) -> None:
        self._path = os.path.join(state_dir, NAME)
        self._clock, self._put = clock, put
        self._taken: dict[EventId, queue.SimpleQueue[bool]] = {}
        self._count = 0
        self._stopping = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # the agent's lock says that whoever made it is gone
            self._socket.bind(self._path)
            os.chmod(self._path, 0o660)
            self._socket.listen(8)
        except OSError as error:
            self._socket.close()
            raise ReadFailed(f"cannot listen on {self._path}: {error}; is the path longer than 107 bytes?") from error
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def start(self) -> None:
        """Requests are taken from now on."""
        self._thread.start()

    def taken(self, batch: Batch, *, written: bool = True) -> None:
        """The loop has decided the batch: whoever waits for one of its events is told so, and whether it is on disk."""
        for event in batch.events:
            waiting = self._taken.pop(event.id, None)
            if waiting is not None:
                waiting.put(written)

    def stop(self) -> None:
        """Nobody is listened to any more."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a peer
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _serve(self) -> None:
        while not self._stopping:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                if self._stopping:
                    return
                raise
            with peer:
                peer.settimeout(DEADLINE)
                with contextlib.suppress(OSError):
                    peer.sendall(msgspec.json.encode(self._answer(peer)) + b"\n")

    def _answer(self, peer: socket.socket) -> Answer:
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (0, os.geteuid()):
            return Answer(ok=False, message="not allowed: ask as root or as the agent's own user")
        try:
            word = msgspec.json.decode(_line(peer), type=Word)
            self._count += 1
            event = as_event(word, self._clock, f"{os.getpid()}-{self._clock.now().mono:.3f}-{self._count}")
        except (OSError, ValueError) as error:
            return Answer(ok=False, message=f"not understood: {error}")
        waiting = self._taken.setdefault(event.id, queue.SimpleQueue())
        self._put(Batch(source="operator", events=(event,)))
        try:
            written = waiting.get(timeout=DEADLINE)
        except queue.Empty:
            self._taken.pop(event.id, None)
            return Answer(ok=False, message="the agent did not get to it in time; see `gpuguard status`", id=event.id)
        if not written:
            message = "decided, but the disk refuses it; free space in the state directory and it will be written"
            return Answer(ok=False, message=message, id=event.id)
        return Answer(ok=True, message="written down", id=event.id)


def _line(peer: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) <= REQUEST_LIMIT:
        part = peer.recv(REQUEST_LIMIT)
        if not part:
            break
        data += part
    if len(data) > REQUEST_LIMIT:
        raise ValueError(f"longer than {REQUEST_LIMIT} bytes")
    return data


def tell(state_dir: str, word: Word) -> Answer:
    """What the running daemon answers.

    Raises  ReadFailed when it does not answer
    """
    path = os.path.join(state_dir, NAME)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(2 * DEADLINE)
            link.connect(path)
            link.sendall(msgspec.json.encode(word) + b"\n")
            return msgspec.json.decode(_line(link), type=Answer)
    except (OSError, ValueError) as error:
        raise ReadFailed(f"the agent does not answer on {path}: {error}; see `gpuguard status`") from error
