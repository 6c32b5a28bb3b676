"""Jobs of which some ranks are gone and others wait for them.

The ranks that are left wait in a collective that will never be complete, until a time-out of ten minutes or more. A
launcher ends the others within seconds; one that does not leaves GPUs taken for nothing.

Where it is judged that the others get on, as those of several programs do, or one that writes the last checkpoint,
nothing is said.

Reads     job_ranks and job_ranks_gone of each job, job_verdict where it is judged; for people job_gone_ranks
Source    PyTorch ProcessGroupNCCL's default time-out (10 minutes); torchrun ends all workers when one fails
Clears    when none is gone or all are, when the job is over, a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.jobs.wording import clean, counted
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, SubjectKind
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules
from gpuguard.spans import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """For how long ranks may be fewer."""

    hold: Seconds = Seconds(60.0)  # a launcher needs a moment to end the others, and ranks end one after another


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Since when some are gone and others are not."""

    half: Held = Held()


class JobHalfDead:
    """Reports jobs whose ranks wait for dead ones."""

    name = "job_half_dead"
    of: tuple[SubjectKind, ...] = ("job",)
    reads = ("job_ranks_gone", "job_ended")
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        if row.number("job_ended") == 1:
            return Memory(), (self._finding(subject, row, False, ""),)
        ranks, gone = row.number("job_ranks"), row.number("job_ranks_gone")
        if ranks is None or gone is None:
            return memory, ()
        waits = row.text("job_verdict") in (None, "hung")
        half = memory.half.told(0 < gone < ranks and waits, row.at)
        names = row.text("job_gone_ranks")
        which = f" ({clean(names)})" if names else ""
        reason = (
            f"{gone:g} of its {counted(ranks, 'rank')} here{which} ended without a word, and the others wait; see why "
            "they ended, then end the job"
        )
        return Memory(half=half), (self._finding(subject, row, half.lasted(self.settings.hold, row.at), reason),)

    def _finding(self, subject: SubjectId, row: Row, stands: bool, reason: str) -> Finding:
        return Finding(
            subject=subject, check=self.name, code="job_half_dead", at=row.at, stands=stands, severity="degraded",
            blame="program", advice="watch", clears=("reboot", "ack"), reason=reason,
        )  # fmt: skip


def build(settings: Settings, rules: Rules) -> JobHalfDead:
    """The detector with a site's settings."""
    return JobHalfDead(settings)
