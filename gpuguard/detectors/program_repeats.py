"""Program faults that repeat on one GPU, or on one part of it, over different processes.

A program fault (Xid 13, 31, 43, 45 and their kin) accuses the program and never drains. When different processes meet
it on the same GPU, or a warp exception on the same GPC and TPC, the hardware becomes suspect: diagnose it when idle.

Reads     LogLine of kind xid with a program code
Source    NVIDIA's workflow for Xid 13 and 31; field reports of one bad SM that printed Xid 13 again and again
Clears    after a day without a further process that met it, a reset, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import AnyEvent, LogLine, subject_of
from gpuguard.model.findings import Finding
from gpuguard.model.ids import EventId, SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules

# Bounds the memory kept of one GPU, whatever a burst prints.
MEETINGS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """When repeats accuse the hardware."""

    # Xids that a program can cause; one program's many count once.
    codes: tuple[int, ...] = (8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 109, 137)
    # Xid 13 on the same GPC and TPC, over this many processes.
    processes_per_tpc: int = 3
    # Any of the codes on the same GPU. A shared node sees a few broken programs a day, so this one is less eager.
    processes_per_gpu: int = 5
    within: Seconds = Seconds(86400.0)  # all of it in this time

    def __post_init__(self) -> None:
        if self.processes_per_tpc < 2 or self.processes_per_gpu < 2:
            raise ValueError("processes_per_tpc and processes_per_gpu must be at least 2: one process proves nothing")


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One process met a program fault at a place."""

    place: str
    process: str
    at: Instant
    event: EventId


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The newest meeting of each process at each place."""

    meetings: tuple[Meeting, ...] = ()


class ProgramRepeats:
    """Accuses a GPU when different processes meet the same program fault on it."""

    name = "program_repeats"
    reads = (LogLine,)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        if isinstance(event, LogLine) and event.parsed.kind == "xid" and event.parsed.xid in self.settings.codes:
            return (subject_of(event.parsed),) if event.parsed.pci else ()
        return ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if not isinstance(event, LogLine):
            return memory, ()
        parsed = event.parsed
        # Without a process there is nobody to tell apart; what another fault caused says nothing of the program.
        if parsed.pid is None or "caused_by" in parsed.detail:
            return memory, ()
        place = _place(parsed.xid, parsed.detail.get("gpc"), parsed.detail.get("tpc"))
        meeting = Meeting(place=place, process=f"{parsed.pid}/{parsed.process or ''}", at=event.at, event=event.id)
        kept = [m for m in memory.meetings if (m.place, m.process) != (meeting.place, meeting.process)]
        kept = [m for m in kept if (seconds_between(m.at, event.at) or 0.0) <= self.settings.within]
        meetings = (*kept, meeting)[-MEETINGS_KEPT:]
        return Memory(meetings=meetings), self._judge(subject, meetings, meeting, event.source)

    def _judge(
        self, subject: SubjectId, meetings: Sequence[Meeting], newest: Meeting, source: str
    ) -> Sequence[Finding]:
        here = [m for m in meetings if m.place == newest.place]
        limit = self.settings.processes_per_tpc if newest.place != "gpu" else self.settings.processes_per_gpu
        where = f"on {newest.place}" if newest.place != "gpu" else "on this GPU"
        if len({m.process for m in here}) < limit:
            here, limit, where = list(meetings), self.settings.processes_per_gpu, "on this GPU"
        processes = {m.process for m in here}
        if len(processes) < limit:
            return ()
        return (
            Finding(
                subject=subject, check=self.name, code=self.name, at=newest.at, severity="degraded", remedy="test",
                blame="hardware", advice="test", clears=("quiet", "reset", "reboot", "replace", "ack"),
                quiet_after=self.settings.within, source=source, because=tuple(m.event for m in here[-limit:]),
                reason=f"{len(processes)} different processes met a program fault {where}; diagnose it when idle",
            ),
        )  # fmt: skip


def _place(xid: int | None, gpc: object, tpc: object) -> str:
    return f"GPC {gpc} TPC {tpc}" if xid == 13 and gpc is not None and tpc is not None else "gpu"


def build(settings: Settings, rules: Rules) -> ProgramRepeats:
    """The detector with a site's settings."""
    return ProgramRepeats(settings)
