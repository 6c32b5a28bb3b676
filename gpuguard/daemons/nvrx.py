"""Answers the node health check of NVIDIA's resiliency extension (NVRx) from the agent's cache.

`ft_launcher` asks before each rendezvous, over gRPC on a Unix socket, whether its node is healthy; on a no it leaves
the node out. The answer is no while the agent has a confirmed CRITICAL, or while a drain of gpuguard's own stands.
Everything else is a yes with its reason: a check that cannot see must never keep a job from starting.
Whatever the request says is passed over: what NVRx sends are options of a script that there is none of here.

The one method is served by a generic handler, and its answer, four fields, is written here: neither generated code,
which asks for the gRPC it was made with or a newer one, nor the protobuf library is needed, and no request is parsed.

usage   gpuguard-nvrx [--config FILE] [--socket PATH] [--state-dir DIR] [--root DIR]
Source  NVIDIA/nvidia-resiliency-ext, shared_utils/proto/nvhcd.proto and shared_utils/health_check.py NodeHealthCheck
"""

import argparse
import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from gpuguard.errors import Absent, ConfigInvalid
from gpuguard.runtime import cache
from gpuguard.runtime.clock import read_boot_id
from gpuguard.runtime.config import load_config
from gpuguard.runtime.notify import Notifier
from gpuguard.runtime.nvrx_settings import Settings
from gpuguard.runtime.sockets import remove_dead

USAGE_ERROR: Final = 64
SERVICE: Final = "nvhcd.HealthCheckService"
METHOD: Final = "RunHealthCheck"
# Of the 100 ms in which an answer is due. A read takes under one; a disk that needs longer is not well. Units: seconds
PATIENCE: Final = 0.05
# One launcher a node asks once a restart: more at a time are tests, or somebody's loop.
WORKERS: Final = 4
# So many wait or are answered at a time; whoever comes then is told RESOURCE_EXHAUSTED, which NVRx takes for a yes.
# What a user's loop sends would else be kept without limit.
CALLS: Final = 64
# NVRx sends one short word. Units: bytes
REQUEST_LIMIT: Final = 64 * 1024
# The whole cache may name hundreds of parts; the launcher prints what it is told on one line.
FAILED_SHOWN: Final = 16
TEXT_SHOWN: Final = 400
WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
CRITICAL: Final = 2
# States of a drain in which the scheduler keeps jobs away because we said so.
STANDS: Final = ("standing", "releasing")
MISSING: Final = (
    "grpcio is not installed: NVRx cannot be answered without it; `pip install 'gpuguard[nvrx]'` into gpuguard's "
    "environment brings it"
)

# Any: JSON, checked by the keys.
Facts = dict[str, Any]


class Verdict(NamedTuple):
    """What NVRx is told. `failed` names what keeps the node out, and is empty when nothing does; `age` is that of the
    cache, in seconds."""

    healthy: bool
    status: str
    message: str
    failed: tuple[str, ...] = ()
    age: float | None = None


# --- what to say ------------------------------------------------------------------------------------------------------


def judge(found: "tuple[Facts, float] | None", boot: str | None) -> Verdict:
    """The verdict of a snapshot and its age; a yes with the reason for whatever says nothing certain of today."""
    if found is None:
        return _unsure("no cache can be read: the agent does not run, or this process may not read what it wrote")
    snapshot, age = found
    if age > cache.STALE_AFTER:
        return _unsure("the agent gave no sign of life for a while; see `gpuguard status`", age)
    try:
        if boot is not None and snapshot["boot"] != boot:
            return _unsure("the cache is of an earlier boot; the agent has not looked at this one yet", age)
        return _of(snapshot, age)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return _unsure(f"the agent's cache is of another version ({type(error).__name__}); restart the agent", age)


def _of(snapshot: Facts, age: float) -> Verdict:
    """Raises  KeyError, TypeError, ValueError, IndexError, AttributeError for what is no snapshot of ours."""
    status, line = dict(enumerate(WORDS))[snapshot["level"]], str(snapshot["line"])[:TEXT_SHOWN]
    failed: list[str] = []
    if status == WORDS[CRITICAL] and snapshot["confirmed"] is True:
        failed = [
            f"{subject['id']} {finding['code']}"
            for subject in snapshot["subjects"]
            for finding in subject["findings"]
            if finding["severity"] == "critical" and finding["confirmed"] and not finding["secondary_to"]
        ] or ["verdict"]
    drain = snapshot["drain"]
    if drain is not None and drain["state"] in STANDS and not drain["dry_run"]:
        if drain["by"] == "gpuguard":
            failed.append(f"drain {drain['reason']}")
            line = f"{line}; gpuguard drained the node"
        else:
            # Who drains by hand lets running jobs end; their restarts belong to them.
            line = f"{line}; {drain['by']} drained the node, which says nothing of its health"
    if not failed:
        return Verdict(True, status, line, (), age)
    return Verdict(False, WORDS[CRITICAL], line, tuple(part[:TEXT_SHOWN] for part in failed[:FAILED_SHOWN]), age)


def _unsure(why: str, age: float | None = None) -> Verdict:
    return Verdict(True, "UNKNOWN", f"{why}. The job is not held up for that", (), age)


# --- how it is said ---------------------------------------------------------------------------------------------------


