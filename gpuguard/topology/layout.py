"""Where everything of a drawing stands: plates, the wires between them and the labels on the wires, in pixels.

From the top down: NUMA nodes, root complexes and PCIe switches, GPUs and network cards, NVLinks. Whatever hangs below
a plate stands within its width, so that the wires of PCIe never cross. NVLinks between two GPUs run on tracks below
them, the short ones nearest: wires cross there, but at right angles, and no two lie on each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from gpuguard.model.topology import PcieLink, Topology
from gpuguard.topology.captions import (
    PcieState,
    clean,
    cut,
    end_of,
    extent,
    gigabytes,
    instances,
    link_words,
    pcie_state,
    pcie_words,
    rate,
    short,
)
from gpuguard.topology.picture import Box, LinkState, Picture, Side, Uplink, box_words, ordered, side_words, state_words
from gpuguard.topology.tips import box_tip, device_tip, side_tip, switch_tip

# A browser window of 1400 pixels has about this much beside its scroll bar.
WIDEST = 1376.0
MARGIN = 16.0
TOP = 70.0
NARROWEST = 520.0
# Widths of a GPU and of a network card, and how many cards stand on each other: the first that fits.
SIZES = (
    (118.0, 104.0, 1), (104.0, 92.0, 1), (92.0, 80.0, 1), (80.0, 70.0, 1), (70.0, 62.0, 1), (66.0, 58.0, 1),
    (70.0, 62.0, 2), (66.0, 58.0, 2), (66.0, 58.0, 4),
)  # fmt: skip
NEAR, APART, BETWEEN_SIDES = 6.0, 10.0, 26.0
RAIL = 12.0  # what the wire beside cards that stand on each other takes
SIDE_HEIGHT, BOX_HEIGHT, LINE = 44.0, 36.0, 12.5
SIDE_MORE = 32.0  # by how much a NUMA node is wider than a GPU, at least
LABELLED, PLAIN = 48.0, 24.0  # between two rows, with labels on the wires and without
TRACK = 24.0
NAME, SMALL = 13.0, 10.0  # sizes of letters

PlateKind = Literal["side", "box", "gpu", "nic", "fabric", "nvswitch"]
Group = Literal["pcie", "nvlink", "smp"]
State = LinkState | PcieState


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """A rectangle with text. `name` stands in bold above the `lines`, in `small` letters where it would not fit; `mark`
    is how it differs from its like."""

    kind: PlateKind
    x: float
    y: float
    width: float
    height: float
    name: str
    lines: tuple[str, ...] = ()
    tip: str = ""
    small: bool = False
    mark: Literal["", "silent", "redirects", "some", "down", "unknown", "open"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A line with right angles from point to point; `thick` where it carries more than others of its group."""

    group: Group
    state: State
    points: tuple[tuple[float, float], ...]
    tip: str = ""
    thick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Text on a wire, around its middle."""

    group: Group
    state: State
    x: float
    y: float
    width: float
    lines: tuple[str, ...]
    tip: str = ""

    @property
    def height(self) -> float:
        """As high as its lines."""
        return 12.0 * len(self.lines) + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Text that stands by itself, around its middle."""

    x: float
    y: float
    text: str


@dataclass(slots=True)
class Sheet:
    """All of it, with its size."""

    width: float = 0.0
    height: float = 0.0
    plates: list[Plate] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Column:
    """A GPU, or network cards that stand on each other."""

    places: tuple[int, ...]


Item = Box | Column


def lay_out(topology: Topology, drawn: Picture) -> Sheet:
    """The drawing of a node, as wide as it must be."""
    tried = [_Layout(topology, drawn, *sizes) for sizes in SIZES]
    best = next((one for one in tried if one.width() <= WIDEST), None) or min(tried, key=lambda one: one.width())
    return best.sheet()


