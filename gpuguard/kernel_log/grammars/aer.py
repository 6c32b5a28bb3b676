"""PCIe errors that Advanced Error Reporting printed.

Shape   several lines an error: `received` by a port, then `bus_error`, `status`, one `bit` each, `tlp_header`, and
        what came of the `recovery`. `pci` is the device that the line begins with, `source` where the error came from
Source  kernel 4.4 to 6.12, drivers/pci/pcie/aer.c and err.c
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import read_address
from gpuguard.model.events import DetailValue, Parsed

Detail = dict[str, DetailValue]

_DEVICE = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_HEADER = re.compile(rf"([\w.-]{{1,40}}) ({_DEVICE}):", re.ASCII)
_SEVERITY = r"(Corrected|Correctable|Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\))"
_RECEIVED = re.compile(
    rf" AER: (Multiple )?{_SEVERITY} error (?:message )?received(?: from)?:? (?:({_DEVICE})|id=([0-9a-f]{{4}}))",
    re.ASCII,
)
_BUS_ERROR = re.compile(
    rf" (?:AER: )?PCIe Bus Error: severity={_SEVERITY}(?:, type=([^,]+))?(?:, (?:id=[0-9a-f]+)?\(([^)]+)\)?)?", re.ASCII
)
_STATUS = re.compile(
    r" (?:AER: )? *(?:device \[([0-9a-f]{4}:[0-9a-f]{4})\] error status/mask=([0-9a-f]+)/([0-9a-f]+)"
    r"|aer_status: (0x[0-9a-f]+), aer_mask: (0x[0-9a-f]+))",
    re.ASCII,
)
_TLP_HEADER = re.compile(r" (?:AER: )? *(?:TLP Header|aer_tlp_header):", re.ASCII)
_RECOVERY = re.compile(
    r" AER: (?:[Dd]evice recovery (failed|successful)|can't recover\b|(?:subordinate|root|downstream) .*reset)",
    re.ASCII,
)

# What a bit is called: short since 5.3, long before. `AER_*_STRINGS` of aer.c.
BITS = (
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC", "UnsupReq",
    "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
    "Receiver Error", "Bad TLP", "Bad DLLP", "RELAY_NUM Rollover", "Replay Timer Timeout", "Advisory Non-Fatal",
    "Corrected Internal Error", "Header Log Overflow", "Data Link Protocol", "Surprise Down Error", "Poisoned TLP",
    "Flow Control Protocol", "Completion Timeout", "Completer Abort", "Unexpected Completion", "Receiver Overflow",
    "Malformed TLP", "Unsupported Request", "ACS Violation", "Uncorrectable Internal Error", "MC Blocked TLP",
    "AtomicOp Egress Blocked", "TLP Prefix Blocked Error", "Unknown Error Bit",
)  # fmt: skip
_BIT = re.compile(
    r" (?:AER: )?   \[ ?(\d{1,2})\] ("
    + "|".join(map(re.escape, sorted(BITS, key=len, reverse=True)))
    + r")(?![\w-])\s*(\(First\))?"
)


def _word(severity: str) -> str:
    if "Non-Fatal" in severity:
        return "nonfatal"
    return "fatal" if "(Fatal)" in severity else "corrected"


class Aer:
    """Understands each line of a report; `sub` says which."""

    markers: ClassVar[tuple[bytes, ...]] = (
        b"AER: ",
        b"PCIe Bus Error: ",
        b"error status/mask=",
        b"TLP Header: ",
        b":    [",  # the bits: `DEVICE:    [ 0] RxErr`
    )

    def parse(self, text: str) -> Parsed | None:
        header = _HEADER.match(text)
        if header is None:
            return None
        pci = read_address(header[2])
        told = _read_line(text[header.end() :], pci)
        if told is None:
            return None
        severity = told.get("severity")
        fatal = None if severity is None else severity == "fatal"
        return Parsed(kind="aer", pci=pci, fatal=fatal, detail={"driver": header[1]} | told)


def _read_line(body: str, pci: str) -> Detail | None:
    if match := _RECEIVED.match(body):
        multiple, severity, device, requester = match.groups()
        source = str(read_address(device)) if device else _requester(requester, pci)
        return {"sub": "received", "severity": _word(severity), "source": source, "multiple": multiple is not None}
    if match := _BUS_ERROR.match(body):
        told: Detail = {"sub": "bus_error", "severity": _word(match[1])}
        if match[2]:
            told["layer"] = match[2]
        if match[3]:
            told["agent"] = match[3]
        return told
    if match := _STATUS.match(body):
        device_id, status, mask, cper_status, cper_mask = match.groups()
        told = {"sub": "status", "status": status or cper_status, "mask": mask or cper_mask}
        if device_id:
            told["device_id"] = device_id
        return told
    if match := _BIT.match(body):
        return {"sub": "bit", "bit": int(match[1]), "name": match[2], "first": match[3] is not None}
    if _TLP_HEADER.match(body):
        return {"sub": "tlp_header"}
    if match := _RECOVERY.match(body):
        told = {"sub": "recovery"}
        if match[1]:
            told["outcome"] = match[1]
        return told
    return None


def _requester(requester: str, pci: str) -> str:
    """The address in a 16-bit requester id, in the domain of the port that printed it."""
    number = int(requester, 16)
    domain = pci.partition(":")[0]
    return f"{domain}:{number >> 8:02x}:{(number >> 3) & 31:02x}.{number & 7}"
