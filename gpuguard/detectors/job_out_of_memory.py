"""Jobs that run out of memory, are started again, and run out of it again.

One end for want of memory is told with the job's end. The same job three times in a day is nobody at the wheel: a
script that submits it again as it was, mostly at night. What is the same job is told by its owner and its name, as
each try is another job to the scheduler; of Kubernetes' names the part that differs from pod to pod is left out.

Reads     job_out_of_memory, job_name, job_user and job_restarts of all jobs
Source    a cluster's review: 17 % of jobs fail and are tried again between 02:00 and 04:00, mostly over their memory;
          Kubernetes, names of a Job's pods (<job>-<5 letters>)
Clears    when fewer than that lie within the day, when it is over, a reboot, or by a person
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, lasting
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.instants import Instant, seconds_between
from gpuguard.model.jobs import keeper_of
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules

# Bounds the memory, whatever a script submits.
ENDS_KEPT = 256
NAME_KEPT = 64
_POD = re.compile(r"-[a-z0-9]{5}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often, in what time."""

    times: int = 3  # of one owner's jobs of one name
    within: Seconds = Seconds(86400.0)  # in this time

    def __post_init__(self) -> None:
        if self.times < 2:
            raise ValueError("times must be at least 2: one end is told by job_completion")


class End(msgspec.Struct, frozen=True, kw_only=True):
    """One try that ended for want of memory."""

    kin: str
    subject: SubjectId
    restarts: int
    at: Instant


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The newest of them, oldest first; an older one as well while its job is still told of: it is not counted anew."""

    ends: tuple[End, ...] = ()


class JobOutOfMemory:
    """Reports jobs that run out of memory again and again."""

    name = "job_out_of_memory"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_out_of_memory",)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def survey(self, memory: Memory, rows: Mapping[SubjectId, Row]) -> tuple[Memory, Sequence[Finding]]:
        if not rows:
            return memory, ()
        at = next(iter(rows.values())).at
        ends = tuple(end for end in memory.ends if end.subject in rows or self._is_recent(end, at))
        known = {(end.subject, end.restarts) for end in ends}
        for subject, row in rows.items():
            kin, restarts = _kin(subject, row), min(row.bits("job_restarts") or 0, 2**31)
            if (row.number("job_out_of_memory") or 0) >= 1 and kin is not None and (subject, restarts) not in known:
                ends = (*ends, End(kin=kin, subject=subject, restarts=restarts, at=row.at))
        ends = ends[-ENDS_KEPT:]
        findings = [
            self._finding(subject, row, [end for end in ends if end.kin == kin and self._is_recent(end, at)])
            for subject, row in rows.items()
            if (kin := _kin(subject, row)) is not None
        ]
        return (memory if ends == memory.ends else Memory(ends=ends)), findings

    def _is_recent(self, end: End, at: Instant) -> bool:
        age = seconds_between(end.at, at)
        return age is not None and age <= self.settings.within

    def _finding(self, subject: SubjectId, row: Row, ends: Sequence[End]) -> Finding:
        within, which = lasting(self.settings.within), " ".join(clean(end.subject, 40) for end in ends[-3:])
        return Finding(
            subject=subject, check=self.name, code="job_out_of_memory", at=row.at, blame="program",
            stands=len(ends) >= self.settings.times, clears=("reboot", "ack"),
            reason=f"{len(ends)} jobs of this owner and name ended for want of memory within {within}; stop what "
            f"submits them, and ask for more memory or load less: {which}",
        )  # fmt: skip


def _kin(subject: SubjectId, row: Row) -> str | None:
    """What is the same for every try; None where its name is not known."""
    name, keeper = row.text("job_name"), keeper_of(subject.partition(":")[2])
    if not name:
        return None
    if keeper == "kubernetes":
        name = _POD.sub("", name)
    return f"{keeper}/{clean(row.text('job_user') or '', NAME_KEPT)}/{clean(name, NAME_KEPT)}"


def build(settings: Settings, rules: Rules) -> JobOutOfMemory:
    """The detector with a site's settings."""
    return JobOutOfMemory(settings)