def encode(verdict: Verdict) -> bytes:
    """The verdict as a HealthCheckResponse.

    NVRx takes a node only if `success` is set and `output` is JSON whose `fail_count` is 0; its documentation asks for
    `failed_checks`. `error` is for a no alone.
    Shape   1 success (bool), 2 exit_code (int32), 3 output (string), 4 error (string); what has its default is left out
    Source  protobuf.dev/programming-guides/encoding: tag = number << 3 | type, 0 a varint, 2 bytes with their length
    """
    output = {
        "fail_count": len(verdict.failed), "failed_checks": list(verdict.failed), "status": verdict.status,
        "message": verdict.message, "age_s": None if verdict.age is None else round(verdict.age, 1),
    }  # fmt: skip
    parts = b"\x08\x01" if verdict.healthy else b"\x10" + _varint(CRITICAL)
    parts += _text(3, json.dumps(output))
    if not verdict.healthy:
        parts += _text(4, f"{verdict.status}: {verdict.message}; `gpuguard why` on the node tells the whole story")
    return parts


def _text(number: int, text: str) -> bytes:
    # A name may hold half a surrogate pair, which is no UTF-8: such an answer would be no answer.
    data = text.encode("utf-8", "replace")
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the eighth set."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- the process ------------------------------------------------------------------------------------------------------


class Glance:
    """The newest verdict, for as many as ask at once: one read at a time, and nobody waits longer than PATIENCE."""

    def __init__(self, read: Callable[[], Verdict], patience: float = PATIENCE) -> None:
        self._read, self._patience = read, patience
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "cache")
        self._reading: Future[Verdict] | None = None
        self._told: tuple[bool, str] | None = None

    def look(self) -> Verdict:
        """What the cache says now; a yes where that is not known in time."""
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = self._reader.submit(self._read)
            reading = self._reading
        try:
            verdict = reading.result(self._patience)
        except TimeoutError:
            verdict = _unsure(f"the cache was not read within {self._patience:g} s; is the disk well?")
        self._tell(verdict)
        return verdict

    def close(self) -> None:
        """Nothing is read any more; a read that hangs is left behind."""
        self._reader.shutdown(wait=False)

    def _tell(self, verdict: Verdict) -> None:
        """The log has each change, and not each question."""
        said = (verdict.healthy, verdict.message)
        with self._lock:
            if said == self._told:
                return
            self._told = said
        log(
            "info" if verdict.healthy else "warning", "answer.changed", healthy=verdict.healthy, status=verdict.status,
            message=verdict.message, failed=list(verdict.failed),
        )  # fmt: skip


def serve(path: str, look: Callable[[], Verdict]) -> "Callable[[], None]":
    """NVRx is answered at `path`, by whoever on this node asks, until what this gives is called.

    Raises  Absent without grpcio; ConfigInvalid when nothing can listen there
    """
    try:
        import grpc
    except ImportError as error:
        raise Absent(MISSING) from error

    def answer(request: bytes, context: object) -> bytes:
        return encode(look())

    service = grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.unary_unary_rpc_method_handler(answer)})
    workers = ThreadPoolExecutor(WORKERS, "answer")
    limits = [("grpc.max_receive_message_length", REQUEST_LIMIT)]
    server = grpc.server(workers, handlers=[service], options=limits, maximum_concurrent_rpcs=CALLS)
    before = os.umask(0o111)
    try:
        remove_dead(path)
        if server.add_insecure_port(f"unix:{path}") == 0:
            raise OSError(errno.EADDRNOTAVAIL, "gRPC cannot listen there")
        os.chmod(path, 0o666)
    except (OSError, RuntimeError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigInvalid((f"[nvrx] socket: {path}: {what}; name another",)) from error
    finally:
        os.umask(before)
    server.start()

    def stop() -> None:
        server.stop(1.0).wait()
        workers.shutdown(wait=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    return stop


def log(level: str, event: str, **facts: object) -> None:
    """One JSON line on standard error; the journal adds the time."""
    sys.stderr.write(json.dumps({"level": level, "event": event, **facts}) + "\n")
    sys.stderr.flush()


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit code: 0 told to stop, 2 a person must change something, 64 usage error."""
    parser = argparse.ArgumentParser(
        prog="gpuguard-nvrx",
        description="Answers the node health check of NVIDIA's resiliency extension (NVRx) from the agent's cache.",
        epilog="example: gpuguard-nvrx --socket /run/gpuguard-nvrx/nvrx.sock",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="[nvrx] and [agent] state_dir of it")
    parser.add_argument("--socket", metavar="PATH", help="listen here")
    parser.add_argument("--state-dir", metavar="DIR", help="where the agent writes its cache")
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path("/"), help="a recorded machine, by its boot")
    try:
        asked = parser.parse_args(arguments)
    except SystemExit as end:
        return USAGE_ERROR if end.code else 0
    # Before anything that takes time: who is told to stop while it starts stops then.
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        # The other sections belong to the agent, which says what is wrong with them.
        config = load_config(Path(asked.config) if asked.config else None, {"nvrx": Settings}, whole=False)
        settings: Settings = config.settings("nvrx")
        state_dir = asked.state_dir or cache.state_dir(asked.config)
        path = asked.socket or settings.socket
        boot = read_boot_id(asked.root)
        glance = Glance(lambda: judge(cache.read(state_dir), boot))
        stop = serve(path, glance.look)
    except (Absent, ConfigInvalid) as error:
        sys.stderr.write(f"gpuguard-nvrx: {error}\n")
        return error.exit_code
    log("info", "nvrx.started", socket=path, state_dir=state_dir)
    manager = Notifier(environ)
    manager.ready(f"answers NVRx at {path}")
    stopping.wait()
    manager.stopping()
    stop()
    glance.close()
    log("info", "nvrx.ended", reason="told")
    return 0


def main() -> NoReturn:
    """Ends the process with its exit code."""
    raise SystemExit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
