"""Jobs that were given more than they use: GPUs that stay idle, or big cards of which they fill a corner.

A job that asks for eight GPUs and works on three keeps five from everybody until it ends, and all who wait behind it.
It is advice to its owner and no fault. A job that works on none is not meant here: see low activity and progress.

Reads     job_gpus_asked, or job_gpus_held where no scheduler tells, with job_gpus_working; job_gpu_memory_peak_ratio
          with job_gpu_memory_peak_bytes; job_seen_seconds; of each job
Source    a cluster's review of two weeks: jobs that ask for 80 GB and use 20, and for eight GPUs to feed three
Clears    when it uses what it has, when it is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import counted, size
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Bytes, Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How little, for how long, of how much."""

    window: Seconds = Seconds(3600.0)  # GPUs that did nothing for as long as this; nor is a younger job judged
    memory_ratio: float = 0.3  # less of a card than this, at most, over all of its life
    big: Bytes = Bytes(40 * 2**30)  # of cards with at least this much

    def __post_init__(self) -> None:
        if not 0 < self.memory_ratio < 1:
            raise ValueError("memory_ratio must be between 0 and 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when it works on fewer GPUs than it has."""

    fewer: Held = Held()


class JobOversized:
    """Reports jobs that could do with less."""

    name = "job_oversized"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_gpus_working", "job_gpu_memory_peak_ratio", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if row.number("job_ended") == 1:
            codes = ("job_oversized_gpus", "job_oversized_memory")
            return Memory(), tuple(self._finding(subject, row, code, False, "") for code in codes)
        seen, working = row.number("job_seen_seconds"), row.number("job_gpus_working")
        if seen is None or working is None:
            return memory, ()
        findings: list[Finding] = []
        old = seen >= self.settings.window
        asked = row.number("job_gpus_asked")
        asked = row.number("job_gpus_held") if asked is None else asked
        after = memory
        if asked is not None:
            fewer = memory.fewer.told(1 <= working < asked, row.at)
            after = Memory(fewer=fewer)
            reason = (
                f"it has {counted(asked, 'GPU')} here and works on {working:g}; ask for fewer, or see why the rest wait"
            )
            stands = old and fewer.lasted(self.settings.window, row.at)
            findings.append(self._finding(subject, row, "job_oversized_gpus", stands, reason))
        findings += self._memory(subject, row, old and working >= 1)
        return after, findings

    def _memory(self, subject: SubjectId, row: Row, judged: bool) -> Sequence[Finding]:
        ratio, most = row.number("job_gpu_memory_peak_ratio"), row.number("job_gpu_memory_peak_bytes")
        if ratio is None or most is None or ratio <= 0:
            return ()
        card = most / ratio
        reason = (
            f"it never held more than {size(most)} of a card of {size(card)}; a smaller card or a MIG instance would "
            "do, or a larger batch"
        )
        stands = judged and card >= self.settings.big and ratio < self.settings.memory_ratio
        return (self._finding(subject, row, "job_oversized_memory", stands, reason),)

    def _finding(self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, stands=stands, blame="program",
            clears=("reboot", "ack"), reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> JobOversized:
    """The detector with a site's settings."""
    return JobOversized(settings)
