"""The small privileged process: performs the closed list of verbs on this node, for root and the agent alone.

It reads no log, and no request names a node, a program or a file; one may name a job, a process or a
GPU of this node by its number, which is looked into before it is believed. It serves one request at a time;
each has the deadline of its target. What takes longer, a GPU's test or reset, is begun by a request and asked after by
the next ones. Started through its socket, it ends after a minute without work and costs nothing until the next.

usage   gpuguard-actuator [--config FILE] [--socket PATH] [--allow-user NAME]...
"""

import argparse
import contextlib
import grp
import os
import pwd
import select
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from gpuguard.actuators.delegate import MESSAGE_LIMIT, VERSION, Reply, Request, frame, unframed
from gpuguard.errors import ConfigInvalid, NotUnderstood
from gpuguard.model.units import Seconds
from gpuguard.ports import Actuator
from gpuguard.runtime import targets
from gpuguard.runtime.actuator_settings import Settings
from gpuguard.runtime.sockets import remove_dead

USAGE_ERROR: Final = 64
# systemd hands sockets over from this descriptor on (man sd_listen_fds).
LISTEN_FDS_START: Final = 3
# One agent and a few commands by hand; more than that is a mistake or worse.
LINKS: Final = 16
# From the first byte of a request to its last; honest ones are written at once.
PATIENCE: Final = Seconds(2.0)
_PEER = struct.Struct("3i")  # pid, uid, gid: man unix(7), SO_PEERCRED


