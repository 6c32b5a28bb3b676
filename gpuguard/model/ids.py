"""Names of things: PCI addresses, GPU UUIDs and serials, subjects, boots, events, tokens."""

import re
from typing import NewType

from gpuguard.errors import NotUnderstood

PciAddress = NewType("PciAddress", str)
GpuUuid = NewType("GpuUuid", str)
GpuSerial = NewType("GpuSerial", str)
BootId = NewType("BootId", str)
EventId = NewType("EventId", str)
SubjectId = NewType("SubjectId", str)
IncidentId = NewType("IncidentId", str)
TokenId = NewType("TokenId", str)
JobId = NewType("JobId", str)  # <keeper>/<its id of the job>, as slurm/8123; see model/jobs.py

NODE = SubjectId("node")

_FULL = re.compile(r"(?:PCI:)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$", re.IGNORECASE | re.ASCII)
_BUS_DEVICE = re.compile(r"(?:PCI:)?([0-9a-f]{4}):([0-9a-f]{2})$", re.IGNORECASE | re.ASCII)


def parse_pci_address(text: str) -> PciAddress:
    """The one spelling of a PCI address that gpuguard uses.

    Shape   dddd:bb:dd.f in lower case; function 0 where none is printed; a domain of more than four digits is
            kept, less the zeros that only pad it to eight
    Raises  NotUnderstood with the text kept
    Source  driver format strings; the form of 2009 without a domain is bus:device
    """
    text = text.strip()
    if match := _FULL.match(text):
        domain, bus, device, function = match.groups()
        domain = domain.lstrip("0").rjust(4, "0")
        return PciAddress(f"{domain}:{bus}:{device}.{function or 0}".lower())
    if match := _BUS_DEVICE.match(text):
        bus, device = match.groups()
        return PciAddress(f"0000:{bus[-2:]}:{device}.0".lower())
    raise NotUnderstood(f"not a PCI address: {text[:40]!r}; expected dddd:bb:dd.f", text)


def gpu(pci: PciAddress) -> SubjectId:
    """The subject of the GPU at this address."""
    return SubjectId(f"gpu:{pci}")


def nvswitch(pci: PciAddress) -> SubjectId:
    """The subject of the NVSwitch at this address."""
    return SubjectId(f"nvswitch:{pci}")


def job(name: JobId) -> SubjectId:
    """The subject of this job."""
    return SubjectId(f"job:{name}")


def rank(name: JobId, number: int) -> SubjectId:
    """The subject of a job's rank."""
    return SubjectId(f"rank:{name}/{number}")


def task(pid: int) -> SubjectId:
    """The subject of the process with this id; what it does on one GPU is a row `process:<pci>/<pid>`."""
    return SubjectId(f"task:{pid}")


def kind_of(subject: SubjectId) -> str:
    """What kind of thing it is: the word before the first colon."""
    return subject.partition(":")[0]


def pci_of(subject: SubjectId) -> PciAddress | None:
    """The address in a subject's name, None for the node."""
    kind, _, address = subject.partition(":")
    return PciAddress(address) if kind in ("gpu", "nvswitch") and address else None
