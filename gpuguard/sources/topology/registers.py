"""What the configuration space of a bridge tells: what kind of port it is, and whether ACS has it redirect.

Reads   /sys/bus/pci/devices/<address>/config, word by word: each is a transaction on the bus, and there are 1,024
Source  PCI Express Base Specification, 7.5.3.2 (Device/Port Type), 6.12 and 7.7.7 (Access Control Services: capability
        000d, its control register at 6; with bit 2, Request Redirect, or bit 3, Completion Redirect, what one device
        below the port sends another goes up to the root); Linux include/uapi/linux/pci_regs.h, drivers/pci/pci-sysfs.c
        (pci_read_config: who is not root is given the first 64 bytes)
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

POINTER = 0x34  # where the list of capabilities begins
HEADER_BYTES, EXTENDED = 0x40, 0x100
EXPRESS, ACS = 0x10, 0x000D
PORT_TYPES = {4: "root_port", 5: "upstream", 6: "downstream", 7: "bridge", 8: "bridge"}
REDIRECTS = 0b1100
MOST_STEPS = 64  # a longer list of capabilities goes in a circle
NO_ANSWER = 0xFFFFFFFF

Word = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class Registers:
    """What was read. `acs` says whether the bridge has ACS at all, `redirects` what is set there; None is unknown."""

    kind: str | None = None
    acs: bool | None = None
    redirects: bool | None = None


def read(path: Path) -> Registers:
    """What the registers tell, as far as they may be read.

    Raises  OSError where they cannot be opened or the bus fails
    """
    with _opened(path) as (word, _):
        return understand(word)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Word, int]]:
    """The file's words, and the file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def word(at: int) -> int | None:
        got = os.pread(file, 4, at)
        return int.from_bytes(got, "little") if len(got) == 4 else None

    try:
        yield word, file
    finally:
        os.close(file)


def understand(word: Word) -> Registers:
    """The same of whatever gives the word at an offset, None where it gives none."""
    if word(0) in (None, NO_ANSWER):
        return Registers()
    express = find_express(word)
    kind = None if express is None else PORT_TYPES.get((word(express) or 0) >> 20 & 0xF)
    place = find_acs(word)
    if not place:
        return Registers(kind=kind, acs=None if place is None else False)
    control = word(place + 4)
    return Registers(kind=kind, acs=True, redirects=None if control is None else bool(control >> 16 & REDIRECTS))


def find_express(word: Word) -> int | None:
    """The offset of the PCI Express capability; None where there is none, or may not be looked."""
    at = (word(POINTER) or 0) & 0xFC
    for _ in range(MOST_STEPS):
        found = word(at) if at >= HEADER_BYTES else None
        if found is None or found == NO_ANSWER:
            return None
        if found & 0xFF == EXPRESS:
            return at
        at = found >> 8 & 0xFC
    return None


def find_acs(word: Word) -> int | None:
    """The offset of the ACS capability; 0 where the bridge has none, None where it cannot be known."""
    at = EXTENDED
    for _ in range(MOST_STEPS):
        found = word(at)
        if found is None or found == NO_ANSWER:
            return None
        if found & 0xFFFF == ACS:
            return at
        at = found >> 20 & 0xFFC
        if at < EXTENDED:
            return 0
    return None


def shortened(path: Path) -> bytes | None:
    """The configuration space of a bridge with what `read` understands and nothing else; None where no more than the
    header may be read.

    Raises  OSError as `read`
    """
    with _opened(path) as (word, file):
        place = find_acs(word)
        control = word(place + 4) if place else 0
        if place is None or control is None or word(0) == NO_ANSWER:
            return None
        space = bytearray(os.pread(file, HEADER_BYTES, 0)) + bytes(EXTENDED + 8 - HEADER_BYTES)
        space[POINTER] = 0
        if (express := find_express(word)) is not None:
            space[POINTER] = HEADER_BYTES
            told = (word(express) or 0) & 0xFFFF_00FF
            space[HEADER_BYTES : HEADER_BYTES + 4] = told.to_bytes(4, "little")
        if place:
            space[EXTENDED : EXTENDED + 4] = (1 << 16 | ACS).to_bytes(4, "little")
            space[EXTENDED + 4 : EXTENDED + 8] = control.to_bytes(4, "little")
        return bytes(space)