class Link:
    """One connection: what it has sent so far, since when, and who is on the other end."""

    def __init__(self, sock: socket.socket, pid: int, uid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.uid = uid
        self.buffer = bytearray()
        self.since: float | None = None


class Server:
    """Answers requests from a listening socket until it is told to stop or has been idle for long enough."""

    def __init__(
        self,
        listener: socket.socket,
        actuator: Actuator,
        allowed: frozenset[int],
        idle: float | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`busy` tells whether something goes on that was asked for: it is not idle then."""
        self._listener = listener
        self._actuator = actuator
        self._allowed = allowed
        self._idle = idle
        self._busy = busy
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._stopping, self._stop = socket.socketpair()
        self._stop.setblocking(False)
        listener.setblocking(False)

    def stop(self) -> None:
        """`serve` returns once the request in hand is answered. Safe in a signal handler and in another thread."""
        try:
            self._stop.send(b"!")
        except OSError:
            return  # already told, or already over

    def serve(self) -> str:
        """Why it ended: `told` or `idle`."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopping, selectors.EVENT_READ)
        quiet_since = time.monotonic()
        try:
            while True:
                ready = self._selector.select(self._patience(quiet_since))
                for key, _ in ready:
                    if key.fileobj is self._stopping:
                        return "told"
                    if key.fileobj is self._listener:
                        self._accept()
                    elif link := self._links.get(key.fd):
                        self._read(link)
                    quiet_since = time.monotonic()
                self._drop_slow()
                if not ready and self._idle is not None and time.monotonic() - quiet_since >= self._idle:
                    if not self._busy():
                        return "idle"
                    quiet_since = time.monotonic()
        finally:
            for link in list(self._links.values()):
                self._close(link)
            self._selector.close()
            self._stopping.close()
            self._stop.close()

    def _patience(self, quiet_since: float) -> float | None:
        waits = [link.since + PATIENCE for link in self._links.values() if link.since is not None]
        if self._idle is not None:
            waits.append(quiet_since + self._idle)
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            # The peer has hung up already, or descriptors ran out: the socket stays, the next one may fare better.
            log("warning", "peer.lost", reason=error.strerror or type(error).__name__)
            return
        sock.setblocking(False)
        pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        link = Link(sock, pid, uid)
        if uid not in self._allowed:
            log("warning", "peer.denied", pid=pid, uid=uid)
            self._send(link, Reply(version=VERSION, error=f"uid {uid} may not ask; see --allow-user", denied=True))
            sock.close()
        elif len(self._links) >= LINKS:
            log("warning", "peer.turned_away", pid=pid, uid=uid, links=len(self._links))
            self._send(link, Reply(version=VERSION, error=f"{LINKS} connections are open already"))
            sock.close()
        else:
            self._links[sock.fileno()] = link
            self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, link: Link) -> None:
        try:
            data = link.sock.recv(MESSAGE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # reset: the same as hung up
        if not data:
            self._close(link)
            return
        link.buffer += data
        link.since = time.monotonic() if link.since is None else link.since
        try:
            while (message := unframed(link.buffer)) is not None:
                del link.buffer[: len(frame(message))]
                link.since = time.monotonic() if link.buffer else None
                if has_hung_up(link.sock):
                    # It waited here while we were stopped or away; who sent it may have thought better of it.
                    log("warning", "request.abandoned", pid=link.pid, uid=link.uid)
                    self._close(link)
                    return
                if not self._send(link, self._answer(link, message)):
                    self._close(link)
                    return
        except NotUnderstood as error:
            log("warning", "request.refused", pid=link.pid, uid=link.uid, reason=str(error))
            self._send(link, Reply(version=VERSION, error=str(error)))
            self._close(link)

    def _answer(self, link: Link, message: bytes) -> Reply:
        """What came of one request.

        Raises  NotUnderstood when it is none of this protocol
        """
        try:
            request = msgspec.json.decode(message, type=Request)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NotUnderstood(f"not a request: {error}") from error
        if request.version != VERSION:
            raise NotUnderstood(f"version {request.version} was asked for, this is version {VERSION}")
        started = time.monotonic()
        if request.perform is None:
            report = self._actuator.read_state()
            log("info", "state.read", uid=link.uid, state=report.state, error=report.error)
            return Reply(version=VERSION, report=report)
        action = request.perform
        outcome = self._actuator.perform(action)
        log(
            {"done": "info", "refused": "error"}.get(outcome.result, "warning"),
            "action.performed",
            key=action.key,
            verb=action.verb,
            token=action.token,
            subject=action.subject,
            result=outcome.result,
            message=outcome.message,
            uid=link.uid,
            seconds=round(time.monotonic() - started, 4),
        )
        return Reply(version=VERSION, outcome=outcome)

    def _send(self, link: Link, reply: Reply) -> bool:
        """Whether the reply went out whole; a peer that does not take one small message is not waited for."""
        try:
            message = frame(msgspec.json.encode(reply))
        except NotUnderstood as error:
            message = frame(msgspec.json.encode(Reply(version=VERSION, error=str(error))))
        try:
            return link.sock.send(message, socket.MSG_NOSIGNAL) == len(message)
        except OSError:
            return False

    def _drop_slow(self) -> None:
        now = time.monotonic()
        for link in list(self._links.values()):
            if link.since is not None and now - link.since >= PATIENCE:
                log("warning", "request.unfinished", pid=link.pid, uid=link.uid, bytes=len(link.buffer))
                self._send(link, Reply(version=VERSION, error=f"the request did not end within {PATIENCE:g} s"))
                self._close(link)

    def _close(self, link: Link) -> None:
        del self._links[link.sock.fileno()]
        self._selector.unregister(link.sock)
        link.sock.close()


def has_hung_up(sock: socket.socket) -> bool:
    """Whether nobody is there any more to take an answer; who only has no more to say is."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def log(level: str, event: str, **facts: object) -> None:
    """One JSON line on standard error; the journal adds the time. A logging library would double this process."""
    line = msgspec.json.encode({"level": level, "event": event, **facts}).decode()
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def own_socket(path: str) -> socket.socket:
    """A listening socket at `path` that root and group gpuguard may write to; a dead one there is replaced.

    Raises  ConfigInvalid
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o117)
    try:
        remove_dead(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise ConfigInvalid((f"[actuator] socket: {path}: {error.strerror or error}; name another",)) from error
    finally:
        os.umask(before)
    with contextlib.suppress(KeyError, PermissionError):  # no such group, or not ours to give: root alone may ask
        os.chown(path, -1, grp.getgrnam("gpuguard").gr_gid)
    listener.listen(LINKS)
    return listener


def handed_socket(environ: Mapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd holds for us, None when we were not started through one.

    Source  man sd_listen_fds
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or environ.get("LISTEN_FDS", "0") == "0":
        return None
    os.set_inheritable(LISTEN_FDS_START, False)
    return socket.socket(fileno=LISTEN_FDS_START)


def allowed_uids(configured: tuple[str, ...], asked: tuple[str, ...]) -> frozenset[int]:
    """Root, the user this runs as, and the named users; a configured one that this machine lacks is passed over.

    Raises  ConfigInvalid for an unknown user named on the command line
    """
    uids = {0, os.geteuid()}
    for name in (*configured, *asked):
        try:
            uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            if name in asked:
                raise ConfigInvalid((f"--allow-user {name}: this machine has no such user",)) from None
            log("warning", "user.absent", user=name)
    return frozenset(uids)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit code: 0 told to stop or idle, 2 a person must change the configuration, 64 usage error."""
    parser = argparse.ArgumentParser(
        prog="gpuguard-actuator",
        description="Drains and releases this node for the gpuguard agent, and does nothing else.",
        epilog="example: gpuguard-actuator --socket /run/gpuguard-actuator/actuator.sock --allow-user gpuguard",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="sections [actuator], [actuators.*] and [fleet] of it"
    )
    parser.add_argument("--socket", metavar="PATH", help="listen here, unless systemd hands a socket over")
    parser.add_argument("--allow-user", metavar="NAME", action="append", default=[], help="may ask, besides root")
    try:
        asked = parser.parse_args(arguments)
    except SystemExit as end:
        return USAGE_ERROR if end.code else 0
    try:
        config = targets.load(asked.config)
        settings: Settings = config.settings("actuator")
        hands = targets.hands(config)
        allowed = allowed_uids(settings.allow_users, tuple(asked.allow_user))
        handed = handed_socket(environ)
        path = "" if handed else asked.socket or settings.socket
        listener = handed or own_socket(path)
    except ConfigInvalid as error:
        sys.stderr.write(f"gpuguard-actuator: {error}\n")
        return error.exit_code
    server = Server(listener, hands, allowed, settings.idle_exit if handed else None, hands.busy)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    log("info", "actuator.started", target=settings.target, socket=path or "from systemd", uids=sorted(allowed))
    try:
        reason = server.serve()
    finally:
        listener.close()
        hands.stop()
        if path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    log("info", "actuator.ended", reason=reason)
    return 0


def main() -> NoReturn:
    """Ends the process with its exit code."""
    raise SystemExit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
