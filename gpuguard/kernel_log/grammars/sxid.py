"""SXid reports of NVSwitches: `nvidia-nvswitchN: SXid (PCI:dddd:bb:dd.f): CODE, ...`.

Shape   one error prints three lines or more: the event, then `Severity S Engine instance N ...`, then `Data {..}`;
        `part` says which this is, so that one error is counted once. Whether it is fatal is the word in the line: the
        driver decides at run time
Source  open-gpu-kernel-modules, src/common/nvswitch/kernel/inc/error_nvswitch.h and common_nvswitch.h
"""

import re
from typing import ClassVar

from gpuguard.kernel_log.addresses import FULL, read_address
from gpuguard.model.events import DetailValue, Parsed

_HEADER = re.compile(rf"nvidia-nvswitch(\d{{1,3}}): +SXid \((?:PCI:)?({FULL})\): *(\d{{1,6}})(?!\d)(?:, *|$)", re.ASCII)
_SEVERITY = re.compile(r"Severity (\d)(?: Engine instance (\d+))?(?: Sub-engine instance (\d+))?", re.ASCII)
_DATA = re.compile(r"Data \{([^}]*)")
_EVENT = re.compile(
    r"(?:(Fatal|Non-fatal|Correctable)(?:, *|$))?(?:Link (-?\d+)(?: +|$))?(.*?)( \(First\))?$", re.DOTALL | re.ASCII
)
_INSTANCE = re.compile(r"\b(instance|chiplet)=(\d+)", re.ASCII)


class Sxid:
    """Understands the event and its follow-ups."""

    markers: ClassVar[tuple[bytes, ...]] = (b"SXid (",)

    def parse(self, text: str) -> Parsed | None:
        header = _HEADER.match(text)
        if header is None:
            return None
        switch, address, digits = header.groups()
        code = int(digits)
        detail: dict[str, DetailValue] = {"sxid": code, "switch": int(switch)}
        fatal, facts = _read_body(text[header.end() :])
        return Parsed(kind="sxid", xid=code, pci=read_address(address), fatal=fatal, detail=detail | facts)


def _read_body(body: str) -> tuple[bool | None, dict[str, DetailValue]]:
    if severity := _SEVERITY.match(body):
        level, engine, sub_engine = severity.groups()
        facts: dict[str, DetailValue] = {"part": "severity", "severity": int(level)}
        for name, value in (("engine", engine), ("sub_engine", sub_engine)):
            if value is not None:
                facts[name] = int(value)
        return level == "1", facts
    if data := _DATA.match(body):
        return None, {"part": "data", "data": [*re.findall(r"0x[0-9a-fA-F]+", data[1])]}
    event = _EVENT.match(body)
    if event is None:
        return None, {"part": "event"}
    word, link, words, first = event.groups()
    facts = {"part": "event", "text": words.strip(), "first": first is not None}
    if word is not None:
        facts["severity"] = word
    if link is not None:
        facts["link"] = int(link)
    for name, value in _INSTANCE.findall(words):
        facts[name] = int(value)
    return None if word is None else word == "Fatal", facts
