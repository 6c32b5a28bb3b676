"""Jobs that do not get on: hung, waiting for one slow rank, for data, for storage, stopped, or slow to begin.

What it is that holds a job up is concluded elsewhere, from several signals; here it becomes a finding as soon as that
is sure enough. One of them stands at a time. Load alone is never a sign of life, and its absence alone never a fault.

Reads     job_verdict and job_confidence of each job; for people job_why, job_culprit_rank, job_judged_rank,
          job_culprit_gpu, job_phase, job_progress_seconds and job_progress_limit_seconds
Source    reference of time-outs in use: PyTorch's watchdog (10 min), NVRx, DLRover; PyTorch DataLoader's documentation
          for num_workers, pin_memory, prefetch_factor and persistent_workers
Clears    when the job gets on again or is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, lasting
from gpuguard.model.findings import Finding, Severity
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.ports import Rules

WHY_KEPT = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How sure it must be."""

    sure: float = 0.6  # from this confidence on a verdict is a finding
    kept: float = 0.45  # and one that stands is held for as long as it is as sure as this

    def __post_init__(self) -> None:
        if not 0 < self.kept <= self.sure <= 1:
            raise ValueError("sure must be at most 1, and kept more than 0 and at most sure")


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict is called as a finding, how grave it is, in words, and what to do next."""

    code: str
    severity: Severity
    means: str
    next: str


VERDICTS = {
    "hung": Meaning(
        code="job_hung", severity="degraded", means="no rank gets on",
        next="see what that rank waits in, keep its stack, then end the job or start it anew",
    ),
    "straggler": Meaning(
        code="job_straggler", severity="degraded", means="all ranks wait for one",
        next="look at the GPU, the links and the host of that rank; give the job another one if it stays slow",
    ),
    "data_starved": Meaning(
        code="job_data_starved", severity="info", means="GPUs wait for data",
        next="num_workers 8 to 16 by the cores it has, pin_memory=True, prefetch_factor=4, persistent_workers=True; "
        "load the next batch while this one is computed",
    ),
    "storage_stalled": Meaning(
        code="job_storage_stalled", severity="degraded", means="it waits for storage",
        next="look at the file system it reads and writes, and at who else loads it",
    ),
    "paused": Meaning(
        code="job_paused", severity="info", means="its processes are stopped",
        next="see who stopped it, and let it go on when it is time",
    ),
    "slow_start": Meaning(
        code="job_slow_start", severity="info", means="it takes long to begin",
        next="look at what it loads or compiles first, and whether all its nodes have joined",
    ),
    "waiting": Meaning(
        code="job_waiting", severity="info", means="its ranks here wait for one elsewhere",
        next="look at the nodes of its other ranks",
    ),
}  # fmt: skip


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict that stands; '' for none."""

    standing: str = ""


class JobProgress:
    """Reports what holds a job up."""

    name = "job_progress"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_verdict", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if row.number("job_ended") == 1:
            return Memory(), self._findings(subject, row, "")
        verdict, confidence = row.text("job_verdict"), row.number("job_confidence")
        if verdict == "":
            return Memory(), self._findings(subject, row, "")
        if verdict not in VERDICTS or confidence is None:
            return memory, ()
        enough = self.settings.kept if memory.standing == verdict else self.settings.sure
        standing = verdict if confidence >= enough else ""
        return Memory(standing=standing), self._findings(subject, row, standing)

    def _findings(self, subject: SubjectId, row: Row, standing: str) -> Sequence[Finding]:
        return tuple(
            Finding(
                subject=subject, check=self.name, code=meaning.code, at=row.at, stands=verdict == standing,
                severity=meaning.severity, blame="program" if verdict == "data_starved" else "unknown",
                advice="watch" if meaning.severity == "degraded" else "none", clears=("reboot", "ack"),
                reason=_reason(row, meaning) if verdict == standing else "",
            )
            for verdict, meaning in VERDICTS.items()
        )  # fmt: skip


def _reason(row: Row, meaning: Meaning) -> str:
    """The verdict in the words of who gave it, else in what is known of it; the GPU it shows on, and what to do next.

    What speaks for and against it `gpuguard hang` tells.
    """
    gpu = row.text("job_culprit_gpu")
    parts = [clean(row.text("job_why") or _where(row, meaning), WHY_KEPT)]
    if gpu and gpu not in parts[0]:
        parts.append(f"on {clean(gpu)}")
    return "; ".join((*parts, f"next: {meaning.next}"))


def _where(row: Row, meaning: Meaning) -> str:
    """Which rank it is, in what phase and for how long."""
    rank = row.bits("job_culprit_rank")
    if rank is None:
        rank = row.bits("job_judged_rank")
    phase, silent = row.text("job_phase"), row.number("job_progress_seconds")
    limit = row.number("job_progress_limit_seconds")
    parts = [f"rank {rank:g}"] if rank is not None else []
    parts += [f"in {clean(phase, 32)}"] if phase else []
    if silent is not None:
        within = "" if limit is None else f" (its limit is {lasting(limit)})"
        parts.append(f"without progress for {lasting(silent)}{within}")
    return f"{meaning.means}: {' '.join(parts)}" if parts else meaning.means


def build(settings: Settings, rules: Rules) -> JobProgress:
    """The detector with a site's settings."""
    return JobProgress(settings)
