"""A check of what is measured, shown one look after the other."""

from typing import Any

from gpuguard.model.findings import Finding
from gpuguard.model.ids import NODE, BootId, SubjectId
from gpuguard.model.readings import Row
from tests.support.core import BOOT, instant

GPU = SubjectId("gpu:0000:1b:00.0")


class Looks:
    """What one check says of one subject; it keeps the check's memory."""

    def __init__(self, detector: Any) -> None:  # Any: each check has a memory type of its own
        self.detector = detector
        self.subject = NODE if "node" in detector.of else GPU
        self.memory: Any = detector.start()  # Any: as above

    def __call__(self, mono: float, boot: BootId = BOOT, **values: Any) -> dict[str, Finding]:  # Any: also no value
        """Every finding that it has an opinion on, by code, after a look at that time."""
        row = Row(subject=self.subject, at=instant(mono, boot), source="nvml", values=values)
        self.memory, findings = self.detector.observe(self.memory, self.subject, row)
        assert len({finding.code for finding in findings}) == len(findings)
        assert all(finding.check == self.detector.name and finding.subject == self.subject for finding in findings)
        return {finding.code: finding for finding in findings}

    def stands(self, mono: float, **values: Any) -> dict[str, bool]:  # Any: also what is no value
        """Whether each of them stands."""
        return {code: finding.stands for code, finding in self(mono, **values).items()}
