"""The program that asks NVML: `python -m gpuguard.sources.nvml.child`, with its socket as file descriptor 0.

Threads: the main one asks NVML and may hang in it; one takes what the agent sends, and so notices when it goes away;
one waits for the driver's events. With `--play FILE` a recorded machine answers instead of the driver's library.

When the agent closes its end, or is gone, NVML is shut down in order, and the process ends within three seconds even
where that hangs. Signals that ask it to end are ignored: to be ended in the middle of a call can wedge the GPU.
"""

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpuguard.child.frames import Unframer, framed, receive
from gpuguard.errors import GpuguardError
from gpuguard.sources.nvml.library import LOST_CODES, WHOLE_GPU, XID_EVENT, Library, NvmlError
from gpuguard.sources.nvml.protocol import (
    Begin,
    Begun,
    Doing,
    InCall,
    Look,
    Refused,
    Report,
    Request,
    Seen,
    Xid,
    decode_request,
    encode,
)
from gpuguard.sources.nvml.reader import Reader
from gpuguard.sources.nvml.stopwatch import Stopwatch

END_WITHIN = 3.0  # seconds for the wait for events and nvmlShutdown; that is known to hang
EVENT_WAIT = 0.5  # seconds at most; the thread looks so often whether it is to end


class Served:
    """One run of the program: what its threads share."""

    def __init__(
        self, stream: socket.socket, library: Library, root: Path, *, end: Callable[[], None] | None = None
    ) -> None:
        """`end` is called once the agent is gone, and ends the process in a while; tests hand in their own."""
        self._stream = stream
        self._end = end or _end_within
        self._sending = threading.Lock()
        self._watch = Stopwatch(library)
        self._root = root
        self._wanted: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._reader: Reader | None = None
        self._told: dict[str, str] | None = None
        self._ended = threading.Event()
        self._others = True  # there are GPUs whose events are not collected yet
        self._hearing = threading.Thread(target=self._hear_events, name="events", daemon=True)

    def run(self) -> None:
        """The agent was answered until it went away."""
        threading.Thread(target=self._listen, name="agent", daemon=True).start()
        while (request := self._wanted.get()) is not None:
            try:
                self._answer(request)
            except NvmlError as error:
                self._send(Refused(error.code, self._watch.current))
        self._ended.set()
        if self._reader is not None:
            if self._hearing.ident is not None:
                self._watch.hush()
                self._hearing.join(EVENT_WAIT + 0.5)  # it waits in NVML, which is not to be closed under it
            self._watch.close()

    def _answer(self, request: Request) -> None:
        began = time.perf_counter()
        if isinstance(request, Begin):
            self._watch.open()
            self._reader = Reader(self._watch, self._root, request.known)
            self._send(Begun(time.perf_counter() - began))
        elif isinstance(request, Look) and self._reader is not None:
            reader = self._reader
            rows = reader.sweep(request.rate, request.held)
            known = reader.known
            told = known if known != self._told else None
            self._told = dict(known)
            seconds = time.perf_counter() - began
            self._send(Seen(request.rate, rows, seconds, self._watch.histogram, reader.changed, told))
            self._others = self._others or reader.changed
            if self._hearing.ident is None:
                self._hearing.start()  # not before there are GPUs to hear of

    def _send(self, report: Report) -> None:
        with self._sending:
            try:
                self._stream.sendall(framed(encode(report)))
            except OSError:
                self._wanted.put(None)  # nobody listens any more

    def _listen(self) -> None:
        unframer = Unframer()
        while (message := receive(self._stream, unframer)) is not None:
            try:
                request = decode_request(message)
            except msgspec.MsgspecError:
                break  # another version's agent: it will start one that it understands
            if isinstance(request, Doing):
                self._send(InCall(self._watch.current))
            else:
                self._wanted.put(request)
        self._wanted.put(None)
        self._end()

    def _hear_events(self) -> None:
        """The driver's events went to the agent as they came; where there are none to be had, this just ends."""
        while not self._ended.is_set():
            try:
                if self._others:
                    self._others = False
                    self._watch.listen()
                noticed = self._watch.wait(EVENT_WAIT)
            except NvmlError as error:
                if error.code not in LOST_CODES:
                    return
                self._ended.wait(EVENT_WAIT)  # one GPU is lost, and others still have something to say
                continue
            if noticed is None or noticed.type != XID_EVENT or self._reader is None:
                continue
            pci = self._reader.address_of(noticed.uuid)
            if pci is not None:
                instance = None if noticed.gpu_instance == WHOLE_GPU else noticed.gpu_instance
                self._send(Xid(noticed.value, pci, instance))


def _end_within() -> None:
    """The process has ended, whatever its other threads are stuck in."""
    time.sleep(END_WITHIN)
    os._exit(0)


def library_of(play: Path | None) -> Library:
    """Whoever answers: the driver's library, or a recorded machine.

    Raises  Absent, NotUnderstood
    """
    if play is not None:
        from gpuguard.sources.nvml.played import Player, load

        return Player(load(play), time.monotonic)
    from gpuguard.sources.nvml.live import Live

    return Live()


def _arguments(words: Sequence[str]) -> tuple[Path, Path | None]:
    """What `--root DIR` and `--play FILE` say. By hand: only the agent starts this, and argparse costs 1 MiB."""
    told = dict(zip(words[::2], words[1::2], strict=True))
    return Path(told.get("--root", "/")), Path(told["--play"]) if "--play" in told else None


def main() -> int:
    """Exit code, once the agent went away."""
    root, play = _arguments(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        stream = socket.socket(fileno=0)
        Served(stream, library_of(play), root).run()
    except (GpuguardError, OSError) as error:
        print(f"the NVML child cannot begin: {error}; it is started by the agent", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
