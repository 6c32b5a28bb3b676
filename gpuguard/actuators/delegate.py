"""Hands an action to the process that has the right to perform it, and brings back what came of it.

The agent reads hostile text and has no power; `gpuguard-actuator` has the power and reads nothing but this protocol.

Wire    a Unix stream socket. Each message is four bytes of length, big-endian, and that much JSON, at most 4 KiB.
        Any number of requests on a connection, each answered in order. `version` is 1; another version, an unknown
        verb or field, a longer message or anything else is answered with `error`, and the connection is closed.
        request   {"version": 1, "perform": Action}   or   {"version": 1, "perform": null} for the node's state
        reply     {"version": 1, "outcome": Outcome}, {"version": 1, "report": NodeReport}
                  or {"version": 1, "error": text, "denied": true when the peer has no right to ask}
"""

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from gpuguard.errors import ActionDeferred, ActionRefused, NotUnderstood
from gpuguard.model.actions import Action, Outcome
from gpuguard.model.units import Seconds
from gpuguard.ports import NodeReport

VERSION: Final = 1
# The longest honest request has some 600 bytes.
MESSAGE_LIMIT: Final = 4096
LENGTH: Final = struct.Struct(">I")
SOCKET: Final = "/run/gpuguard-actuator/actuator.sock"
# How much of the deadline each kind of question has, so that a process that hangs does not keep the agent from what
# else it owes for longer than it must. An answer that comes too late harms nothing: the wish is sent again by the same
# key, and finds what stands. Behind them lies at most, with T for a wish of the target (its `deadline`, 5 s), F for its
# question about the fleet (5 s; `fleet_deadline` of Slurm, 2 s) and L for the book (`deadline` in [fleet], 2 s):
#   drain, with a book   3 T + F + 3 L: a look, the book, the fleet, the book, the write, a look, the book   26 s of 30
#   drain, by records    3 T + 2 F + 1.1 s: a look, the fleet, the write, a second look, the step back       26 s of 30
#   else                 2 T + L: the wish, the node's name, a word to the book                              12 s of 15
#   look                 T                                                                                    5 s of 10
SHARES: Final = {"drain": 1.0, "else": 1 / 2, "look": 1 / 3}


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question to the privileged process: perform this, or (None) what does the scheduler say of this node?"""

    version: int
    perform: Action | None


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Its answer; exactly one of outcome, report and error is set."""

    version: int
    outcome: Outcome | None = None
    report: NodeReport | None = None
    error: str | None = None
    denied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the privileged process listens, and how long it may take.

    By itself `deadline` is longer than all that can happen behind a drain, some 26 s with everything as it ships: a
    site that raises the target's deadline, or that of [fleet], raises this too.
    """

    socket: str = SOCKET  # the same as in [actuator]
    # For a drain; half of it for anything else, a third for a look. Without an answer by then it is tried again.
    deadline: Seconds = Seconds(30.0)

    def __post_init__(self) -> None:
        if not 0.1 <= self.deadline <= 300.0:
            raise ValueError("deadline: must lie between 0.1 and 300 seconds")


class Delegate:
    """The agent's hand: everything it wishes goes through here."""

    name = "delegate"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def perform(self, action: Action) -> Outcome:
        """What the privileged process answered; no answer means that the wish is still owed."""
        try:
            reply = self._ask(Request(version=VERSION, perform=action))
        except ActionDeferred as later:
            return Outcome(result="deferred", message=str(later), retry_after=later.retry_after)
        except ActionRefused as no:
            return Outcome(result="refused", message=str(no))
        if reply.outcome is None:
            return Outcome(result="deferred", message="gpuguard-actuator answered another question", retry_after=10.0)
        return reply.outcome

    def read_state(self) -> NodeReport:
        """What the scheduler says of this node, asked with the privileged process's eyes."""
        try:
            reply = self._ask(Request(version=VERSION, perform=None))
        except (ActionDeferred, ActionRefused) as error:
            return NodeReport(target=self.name, node="", error=str(error))
        if reply.report is None:
            return NodeReport(target=self.name, node="", error="gpuguard-actuator answered another question")
        return reply.report

    def _ask(self, request: Request) -> Reply:
        asked = "look" if request.perform is None else "drain" if request.perform.verb == "drain" else "else"
        within = self._settings.deadline * SHARES[asked]
        until = time.monotonic() + within
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
                link.settimeout(within)
                link.connect(self._settings.socket)
                # One that refuses us says so and closes before it has read: its answer is worth reading still.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    link.sendall(frame(msgspec.json.encode(request)))
                reply = msgspec.json.decode(_received(link, until), type=Reply)
        except TimeoutError as error:
            raise ActionDeferred(
                f"gpuguard-actuator gave no answer within {within:g} s; is it hung? see its journal", 10.0
            ) from error
        except PermissionError as error:
            raise ActionRefused(
                f"no right to write to {self._settings.socket}; the agent must run as a member of the socket's group"
            ) from error
        except OSError as error:
            raise ActionDeferred(
                f"gpuguard-actuator cannot be reached at {self._settings.socket} ({error.strerror}); "
                "is gpuguard-actuator.socket active?",
                10.0,
            ) from error
        except (msgspec.MsgspecError, NotUnderstood) as error:
            raise ActionDeferred(f"gpuguard-actuator's answer is not understood: {error}", 10.0) from error
        if reply.denied:
            raise ActionRefused(f"gpuguard-actuator refuses this user: {reply.error}")
        if reply.error is not None:
            raise ActionDeferred(f"gpuguard-actuator: {reply.error}", 30.0)
        return reply


def build(settings: Settings) -> Delegate:
    """The agent's actuator when it is set to act."""
    return Delegate(settings)


def frame(message: bytes) -> bytes:
    """The message as it goes over the wire.

    Raises  NotUnderstood when it is longer than the wire allows
    """
    if len(message) > MESSAGE_LIMIT:
        raise NotUnderstood(f"a message of {len(message)} bytes; at most {MESSAGE_LIMIT} go over the wire")
    return LENGTH.pack(len(message)) + message


def unframed(buffer: bytes | bytearray) -> bytes | None:
    """The first whole message in the buffer, None while it is not all there.

    Raises  NotUnderstood when its length says that it never can be
    """
    if len(buffer) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack_from(buffer)
    if length > MESSAGE_LIMIT:
        raise NotUnderstood(f"a message of {length} bytes; at most {MESSAGE_LIMIT} go over the wire")
    message = bytes(buffer[LENGTH.size : LENGTH.size + length])
    return message if len(message) == length else None


def _received(link: socket.socket, until: float) -> bytes:
    buffer = bytearray()
    while (message := unframed(buffer)) is None:
        link.settimeout(max(0.001, until - time.monotonic()))
        data = link.recv(MESSAGE_LIMIT)
        if not data:
            raise NotUnderstood("it hung up in the middle" if buffer else "it hung up without a word")
        buffer += data
    return message
