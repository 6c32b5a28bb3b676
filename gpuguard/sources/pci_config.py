"""Whether each NVIDIA GPU still answers on its bus: a witness that neither the driver nor a log can mislead.

Reads     /sys/bus/pci/devices/<address>/{vendor,class,config}, and for the identity
          /proc/driver/nvidia/gpus/<address>/information
Emits     GpuProbed once at the start, on each change, and for every question
Cursor    none: it looks at the present
Source    Linux drivers/pci/pci-sysfs.c (pci_read_config); PCI Local Bus Specification 3.0, 6.1: a read that no device
          answers gives all ones

Each read runs in a thread of its own with a deadline, because a read of a bus that hangs cannot be interrupted. An
address whose read has not come back is not read again; no answer is no event, never a verdict.
"""

import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import Absent, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import AnyEvent, Batch, Cursor, GpuProbed, LinesLost
from gpuguard.model.ids import EventId, GpuUuid, PciAddress, pci_of
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sweeping.gpus import DEVICES, Bus, is_asleep

NAME = "pci_config"
DRIVER_GPUS = "proc/driver/nvidia/gpus"
HEADER_BYTES = 64  # all that an unprivileged reader gets, and enough
QUESTIONS_WAITING = 64

_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site may tune. Units: seconds."""

    every: Seconds = Seconds(60.0)  # each GPU is looked at this often, and at once when a log accuses one
    deadline: Seconds = Seconds(1.0)  # for one read: it takes microseconds, or up to 100 ms where it wakes a device

    def __post_init__(self) -> None:
        """Raises ValueError for values that could spin."""
        if min(self.every, self.deadline) <= 0:
            raise ValueError("every and deadline must be above 0")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one look at an address showed."""

    present: bool
    answers: bool
    uuid: GpuUuid | None = None


