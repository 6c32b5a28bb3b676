"""Jobs whose checkpoints are old, hold up the work, or lack a part.

What was not saved is lost with the next fault. Every five to ten minutes is good practice, asynchronously, as a save
that blocks stops every rank. A job may have its own pace: what is worth a warning is measured by that. Judged is only
a job that saved once, by the word of the library or of who watches its checkpoints.

Reads     job_saved_seconds, job_save_blocked_seconds and job_save_holds of each job
Source    practice of large clusters: a checkpoint every 5 to 10 minutes, written by a thread of its own, that holds
          model, optimizer, position in the data and random seeds
Clears    with the next checkpoint that is well, when the job is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import lasting
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules

# Two ages that are this far apart from what time alone would make are of two checkpoints.
APART = 5.0
# Times between its checkpoints after which its own pace is known, and how many of the latest make it.
KNOWN, LATEST = 3, 8
LONGEST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How old a checkpoint may be, how long a save may block, and what it must hold."""

    fresh: Seconds = Seconds(600.0)  # an older one is late
    times: float = 3.0  # so many times `fresh`, or the time between its own checkpoints: a warning
    pace: Seconds = Seconds(3600.0)  # taken for that time, at least, until four of its checkpoints were seen
    blocked: Seconds = Seconds(30.0)  # a save that holds up the loop for longer
    share: float = 0.05  # or for this share of the time between its checkpoints
    least: Seconds = Seconds(2.0)  # a save that blocks for less is none to speak of, whatever its share
    parts: tuple[str, ...] = ("model", "optimizer", "loader", "seeds")  # of a checkpoint to go on from

    def __post_init__(self) -> None:
        if self.times < 1 or not 0 < self.share <= 1:
            raise ValueError("times must be at least 1, and share more than 0 and at most 1")


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """When the newest checkpoint was complete, by when it was first told of and its age then; the time between the last
    two, and between the latest ones. Units: seconds."""

    told: Instant | None = None
    age: float = 0.0
    every: float | None = None
    latest: tuple[float, ...] = ()


class JobCheckpoint:
    """Reports what is not well about a job's checkpoints."""

    name = "job_checkpoint"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_saved_seconds", "job_save_blocked_seconds", "job_save_holds", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if row.number("job_ended") == 1:
            codes = ("job_checkpoint_late", "job_save_blocks", "job_checkpoint_incomplete")
            return Memory(), tuple(self._finding(subject, row, code, False, "") for code in codes)
        age, blocked = _span(row, "job_saved_seconds"), _span(row, "job_save_blocked_seconds")
        after = memory if age is None else _saved(memory, age, row.at)
        findings: list[Finding] = []
        if age is not None:
            findings.append(self._late(after, subject, row, age))
        if blocked is not None:
            findings.append(self._blocks(after, subject, row, blocked))
        if holds := row.text("job_save_holds"):
            missing = [part for part in self.settings.parts if part not in holds.split()]
            reason = f"its checkpoints lack {' '.join(missing)}: a job that goes on from one is not the job it was"
            findings.append(self._finding(subject, row, "job_checkpoint_incomplete", bool(missing), reason))
        return after, findings

    def _late(self, memory: Memory, subject: SubjectId, row: Row, age: float) -> Finding:
        # Its first checkpoints may be a try, and the best of a training come seldomer and seldomer: the longest counts.
        own = max(memory.latest, default=0.0)
        if len(memory.latest) < KNOWN:
            own = max(own, self.settings.pace)
        grave = age > self.settings.times * max(self.settings.fresh, own)
        step = row.number("job_saved_step")
        at = "" if step is None else f" (step {step:g})"
        pace = "" if memory.every is None else f", and {lasting(memory.every)} lay between the last two"
        reason = (
            f"the newest checkpoint{at} is {lasting(age)} old{pace}; that much work is lost with a fault: save every "
            f"{lasting(self.settings.fresh)}, asynchronously"
        )
        return self._finding(subject, row, "job_checkpoint_late", age > self.settings.fresh, reason, grave=grave)

    def _blocks(self, memory: Memory, subject: SubjectId, row: Row, blocked: float) -> Finding:
        share = None if not memory.every else blocked / memory.every
        much = share is not None and share > self.settings.share and blocked > self.settings.least
        words = f", {share:.0%} of the time between checkpoints" if share is not None and much else ""
        reason = f"a save held up the loop for {lasting(blocked)}{words}; write from a thread of its own"
        return self._finding(subject, row, "job_save_blocks", blocked > self.settings.blocked or much, reason)

    def _finding(
        self, subject: SubjectId, row: Row, code: str, stands: bool, reason: str, *, grave: bool = False
    ) -> Finding:
        return Finding(
            subject=subject, check=self.name, code=code, at=row.at, stands=stands, blame="program",
            severity="degraded" if grave else "info", advice="watch" if grave else "none", clears=("reboot", "ack"),
            reason=reason,
        )  # fmt: skip


def _span(row: Row, name: str) -> float | None:
    value = row.number(name)
    return value if value is not None and 0 <= value <= LONGEST else None


def _saved(memory: Memory, age: float, at: Instant) -> Memory:
    """With a new checkpoint, where this is one; the time between two counts only where both were seen."""
    since = None if memory.told is None else seconds_between(memory.told, at)
    if memory.told is None or since is None:
        return Memory(told=at, age=age, every=memory.every, latest=memory.latest)
    later = since + memory.age - age  # by how much this one was complete later than the one that is known
    if later <= APART:
        return memory
    return Memory(told=at, age=age, every=later, latest=(*memory.latest[1 - LATEST :], later))


def build(settings: Settings, rules: Rules) -> JobCheckpoint:
    """The detector with a site's settings."""
    return JobCheckpoint(settings)
