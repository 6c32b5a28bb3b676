"""PCIe errors that concern a GPU: fatal AER reports, containment, a slot that lost its link.

They come some milliseconds before a GPU falls off the bus and explain it; alone they are worth a look.

Reads     LogLine of kinds aer, dpc, pcie_hotplug whose device, or the device it came from, is a GPU of this node
Source    kernel Documentation/PCI/pcieaer-howto.rst; drivers/pci/pcie
Clears    an hour after the last one, a reset or a reboot
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuguard.model.events import GPU_KINDS, AnyEvent, GpuProbed, LogLine
from gpuguard.model.findings import Finding, Severity
from gpuguard.model.ids import NODE, SubjectId, gpu, parse_pci_address
from gpuguard.model.units import Seconds
from gpuguard.ports import Rules

KINDS = ("aer", "dpc", "pcie_hotplug")
# No node has as many; a hostile log could name a million addresses.
GPUS_KEPT = 128
# The kernel begins a line with the driver that the device is bound to; an NVSwitch's is called `nvidia-nvswitch`.
DRIVER = "nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a PCIe error is remembered."""

    quiet_after: Seconds = Seconds(3600.0)  # forgotten after this long without another


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that are known to be GPUs, kept with the node."""

    gpus: tuple[str, ...] = ()


class PcieErrors:
    """Reports bus errors of GPUs."""

    name = "pcie_errors"
    reads = (LogLine, GpuProbed)
    memory = Memory

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def subjects(self, event: AnyEvent) -> Sequence[SubjectId]:
        if isinstance(event, GpuProbed):
            return (NODE,)
        wanted = isinstance(event, LogLine) and (event.parsed.kind in KINDS or event.parsed.kind in GPU_KINDS)
        return (NODE,) if wanted else ()

    def start(self) -> Memory:
        return Memory()

    def observe(self, memory: Memory, subject: SubjectId, event: AnyEvent) -> tuple[Memory, Sequence[Finding]]:
        if isinstance(event, GpuProbed):
            return _with(memory, event.pci), ()
        if not isinstance(event, LogLine):
            return memory, ()
        parsed = event.parsed
        if parsed.kind in GPU_KINDS:
            return (_with(memory, parsed.pci) if parsed.pci else memory), ()
        source = parsed.detail.get("source")
        blamed = parse_pci_address(source) if isinstance(source, str) and source.count(":") == 2 else parsed.pci
        if blamed is None or not (blamed in memory.gpus or parsed.detail.get("driver") == DRIVER):
            return memory, ()
        severity: Severity = (
            "info" if parsed.fatal is False or (parsed.kind == "aer" and not parsed.fatal) else "degraded"
        )
        return memory, (
            Finding(
                subject=gpu(blamed), check=self.name, code="pcie_error", at=event.at, severity=severity,
                blame="hardware", source=event.source, because=(event.id,), count=event.repeated,
                clears=("quiet", "reset", "reboot", "replace", "ack"), quiet_after=self.settings.quiet_after,
                advice="watch" if severity == "degraded" else "none", reason=f"PCIe: {event.raw[:120]}",
            ),
        )  # fmt: skip


def _with(memory: Memory, pci: str) -> Memory:
    return memory if pci in memory.gpus else Memory(gpus=(*memory.gpus, pci)[-GPUS_KEPT:])


def build(settings: Settings, rules: Rules) -> PcieErrors:
    """The detector with a site's settings."""
    return PcieErrors(settings)
