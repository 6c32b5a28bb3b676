"""Checks that say of jobs and leftover processes what a row says: for tests of what follows from such findings."""

from collections.abc import Sequence

import msgspec

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row


class Memory(msgspec.Struct, frozen=True):
    """Nothing to remember."""


class Hung:
    """A check that finds hung what a row calls so."""

    name = "job_hung"
    of = ("job",)
    reads = ("job_verdict",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        stands, severity = row.text("job_verdict") == "hung", row.text("job_phase")
        found = Finding(
            subject=subject, check=self.name, code="job_hung", at=row.at, stands=stands, reason="it hangs",
            severity="info" if severity == "info" else "degraded",
        )  # fmt: skip
        return memory, (found,)


class Orphans:
    """A check that finds orphans where a row names any."""

    name = "gpu_orphans"
    of = ("gpu",)
    reads = ("gpu_orphan_bytes",)
    memory = Memory

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, row: Row) -> tuple[Memory, Sequence[Finding]]:
        stands = bool(row.number("gpu_orphan_bytes"))
        found = Finding(
            subject=subject, check=self.name, code="gpu_orphan_memory", at=row.at, stands=stands, severity="degraded"
        )
        return memory, (found,)
