"""Lines without a prefix, or with one of no known tool: taken as the message itself.

Shape   a line that does not begin like the driver's may belong to the line before (`continued`): a terminal's wrap,
        or the further lines of one message
"""

from typing import ClassVar

from gpuguard.ports import Record

_HEADS = ("NVRM:", "nvidia-", "nvidia ", "pcieport ")


class Plain:
    """Reads whatever no other form does; it never says no."""

    name: ClassVar[str] = "plain"
    markers: ClassVar[tuple[bytes, ...]] = ()

    def read(self, line: str) -> Record | None:
        return Record(name=self.name, text=line.strip(), continued=not line.startswith(_HEADS))
