"""Memory of a GPU that the dead hold, or those whose job is over: it looks used, is empty, and nobody can have it.

A process that ends gives its memory back within seconds, and a scheduler ends what is left of a job within a minute.
What is held for longer than five minutes wants a look. gpuguard ends nothing by itself unless the site says so, and
never a process whose job lives.

Reads     gpu_orphan_bytes and gpu_orphans of each GPU
Source    practice of large clusters: a patrol of the GPUs' memory every 5 minutes; nvml.h, nvmlProcessInfo_t
Clears    when the memory is given back, a reset, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, size
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Bytes, Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held

PIDS_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much, for how long."""

    bytes: Bytes = Bytes(256 * 2**20)  # a context without data holds about this much
    hold: Seconds = Seconds(300.0)  # by the same processes


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it has been held, and by which processes, as far as they have been the same."""

    held: Held = Held()
    by: tuple[str, ...] = ()


class GpuOrphanMemory:
    """Reports GPU memory that nobody uses and nobody can have."""

    name = "gpu_orphan_memory"
    of: tuple[SubjectKind, ...] = ("gpu",)
    reads = ("gpu_orphan_bytes",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        bytes_ = row.number("gpu_orphan_bytes")
        if bytes_ is None:
            return memory, ()
        names = [clean(name, 32) for name in (row.text("gpu_orphans") or "").split(",") if name]
        much = bytes_ >= self.settings.bytes
        after = _held(memory, much, tuple(names[:PIDS_KEPT]), row)
        return after, (
            Finding(
                subject=subject, check=self.name, code="gpu_orphan_memory", at=row.at, severity="degraded",
                stands=after.held.lasted(self.settings.hold, row.at), blame="program", advice="watch",
                clears=("reset", "reboot", "ack"), reason=_reason(bytes_, names),
            ),
        )  # fmt: skip


def _held(memory: Memory, much: bool, names: tuple[str, ...], row: Row) -> Memory:
    """With a new look: others than before begin anew, as jobs that end one after another leave something each time."""
    if not much:
        return Memory()
    same = tuple(name for name in names if name in memory.by)
    if memory.by and not same:
        return Memory(held=Held(since=row.at), by=names)
    return Memory(held=memory.held.told(True, row.at), by=same or names)


def _reason(bytes_: float, names: Sequence[str]) -> str:
    held = f"{size(bytes_)} are held by "
    if not names:
        return f"{held}no process that the driver lists, on a GPU that does nothing; a reset of the GPU frees them"
    pids = [name.partition("/")[0] for name in names]
    more = f" and {len(pids) - PIDS_KEPT} more" if len(pids) > PIDS_KEPT else ""
    return (
        f"{held}pid {' '.join(pids[:PIDS_KEPT])}{more}, dead or of a job that is over; end them, or let gpuguard do it "
        "([policy] reclaim_orphans)"
    )


def build(settings: Settings, rules: Rules) -> GpuOrphanMemory:
    """The detector with a site's settings."""
    return GpuOrphanMemory(settings)
