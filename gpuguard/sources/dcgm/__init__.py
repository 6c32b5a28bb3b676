"""What a DCGM that runs already tells of each GPU: what keeps its SMs, tensor cores and memory busy, above all.

Reads     an nv-hostengine through NVIDIA's bindings, in a child process; where there is none, the page of a
          dcgm-exporter; of a recorded machine the file dcgm-exporter.prom
Emits     one Sweep each time; what DCGM has no value for has no column
Cursor    none: it looks at the present
Source    DCGM 3.3 to 4.6, dcgm-exporter 3.1 to 4.8

DCGM is optional and never started by us. Where NVML tells the same, NVML is believed. Trouble with DCGM makes this
source blind and nothing else: no result of DCGM's health checks is read, and nothing here drains a node.
"""

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuguard.child.process import Child
from gpuguard.errors import Absent, NotUnderstood, ReadFailed
from gpuguard.model.actions import Question
from gpuguard.model.events import Batch, Cursor, Sweep
from gpuguard.model.ids import EventId, PciAddress, SubjectId, parse_pci_address
from gpuguard.model.readings import Values
from gpuguard.model.units import Seconds
from gpuguard.ports import Clock
from gpuguard.sources.dcgm.engine import QUANTITIES, Address, Engine, find_bindings
from gpuguard.sources.dcgm.page import Target, fetch, listens, parse_url, rows

__all__ = ["QUANTITIES", "Dcgm", "Settings", "build"]

NAME = "dcgm"
RECORDED = "dcgm-exporter.prom"
DRIVER_GPUS = "proc/driver/nvidia/gpus"
PROBE_WITHIN = 1.0
FASTEST = 0.1  # DCGM samples no faster
# Supervision wants a sign of life once a minute.
SLOWEST = 30.0
SWEEPS_VALID = 3
EMPTY_IN_A_ROW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where DCGM is, and how often it is asked. Units: seconds."""

    every: Seconds = Seconds(10.0)  # between two sweeps; dcgm-exporter itself looks every 30 s unless told otherwise
    hostengine: str = "127.0.0.1:5555"  # HOST:PORT or unix:///PATH of an nv-hostengine; an empty text asks none
    bindings: str = ""  # the folder with pydcgm.py; where it is empty, those that DCGM 4 and 3 are installed in
    page: str = "http://127.0.0.1:9400/metrics"  # a dcgm-exporter, asked where no engine is; an empty text asks none
    deadline: Seconds = Seconds(10.0)  # for one answer; connecting to the engine and its first round are within it
    # Whether the engine is asked to profile. On Ampere and older that takes counters which Nsight then cannot have.
    profiling: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for what is no address, and for times that could spin or look like silence."""
        if not FASTEST <= self.every <= SLOWEST:
            raise ValueError(f"every: must be at least {FASTEST:g} and at most {SLOWEST:g}")
        if not 0.0 < self.deadline <= SLOWEST:
            raise ValueError(f"deadline: must be above 0 and at most {SLOWEST:g}")
        for key, text, parse in (("hostengine", self.hostengine, Address), ("page", self.page, parse_url)):
            try:
                if text:
                    parse(text)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error


class Reader(Protocol):
    """One way to DCGM. `read` gives None when it was told to stop."""

    def read(self, wake: int) -> dict[SubjectId, Values] | None: ...

    def close(self) -> None: ...


class Page:
    """The page of a dcgm-exporter, or a recorded one, as `take` gets it."""

    def __init__(self, take: Callable[[], str], where: str, root: Path) -> None:
        self._take, self._where, self._root = take, where, root
        self._uuids: dict[str, PciAddress] = {}

    def read(self, wake: int) -> dict[SubjectId, Values]:
        """Raises ReadFailed."""
        try:
            found = rows(self._take(), self._find)
        except NotUnderstood as error:
            raise ReadFailed(f"{self._where}: {error}; is this a dcgm-exporter?") from error
        if not found:
            raise ReadFailed(
                f"{self._where} tells nothing of any GPU; give dcgm-exporter the list of fields that gpuguard brings "
                "(exporters/dcgm-exporter/counters.csv)"
            )
        return found

    def close(self) -> None:
        """Each reading has a connection of its own."""

    def _find(self, uuid: str) -> PciAddress | None:
        """The address of a GPU by its UUID, from the driver's own list; looked up again for one that is not in it.

        Reads   /proc/driver/nvidia/gpus/<address>/information
        """
        if uuid and uuid not in self._uuids:
            for information in sorted((self._root / DRIVER_GPUS).glob("*/information")):
                try:
                    text = information.read_text(encoding="utf-8", errors="replace")
                    pci = parse_pci_address(information.parent.name)
                except (OSError, NotUnderstood):
                    continue  # this GPU has no name today; its rows are left out
                for line in text.splitlines():
                    if line.startswith("GPU UUID:"):
                        self._uuids[line.partition(":")[2].strip()] = pci
        return self._uuids.get(uuid)


