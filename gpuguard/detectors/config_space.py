"""A GPU that does not answer in PCI config space, or that the kernel no longer lists.

The second witness of a lost GPU: a device off the bus reads as all ones. Alone it decides nothing, as a device that is
asleep or being reset reads the same for a moment.

Reads     GpuProbed, one per change and one per question
Source    PCI Express Base Specification, configuration read completion of an absent device
Clears    when the GPU answers again after a reboot, or by a person
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import AnyEvent, GpuProbed
from gpuguard.model.findings import Finding
from gpuguard.model.ids import SubjectId, gpu
from gpuguard.ports import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Nothing to tune: it answers or it does not."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the GPU ever answered on this machine: what was never there cannot be lost."""

    answered: bool = False


class ConfigSpace:
    """Reports GPUs that stopped answering on the bus."""

    name = "config_space"
    reads = (GpuProbed,)
    memory = Memory

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        return (gpu(event.pci),) if isinstance(event, GpuProbed) else ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if not isinstance(event, GpuProbed):
            return memory, ()
        gone = "is no longer listed by the kernel" if not event.present else "reads as all ones in PCI config space"
        finding = Finding(
            subject=subject, check=self.name, code="gpu_silent", at=event.at, severity="critical", remedy="reboot",
            ladder=("reboot", "replace"), blame="hardware", latched=True, clears=("reboot", "replace", "ack"),
            source=event.source, because=(event.id,), advice="drain", stands=not event.answers,
            reason=f"the GPU {gone}",
        )  # fmt: skip
        if event.answers:
            return Memory(answered=True), (finding,)
        # A device that never answered may never have been a GPU of this node (a slot just emptied, an old line).
        return memory, (finding,) if memory.answered else ()


def build(settings: Settings, rules: Rules) -> ConfigSpace:
    """The detector."""
    return ConfigSpace()