class _Layout:
    """One way to lay it out: with GPUs and cards this wide, and this many cards on each other."""

    def __init__(self, topology: Topology, drawn: Picture, gpu: float, nic: float, deep: int) -> None:
        self._topology, self._drawn = topology, drawn
        self._gpu, self._nic, self._deep = gpu, nic, deep
        self._out = Sheet()
        self._lines = [self._told(place) for place in range(len(topology.devices))]
        self._spots: dict[int, Plate] = {}

    def width(self) -> float:
        """Of the whole sheet."""
        sides = [self._side_width(side) for side in self._drawn.sides]
        return max(NARROWEST, sum(sides) + BETWEEN_SIDES * (len(sides) - 1) + 2 * MARGIN)

    # --- widths ---

    def _items(self, boxes: Sequence[Box], places: Sequence[int]) -> list[Item]:
        found: list[Item] = []
        for item in ordered(self._topology, boxes, places):
            if not isinstance(item, int):
                found.append(item)
                continue
            last = found[-1] if found else None
            if self._is_gpu(item) or not isinstance(last, Column) or self._is_gpu(last.places[0]):
                found.append(Column((item,)))
            elif len(last.places) < self._deep:
                found[-1] = Column((*last.places, item))
            else:
                found.append(Column((item,)))
        return found

    def _is_gpu(self, place: int) -> bool:
        return self._topology.devices[place].kind == "gpu"

    def _row_width(self, items: Sequence[Item]) -> float:
        return sum(map(self._item_width, items)) + sum(map(_gap, items, items[1:]))

    def _item_width(self, item: Item) -> float:
        if isinstance(item, Column):
            if self._is_gpu(item.places[0]):
                return self._gpu
            return self._nic + (RAIL if len(item.places) > 1 else 0.0)
        return self._row_width(self._items(item.boxes, item.places))

    def _side_width(self, side: Side) -> float:
        own = self._row_width(self._items(side.boxes, side.places))
        return own if side.name is None else max(own, self._gpu + SIDE_MORE)

    # --- heights ---

    def sheet(self) -> Sheet:
        """All plates, wires and labels."""
        out, sides = self._out, self._drawn.sides
        named = any(side.name is not None for side in sides)
        tops = [box for side in sides for box in side.boxes]
        y = TOP + (SIDE_HEIGHT if named else 0.0)
        self._box_tops: list[float] = []
        level = tops
        while level:
            hung = named or bool(self._box_tops)
            y += LABELLED if any(pcie_words(box.link) for box in level) else PLAIN if hung else 0.0
            self._box_tops.append(y)
            y += BOX_HEIGHT
            level = [inner for box in level for inner in box.boxes]
        if any(pcie_words(device.link) for device in self._topology.devices):
            y += LABELLED
        elif named or tops:
            y += PLAIN
        self._device_top = y
        single = max((self._height(place) for place in range(len(self._lines))), default=0.0)
        self._device_height = max(single, *(self._stack_height(side) for side in sides), 0.0)
        out.width = self.width()
        out.height = y + self._device_height
        sides_width = out.width - 2 * MARGIN
        taken = sum(map(self._side_width, sides)) + BETWEEN_SIDES * (len(sides) - 1)
        x = MARGIN + (sides_width - taken) / 2
        for side in sides:
            self._place_side(side, x)
            x += self._side_width(side) + BETWEEN_SIDES
        self._join_sides()
        self._nvlinks()
        return out

    def _height(self, place: int) -> float:
        return 14.0 + NAME + LINE * len(self._lines[place])

    def _stack_height(self, side: Side) -> float:
        heights = [
            sum(map(self._height, column.places)) + NEAR * (len(column.places) - 1)
            for column in self._columns(side.boxes, side.places)
        ]
        return max(heights, default=0.0)

    def _columns(self, boxes: Sequence[Box], places: Sequence[int]) -> Iterator[Column]:
        for item in self._items(boxes, places):
            if isinstance(item, Column):
                yield item
            else:
                yield from self._columns(item.boxes, item.places)

    # --- plates of PCIe ---

    def _place_side(self, side: Side, x: float) -> None:
        width = self._side_width(side)
        items = self._items(side.boxes, side.places)
        inner = x + (width - self._row_width(items)) / 2
        if side.name is None:
            if any(other.name is not None for other in self._drawn.sides):
                for number, text in enumerate(("NUMA node", "not known")):
                    self._out.words.append(Words(x=x + width / 2, y=TOP + 18 + number * 13, text=text))
            self._place_items(items, inner, 0, None)
            return
        lines = () if side.cpus is None else (cut(f"CPUs {clean(side.cpus)}", width - 10, _small),)
        name = _fitting([side_words(side), clean(side.name)], width - 10, NAME, bold=True)
        self._out.plates.append(
            Plate(
                kind="side", x=x, y=TOP, width=width, height=SIDE_HEIGHT, name=name, lines=lines,
                tip=side_tip(self._topology, side),
            )
        )  # fmt: skip
        self._place_items(items, inner, 0, TOP + SIDE_HEIGHT)

    def _place_items(self, items: Sequence[Item], x: float, depth: int, above: float | None) -> None:
        for number, item in enumerate(items):
            width = self._item_width(item)
            if isinstance(item, Column):
                self._place_column(item, x, above)
            else:
                self._place_box(item, x, width, depth, above)
            x += width + (_gap(item, items[number + 1]) if number + 1 < len(items) else 0.0)

    def _place_box(self, box: Box, x: float, width: float, depth: int, above: float | None) -> None:
        y = self._box_tops[depth]
        what, which = box_words(box)
        names = [what, what.removeprefix("one ").removeprefix("PCIe "), what.split()[0]]
        lines = [which]
        if box.root is not None and box.kind != "root":
            lines = [f"{which} · root complex {short(box.root)}", f"{which} · root {short(box.root)}", which]
        if box.redirects:
            names = [f"{name}, ACS redirects" for name in names[:2]] + [f"{name}, ACS" for name in names[:2]] + ["ACS"]
        self._out.plates.append(
            Plate(
                kind="box", x=x, y=y, width=width, height=BOX_HEIGHT, name=_fitting(names, width - 6, 11.0, bold=True),
                lines=(_fitting(lines, width - 6, SMALL),), tip=box_tip(box),
                mark="redirects" if box.redirects else "",
            )
        )  # fmt: skip
        # No PCIe link lies between a NUMA node and a root complex.
        group: Group = "smp" if box.kind in ("root", "PHB") else "pcie"
        self._hang(box.link, x + width / 2, above, y, f"{what} {which}", group)
        self._place_items(self._items(box.boxes, box.places), x, depth + 1, y + BOX_HEIGHT)

    def _hang(
        self, link: PcieLink | None, x: float, above: float | None, y: float, whose: str, group: Group = "pcie"
    ) -> None:
        """The wire from what is above down to y, with its label."""
        words = pcie_words(link)
        state: State = pcie_state(link) if group == "pcie" else "full"
        if above is None and not words:
            return
        tip = f"{whose}: {link_words(link)}" if group == "pcie" else ""
        points = ((x, y - LABELLED + 4 if above is None else above), (x, y))
        self._out.wires.append(Wire(group=group, state=state, points=points, tip=tip))
        if words:
            self._out.labels.append(
                Label(
                    group="pcie", state=state, x=x, y=y - 22, lines=words, tip=tip,
                    width=max(extent(word, SMALL) for word in words) + 6,
                )
            )  # fmt: skip

    def _place_column(self, column: Column, x: float, above: float | None) -> None:
        y, height = self._device_top, self._device_height
        if len(column.places) == 1:
            (place,) = column.places
            width = self._item_width(column)
            self._put(place, x, y, width, height, self._lines[place])
            self._hang(self._topology.devices[place].link, x + width / 2, above, y, self._topology.devices[place].name)
            return
        each = (height - NEAR * (len(column.places) - 1)) / len(column.places)
        rail = x + RAIL / 3
        end = y + (each + NEAR) * (len(column.places) - 1) + each / 2
        if above is not None:
            self._out.wires.append(Wire(group="smp", state="full", points=((rail, above), (rail, end))))
        for number, place in enumerate(column.places):
            top, device = y + number * (each + NEAR), self._topology.devices[place]
            self._put(place, x + RAIL, top, self._nic, each, self._lines[place])
            if above is not None:
                points = ((rail, top + each / 2), (x + RAIL, top + each / 2))
                tip = f"{clean(device.name)}: {link_words(device.link)}"
                self._out.wires.append(Wire(group="pcie", state=pcie_state(device.link), points=points, tip=tip))

    def _put(self, place: int, x: float, y: float, width: float, height: float, lines: Sequence[str]) -> None:
        device = self._topology.devices[place]
        silent = place in self._drawn.silent
        name = clean(device.name)
        small = extent(name, NAME, bold=True) > width - 6
        if small:
            name = end_of(name, width - 6, lambda text: extent(text, SMALL, bold=True))
        self._spots[place] = plate = Plate(
            kind=device.kind, x=x, y=y, width=width, height=height,
            name=name, lines=tuple(lines), small=small,
            tip=device_tip(self._topology, self._drawn, place), mark="silent" if silent else "",
        )  # fmt: skip
        self._out.plates.append(plate)

    def _told(self, place: int) -> list[str]:
        """What stands below the name of a device."""
        device = self._topology.devices[place]
        width = (self._gpu if device.kind == "gpu" else self._nic) - 6
        lines: list[str] = []
        if device.alias is not None and device.alias != device.name:
            lines.append(end_of(clean(device.alias), width, _small))
        products = {gpu.gpu.product for gpu in self._topology.gpus if gpu.gpu is not None} - {None}
        if len(products) > 1 and device.gpu is not None and device.gpu.product is not None:
            lines.append(clean(device.gpu.product.removeprefix("NVIDIA ")))
        if device.pci is not None:
            lines.append(short(device.pci))
        if (speed := rate(device.nic)) is not None:
            lines.append(speed)
        if self._deep > 1 and device.kind == "nic":
            words = " ".join(pcie_words(device.link))
            lines += [words] if _small(words) <= width else pcie_words(device.link)
        if place in self._drawn.silent:
            lines += ["driver", "is silent"]
        if place in self._drawn.mig:
            kinds = instances(device)
            lines += ["MIG", *kinds[:2], *(["…"] if len(kinds) > 2 else [])]
        return [cut(line, width, _small) for line in lines]

    def _join_sides(self) -> None:
        sides = [plate for plate in self._out.plates if plate.kind == "side"]
        for one, other in pairwise(sides):
            if other.x - one.x - one.width <= BETWEEN_SIDES + 1:
                middle = TOP + SIDE_HEIGHT / 2
                points = ((one.x + one.width, middle), (other.x, middle))
                tip = "between NUMA nodes (SYS)"
                self._out.wires.append(Wire(group="smp", state="full", points=points, tip=tip))

    # --- NVLinks ---

    def _nvlinks(self) -> None:
        out, drawn = self._out, self._drawn
        uplinks = {uplink.place: uplink for uplink in reversed(drawn.uplinks)}
        ports = self._ports(uplinks)
        bottom = self._device_top + self._device_height
        levels = self._tracks(ports, bottom)
        if drawn.bonds:
            out.height = bottom = bottom + 14 + TRACK * (max(levels.values()) + 1)
        if not uplinks and drawn.fabric is None:
            return
        y = bottom + (44.0 if uplinks else 24.0)
        through = [self._spots[place] for place, uplink in uplinks.items() if uplink.end == "switch"]
        if drawn.fabric is not None:
            self._place_fabric(through, y)
        for place, uplink in uplinks.items():
            x = ports[place, None]
            end = y if uplink.end == "switch" else y - 22
            tip = f"{clean(self._topology.devices[place].name)}: {state_words(uplink.links)}"
            tip += gigabytes(uplink.links.bytes_per_second)
            start = self._spots[place].y + self._spots[place].height
            points = ((x, start), (x, end))
            out.wires.append(Wire(group="nvlink", state=uplink.state, points=points, tip=tip))
            word = _uplink_word(uplink)
            out.labels.append(
                Label(
                    group="nvlink", state=uplink.state, x=x, y=y - 22, lines=(word,), tip=tip,
                    width=extent(word, SMALL) + 8,
                )
            )  # fmt: skip
        out.height = max(out.height, y - 10)

    def _ports(self, uplinks: dict[int, Uplink]) -> dict[tuple[int, int | None], float]:
        """Where at its GPU each NVLink starts: by GPU and peer, None for what goes further down.

        Those to the left stand left, and of those the nearest peer outermost; likewise to the right.
        """
        ports: dict[tuple[int, int | None], float] = {}
        for place, plate in self._spots.items():
            peers = [
                bond.other if bond.one == place else bond.one
                for bond in self._drawn.bonds if place in (bond.one, bond.other)
            ]  # fmt: skip
            left = sorted((peer for peer in peers if self._spots[peer].x < plate.x), key=lambda p: -self._spots[p].x)
            right = sorted((peer for peer in peers if self._spots[peer].x > plate.x), key=lambda p: -self._spots[p].x)
            order = [*left, *([None] if place in uplinks else []), *right]
            for number, peer in enumerate(order):
                ports[place, peer] = plate.x + plate.width * (number + 1) / (len(order) + 1)
        return ports

    def _tracks(self, ports: dict[tuple[int, int | None], float], bottom: float) -> dict[int, int]:
        """Which track below the GPUs each bond runs on; draws them."""
        runs = []
        for number, bond in enumerate(self._drawn.bonds):
            ends = sorted((ports[bond.one, bond.other], ports[bond.other, bond.one]))
            runs.append((ends[1] - ends[0], ends[0], ends[1], number))
        taken: list[list[tuple[float, float]]] = []
        levels: dict[int, int] = {}
        for _, left, right, number in sorted(runs):
            level = 0
            while level < len(taken) and any(left - 8 < end and start < right + 8 for start, end in taken[level]):
                level += 1
            if level == len(taken):
                taken.append([])
            taken[level].append((left, right))
            levels[number] = level
        drops = [(x, levels[number]) for _, left, right, number in runs for x in (left, right)]
        drops += [(x, len(taken)) for (_, peer), x in ports.items() if peer is None]
        counts = {bond.links.up for bond in self._drawn.bonds}
        for _, left, right, number in runs:
            links, bond = self._drawn.bonds[number].links, self._drawn.bonds[number]
            y = bottom + 18 + TRACK * levels[number]
            names = " and ".join(clean(self._topology.devices[place].name) for place in (bond.one, bond.other))
            tip = f"{names}: {state_words(links)}{gigabytes(links.bytes_per_second)}"
            points = ((left, bottom), (left, y), (right, y), (right, bottom))
            thick = len(counts) > 1 and links.up == max(counts)
            self._out.wires.append(Wire(group="nvlink", state=links.state, points=points, tip=tip, thick=thick))
            width = extent(links.word, SMALL) + 8
            deeper = [x for x, level in drops if level > levels[number]]
            self._out.labels.append(
                Label(
                    group="nvlink", state=links.state, x=_free(left, right, width, deeper), y=y, width=width,
                    lines=(links.word,), tip=tip,
                )
            )  # fmt: skip
        return levels

    def _place_fabric(self, through: Sequence[Plate], y: float) -> None:
        out, switches, words = self._out, self._drawn.switches, self._drawn.fabric or ""
        left = min((plate.x for plate in through), default=MARGIN)
        right = max((plate.x + plate.width for plate in through), default=out.width - MARGIN)
        name = f"NVLink through {words}" if through else words
        least = max(extent(name, NAME, bold=True) + 20, len(switches) * 74.0 + 16)
        if right - left < least:
            left = min(max((left + right - least) / 2, MARGIN), max(out.width - MARGIN - least, MARGIN))
            right = left + least
        height = 82.0 if switches else 32.0
        cliques = {gpu.gpu.clique for gpu in self._topology.gpus if gpu.gpu is not None} - {None}
        tip = "\n".join([name, *(f"NVLink domain {clean(clique or '')}" for clique in sorted(map(str, cliques)))])
        out.plates.append(
            Plate(kind="fabric", x=left, y=y, width=right - left, height=height, name=name, tip=tip)
        )  # fmt: skip
        room = (right - left - 16) / max(len(switches), 1)
        for number, switch in enumerate(switches):
            width = min(room - NEAR, 130.0)
            lines = [short(switch.pci)]
            if switch.links is not None:
                lines.append(f"{switch.links.up} of {switch.links.total} up")
            state = "up" if switch.links is None else switch.links.state
            out.plates.append(
                Plate(
                    kind="nvswitch", x=left + 8 + room * number + (room - width) / 2, y=y + 26, width=width, height=50,
                    name=_fitting([f"NVSwitch {number}", f"switch {number}", str(number)], width - 6, 11.0, bold=True),
                    lines=tuple(cut(line, width - 4, _small) for line in lines),
                    tip=switch_tip(number, switch),
                    mark="" if state == "up" else state,
                )
            )  # fmt: skip
        out.width = max(out.width, right + MARGIN)
        out.height = y + height


def _gap(one: Item, other: Item) -> float:
    return NEAR if isinstance(one, Column) and isinstance(other, Column) else APART


def _small(text: str) -> float:
    return extent(text, SMALL)


def _fitting(texts: Sequence[str], width: float, size: float, bold: bool = False) -> str:
    """The first of these that fits; the last one cut, when none does."""
    for text in texts:
        if extent(text, size, bold) <= width:
            return text
    return cut(texts[-1], width, lambda text: extent(text, size, bold))


def _uplink_word(uplink: Uplink) -> str:
    if uplink.end == "npu":
        return f"{uplink.links.word} CPU"
    if uplink.end == "unknown" and not uplink.links.total:
        return "NVLink?"
    return uplink.links.word


def _free(left: float, right: float, width: float, others: Sequence[float]) -> float:
    """The middle of a label on a run from left to right: nearest to the middle where no other wire goes through it."""
    middle, half = (left + right) / 2, width / 2 + 3
    walls = [left, *sorted(x for x in others if left < x < right), right]
    gaps = [(one + half, other - half) for one, other in pairwise(walls) if other - one >= 2 * half]
    spots = [min(max(middle, start), end) for start, end in gaps]
    return min(spots, key=lambda x: abs(x - middle), default=middle)
