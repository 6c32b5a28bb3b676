"""The words of a drawing, and what makes a text fit its place.

Names come from firmware, drivers and anybody's files: what would steer a terminal, or is no XML, is replaced.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Literal

from gpuguard.model.topology import Device, Nic, PcieLink, Topology

# full: as wide as both ends can; narrow: not; slow: wide, but below the generation of both ends, as is usual at rest.
PcieState = Literal["full", "narrow", "slow", "unknown"]
# Whoever quotes a name quotes no more of it.
LONGEST_NAME = 120

Measure = Callable[[str], float]


def headline(topology: Topology) -> str:
    """The host and the kind of machine, as far as they are known."""
    parts = [clean(part) for part in (topology.host, topology.machine) if part]
    return " · ".join(parts) or "one node"


def inventory(topology: Topology) -> str:
    """What is in the node, in one line: 8 x NVIDIA H100 80GB HBM3, 8 network cards."""
    products = Counter(None if device.gpu is None else device.gpu.product for device in topology.gpus)
    nameless = products.pop(None, 0)
    parts = [f"{count} x {clean(name)}" for name, count in products.items() if name is not None]
    if nameless:
        parts.append(("1 GPU" if nameless == 1 else f"{nameless} GPUs") + (" of unknown product" if parts else ""))
    if count := len(topology.nics):
        parts.append("1 network card" if count == 1 else f"{count} network cards")
    return ", ".join(parts) or "no GPU"


def short(pci: str) -> str:
    """An address without the domain that every machine has."""
    return clean(pci.removeprefix("pci").removeprefix("0000:"))


def rate(nic: Nic | None) -> str | None:
    """The speed of a card, as its label says it: 400 Gb/s."""
    if nic is None or not nic.bits_per_second:
        return None
    return f"{nic.bits_per_second / 1e9:g} Gb/s"


def instances(device: Device) -> list[str]:
    """The MIG instances of a GPU by their profile: 7 x 1g.10gb."""
    profiles = Counter(() if device.gpu is None else device.gpu.instances)
    return [f"{count} x {clean(profile)}" for profile, count in profiles.items()]


def gigabytes(bytes_per_second: float | None) -> str:
    """A speed for people: ", 478 GB/s each way"; empty where it is not known."""
    return "" if bytes_per_second is None else f", {bytes_per_second / 1e9:.0f} GB/s each way"


def pcie_state(link: PcieLink | None) -> PcieState:
    """Whether a PCIe link is as wide and as fast as both its ends can be."""
    if link is None or link.lanes is None or link.most_lanes is None:
        return "unknown"
    if link.lanes < link.most_lanes:
        return "narrow"
    if link.generation is not None and link.most_generation is not None and link.generation < link.most_generation:
        return "slow"
    return "full"


def pcie_words(link: PcieLink | None) -> tuple[str, ...]:
    """Width and generation of a link, each in a word or two: ("x8 of x16", "Gen5"); empty where neither is known."""
    if link is None:
        return ()
    words = []
    if link.lanes is not None:
        words.append(f"x{link.lanes}")
        if link.most_lanes is not None and link.lanes < link.most_lanes:
            words[-1] += f" of x{link.most_lanes}"
    if link.generation is not None:
        words.append(f"Gen{link.generation}")
        if link.most_generation is not None and link.generation < link.most_generation:
            words[-1] += f" of {link.most_generation}"
    return tuple(words)


def link_words(link: PcieLink | None) -> str:
    """A PCIe link in one sentence."""
    words = " ".join(pcie_words(link))
    if not words:
        return "PCIe link not known"
    match pcie_state(link):
        case "full":
            return f"PCIe {words}, all that both ends can"
        case "narrow":
            return f"PCIe {words}, narrower than it could be"
        case "slow":
            return f"PCIe {words}, as is usual at rest"
        case "unknown":
            return f"PCIe {words}, whether that is all is not known"


def clean(text: str) -> str:
    """The text without signs that would steer a terminal or are no XML, and not longer than anybody reads."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME - 1] + "…"
    return plain(text)


def plain(text: str) -> str:
    """The text without signs that would steer a terminal or are no XML."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def extent(text: str, size: float, bold: bool = False) -> float:
    """About how many pixels a text takes at most, in the widest of the fonts that a browser may choose.

    Source  advance widths of DejaVu Sans, rounded up
    """
    ems = 0.0
    for sign in text:
        if sign in "ijlI.,:;'|! ()[]-frt":
            ems += 0.42
        elif sign in "mwMW%@…":
            ems += 1.0
        elif not sign.isascii():
            ems += 1.05
        else:
            ems += 0.7 if sign.isupper() else 0.64
    return ems * size * (1.1 if bold else 1.0)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def cut(text: str, width: float, measure: Measure) -> str:
    """The text, or as much of it as fits with a sign that there is more."""
    if measure(text) <= width:
        return text
    while text and measure(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def end_of(text: str, width: float, measure: Measure) -> str:
    """The text, or as much of its end as fits: of names like mlx5_bond_0 the end tells them apart."""
    if measure(text) <= width:
        return text
    while text and measure("…" + text) > width:
        text = text[1:]
    return "…" + text


def wrap(text: str, width: float, measure: Measure) -> list[str]:
    """The text in lines that fit; a word that is longer than a line is broken."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if measure(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        line = ""
        for sign in word:
            if line and measure(line + sign) > width:
                lines.append(line)
                line = ""
            line += sign
    return [*lines, line] if line else lines