class Dcgm:
    """The source."""

    name = NAME

    def __init__(self, settings: Settings, root: Path, clock: Clock) -> None:
        """Asks nothing yet."""
        self._settings, self._root, self._clock = settings, root, clock
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._abandoned: Child | None = None
        self._engine_failed = False

    def run(self, emit: Callable[[Batch], None], cursor: Cursor | None) -> None:
        """One sweep each `every` seconds until told to stop.

        Raises  Absent where no DCGM runs; ReadFailed when it stopped answering
        """
        reader = self._choose()
        empty = 0
        try:
            while not self._stopping:
                began = self._clock.now()
                found = reader.read(self._wake)
                if found is None and not self._stopping:
                    raise self._hung(reader)
                # The first answers may come before the engine has measured anything.
                empty = 0 if found else empty + 1
                if empty == EMPTY_IN_A_ROW and not self._stopping:
                    raise ReadFailed(
                        f"nv-hostengine at {self._settings.hostengine} answers, and tells nothing of any GPU that is "
                        "newer than its age allows; compare the clocks, and see `dcgmi dmon -e 150`"
                    )
                if found:
                    emit(Batch(source=NAME, events=(self._sweep(found),)))
                    self._engine_failed = False
                emit(Batch(source=NAME, events=()))
                self._wait(began.mono + self._settings.every)
        except ReadFailed:
            # Next time the page is looked at first: an engine of another version than the bindings never answers.
            self._engine_failed = isinstance(reader, Engine)
            raise
        finally:
            reader.close()

    def stop(self) -> None:
        """`run` returns at once, or within a deadline of the page."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)

    def ask(self, question: Question) -> None:
        """DCGM is no witness of anything."""

    def _choose(self) -> Reader:
        if self._root.resolve() != Path("/"):
            return self._recorded()
        ways = [self._find_engine, self._find_page]
        if self._engine_failed:
            ways.reverse()
        for way in ways:
            reader = way()
            if reader is not None:
                return reader
        raise Absent(
            f"no DCGM: nobody listens at {self._settings.hostengine or '(no engine is set)'}, or its bindings are not "
            f"installed, and there is no page at {self._settings.page or '(no page is set)'}"
        )

    def _recorded(self) -> Reader:
        file = self._root / RECORDED
        if not file.is_file():
            raise Absent(f"the recorded machine has no {RECORDED}")
        return Page(lambda: file.read_text(encoding="utf-8"), str(file), self._root)

    def _find_engine(self) -> Reader | None:
        settings = self._settings
        bindings = find_bindings(settings.bindings) if settings.hostengine else None
        if bindings is None or not (address := Address(settings.hostengine)).listens(PROBE_WITHIN):
            return None
        if self._abandoned is not None and not self._abandoned.gone():
            raise ReadFailed(
                f"the process {self._abandoned.pid} that asked nv-hostengine still hangs; no other one is started "
                "before it has gone"
            )
        self._abandoned = None
        return Engine(
            bindings=bindings, address=address, every=settings.every, deadline=settings.deadline,
            oldest=SWEEPS_VALID * settings.every, profiling=settings.profiling,
        )  # fmt: skip

    def _find_page(self) -> Reader | None:
        settings = self._settings
        if not settings.page:
            return None
        target: Target = parse_url(settings.page)
        if not listens(target, PROBE_WITHIN):
            return None
        return Page(lambda: fetch(target, settings.deadline), settings.page, self._root)

    def _hung(self, reader: Reader) -> ReadFailed:
        if isinstance(reader, Engine):
            self._abandoned = reader.give_up()
        return ReadFailed(
            f"nv-hostengine at {self._settings.hostengine} did not answer within {self._settings.deadline:g} s; the "
            "process that asked it was left behind"
        )

    def _sweep(self, found: dict[SubjectId, Values]) -> Sweep:
        now = self._clock.now()
        return Sweep(
            id=EventId(f"{NAME}/fast:{now.boot[:8]}:{now.mono:.3f}"), at=now, source=NAME, rate="fast",
            valid_for=SWEEPS_VALID * self._settings.every, rows=found,
        )  # fmt: skip

    def _wait(self, until: float) -> None:
        left = until - self._clock.now().mono
        if left > 0 and not self._stopping:
            select.select([self._wake], [], [], left)


def build(settings: Settings, root: Path, clock: Clock) -> Dcgm:
    """The source for the machine under `root`."""
    return Dcgm(settings, root, clock)