def look(device: Path) -> Answer:
    """What the config space of a device says; blocks as long as the bus does.

    Raises  ReadFailed when the kernel lists the device but gives no bytes of it
    """
    try:
        with (device / "config").open("rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return Answer(present=device.exists(), answers=False)
    except OSError as error:
        if not device.exists():
            return Answer(present=False, answers=False)
        raise ReadFailed(f"{device}/config cannot be read: {error.strerror}") from error
    if not header:
        raise ReadFailed(f"{device}/config is empty")
    return Answer(present=True, answers=header.strip(b"\xff") != b"")


def read_uuid(information: Path) -> GpuUuid | None:
    """The UUID that the driver has for this GPU, None while it does not know it.

    Reads   /proc/driver/nvidia/gpus/<address>/information
    Shape   `GPU UUID:` and blanks, then GPU- and a UUID; question marks instead while unknown
    """
    try:
        match = _UUID.search(information.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return GpuUuid(match[1]) if match else None


class PciConfig:
    """The source. `look_at` is the blocking read of one device; tests hand in one that hangs."""

    name = NAME

    def __init__(
        self, settings: Settings, root: Path, clock: Clock, *, look_at: Callable[[Path], Answer] = look
    ) -> None:
        """Reads nothing yet."""
        self._settings = settings
        self._clock = clock
        self._root = root
        self._bus = Bus(root)
        self._look_at = look_at
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._questions: queue.Queue[PciAddress] = queue.Queue(QUESTIONS_WAITING)
        self._last: dict[PciAddress, Answer] = {}
        self._uuids: dict[PciAddress, GpuUuid] = {}
        self._pending: dict[PciAddress, threading.Thread] = {}
        self._identifying: set[PciAddress] = set()
        self._number = 0
        self.unasked = 0  # questions that found the queue full

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """Every GPU was looked at once a sweep, and at once when asked for, until told to stop.

        Raises  Absent where the machine has no PCI bus or no NVIDIA GPU on it
        """
        if not (self._root / DEVICES).is_dir():
            raise Absent(f"{self._root / DEVICES} does not exist; this machine has no PCI bus")
        if not self._bus.gpus() and not self._last:
            raise Absent("no NVIDIA GPU on the PCI bus; it is looked for again later")
        next_sweep = self._clock.now().mono
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopping:
            if (now := self._clock.now().mono) >= next_sweep:
                self._sweep(emit)
                next_sweep = now + self._settings.every
            asked = self._asked()
            if asked:
                emit(Batch(source=NAME, events=tuple(self._probe(asked, changes_only=False))))
            elif not self._stopping:
                poll.poll(max(0.0, next_sweep - now) * 1000)
                if self._questions.empty():
                    self._rest()

    def stop(self) -> None:
        """`run` returns within a deadline."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """The GPU that the question is about is looked at as soon as the thread is free; others are none of ours."""
        pci = pci_of(question.subject)
        if pci is None or not question.subject.startswith("gpu:"):
            return
        self._order(pci)

    def _order(self, pci: PciAddress) -> None:
        try:
            self._questions.put_nowait(pci)
        except queue.Full:
            self.unasked += 1
        os.eventfd_write(self._wake, 1)

    def _rest(self) -> None:
        if select.select([self._wake], [], [], 0)[0]:
            os.eventfd_read(self._wake)

    def _asked(self) -> list[PciAddress]:
        asked: list[PciAddress] = []
        while not self._questions.empty():
            pci = self._questions.get_nowait()
            if pci not in asked:
                asked.append(pci)
        return asked

    def _sweep(self, emit: Callable[[Batch], None]) -> None:
        here = self._bus.gpus()
        awake = [pci for pci in here if pci not in self._last or not is_asleep(self._device(pci))]
        vanished = [pci for pci in self._last if pci not in here]
        events = self._probe([*awake, *vanished], changes_only=True)
        if events:
            emit(Batch(source=NAME, events=tuple(events)))
        emit(Batch(source=NAME, events=()))

    def _device(self, pci: PciAddress) -> Path:
        return self._root / DEVICES / pci

    def _probe(self, addresses: list[PciAddress], *, changes_only: bool) -> list[AnyEvent]:
        """Events about these addresses, as far as they answered within the deadline."""
        done: queue.SimpleQueue[tuple[PciAddress, Answer | ReadFailed]] = queue.SimpleQueue()
        waiting: set[PciAddress] = set()
        events: list[AnyEvent] = []
        for pci in addresses:
            before = self._pending.get(pci)
            if before is not None and before.is_alive():
                continue  # its last read still hangs: another would only hang too
            thread = threading.Thread(target=self._read, args=(pci, done), name=f"pci-{pci}", daemon=True)
            self._pending[pci] = thread
            waiting.add(pci)
            thread.start()
        ends = time.monotonic() + self._settings.deadline
        while waiting:
            try:
                pci, answer = done.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                break
            waiting.discard(pci)
            self._pending.pop(pci, None)
            if isinstance(answer, Answer) and (not changes_only or self._last.get(pci) != answer):
                events.append(self._probed(pci, answer))
            elif isinstance(answer, ReadFailed):
                events.append(self._unanswered(pci, str(answer)))
        events += [
            self._unanswered(pci, f"config space of {pci} was not read within {self._settings.deadline:g} s")
            for pci in sorted(waiting)
        ]
        return events

    def _read(self, pci: PciAddress, done: "queue.SimpleQueue[tuple[PciAddress, Answer | ReadFailed]]") -> None:
        try:
            answer = self._look_at(self._device(pci))
        except ReadFailed as error:
            done.put((pci, error))
            return
        done.put((pci, Answer(present=answer.present, answers=answer.answers, uuid=self._uuids.get(pci))))
        if answer.answers and pci not in self._uuids and pci not in self._identifying:
            # After the answer, because this read waits for the driver's locks and may not come back at all.
            self._identifying.add(pci)
            uuid = read_uuid(self._root / DRIVER_GPUS / pci / "information")
            self._identifying.discard(pci)
            if uuid is not None:
                self._uuids[pci] = uuid
                self._order(pci)

    def _probed(self, pci: PciAddress, answer: Answer) -> GpuProbed:
        self._last[pci] = answer
        now = self._clock.now()
        return GpuProbed(
            id=self._next_id(pci),
            at=now,
            source=NAME,
            pci=pci,
            present=answer.present,
            answers=answer.answers,
            uuid=answer.uuid,
        )

    def _unanswered(self, pci: PciAddress, reason: str) -> LinesLost:
        return LinesLost(id=self._next_id(pci), at=self._clock.now(), source=NAME, count=1, reason=reason)

    def _next_id(self, pci: PciAddress) -> EventId:
        now = self._clock.now()
        self._number += 1
        return EventId(f"{NAME}:{now.boot[:8]}:{pci}:{now.mono:.3f}-{self._number}")


def build(settings: Settings, root: Path, clock: Clock) -> PciConfig:
    """The source for the machine under `root`."""
    return PciConfig(settings, root, clock)
