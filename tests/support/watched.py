"""One subject under one check that judges what is measured, as time goes by."""

from types import ModuleType
from typing import Any

from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId
from gpuguard.model.readings import Row, Value
from gpuguard.runtime.assembly import RulesFolder
from tests.support.core import instant


class Watched:
    """The check of a module with some settings changed from their defaults, and its memory of the subject."""

    def __init__(self, module: ModuleType, subject: str, **settings: float) -> None:
        """It has seen nothing yet."""
        self.detector = module.build(module.Settings(**settings), RulesFolder(module.__name__.rpartition(".")[2]))
        self.subject = SubjectId(subject)
        self.memory: Any = self.detector.start()  # Any: each detector has a memory type of its own

    def see(self, mono: float, **values: Value) -> dict[str, Finding]:
        """What it says of these values at that time, by code."""
        row = Row(subject=self.subject, at=instant(mono), source="test", values=values)
        self.memory, findings = self.detector.observe(self.memory, self.subject, row)
        return {finding.code: finding for finding in findings}

    def standing(self, mono: float, **values: Value) -> list[str]:
        """The codes that stand after it."""
        return [code for code, finding in self.see(mono, **values).items() if finding.stands]
