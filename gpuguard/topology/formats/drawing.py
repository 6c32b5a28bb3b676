"""The node as a tree on a terminal: NUMA nodes, switches, GPUs and network cards, then the NVLinks in words.

For people. No line is wider than a terminal of 80 columns; what does not fit ends in a sign that there was more. No
colour, so that it reads the same in a mail.
"""

from collections.abc import Iterator, Sequence

from gpuguard.model.topology import Device, Topology
from gpuguard.topology.captions import (
    clean,
    columns,
    cut,
    headline,
    instances,
    inventory,
    pcie_words,
    plain,
    rate,
    short,
    wrap,
)
from gpuguard.topology.formats import Wish
from gpuguard.topology.picture import Box, Picture, Side, box_words, nvlink_words, ordered, picture, side_words

WIDTH = 80


def render(topology: Topology, wish: Wish) -> str:
    """The drawing, one line under the other."""
    drawn = picture(topology)
    lines = [headline(topology), *wrap(inventory(topology), WIDTH, columns)]
    table = _Table(topology, drawn)
    for side in drawn.sides:
        lines += ["", _side_line(side), *_branches(topology, table, ordered(topology, side.boxes, side.places), "")]
    if links := nvlink_words(topology, drawn):
        lines += ["", "NVLink", *(line for link in links for line in _hanging("  ", link, 2))]
    if drawn.remarks:
        lines += ["", *(line for remark in drawn.remarks for line in _hanging("* ", remark))]
    if topology.notes:
        lines += ["", *(line for note in topology.notes for line in _hanging("note: ", plain(note)))]
    return "".join(f"{cut(line, WIDTH, columns).rstrip()}\n" for line in lines)


def _side_line(side: Side) -> str:
    return side_words(side) + ("" if side.cpus is None else f" · CPUs {clean(side.cpus)}")


def _branches(topology: Topology, table: "_Table", items: Sequence[Box | int], before: str) -> Iterator[str]:
    for place, item in enumerate(items):
        last = place == len(items) - 1
        branch, on = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(item, int):
            yield f"{before}{branch}{table.line(item)}"
        else:
            yield f"{before}{branch}{_box_line(item)}"
            yield from _branches(topology, table, ordered(topology, item.boxes, item.places), before + on)


def _box_line(box: Box) -> str:
    what, which = box_words(box)
    parts = [f"{what} {which}" if box.pci or box.root else f"{what} ({which})"]
    if box.root is not None and box.kind != "root":
        parts.append(f"root complex {short(box.root)}")
    if words := pcie_words(box.link):
        parts.append(" ".join(words))
    return " · ".join(parts)


class _Table:
    """The lines of devices, with their columns below each other."""

    def __init__(self, topology: Topology, drawn: Picture) -> None:
        self._rows = [_cells(place, device, drawn, topology) for place, device in enumerate(topology.devices)]
        self._widths = [max(map(columns, cells)) for cells in zip(*self._rows, strict=True)]

    def line(self, place: int) -> str:
        parts = [
            cell + " " * (width - columns(cell))
            for cell, width in zip(self._rows[place], self._widths, strict=True) if width
        ]  # fmt: skip
        return "  ".join(parts)


def _cells(place: int, device: Device, drawn: Picture, topology: Topology) -> tuple[str, str, str, str]:
    """The name, the address, the PCIe link, and what else there is to say."""
    more = []
    if device.alias is not None and device.alias != device.name:
        more.append(cut(clean(device.alias), 24, columns))
    if (speed := rate(device.nic)) is not None:
        more.append(speed)
    if place in drawn.silent:
        more.append("the driver does not tell of it")
    if place in drawn.mig:
        more.append("MIG " + ", ".join(instances(device)) if instances(device) else "MIG, no instance")
    products = {gpu.gpu.product for gpu in topology.gpus if gpu.gpu is not None}
    if len(products - {None}) > 1 and device.gpu is not None and device.gpu.product is not None:
        more.append(clean(device.gpu.product))
    return (
        cut(clean(device.name), 16, columns), "" if device.pci is None else short(device.pci),
        " ".join(pcie_words(device.link)), "  ".join(more),
    )  # fmt: skip


def _hanging(mark: str, text: str, further: int = 0) -> list[str]:
    """The text in lines, with all but the first under its first word, or further in."""
    lines = wrap(text, WIDTH - len(mark) - further, columns)
    return [(mark if number == 0 else " " * (len(mark) + further)) + line for number, line in enumerate(lines)]
